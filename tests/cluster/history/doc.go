// Package history records what the clients of a cluster saw and judges it afterwards.
//
// A client writes down every event at the moment it knows of it, with the time of one monotonic clock that all clients
// of a run share. [Check] takes all events of a run and says what a correct engine could not have shown: acknowledged
// messages that no channel got, messages that nobody sent, orders that contradict each other. It knows nothing of the
// engine; it sees only what clients see, so it judges a single node, a cluster and another NSQ server alike.
//
// An operation whose answer never came is neither done nor undone: it is unknown, and its message may appear or not. A
// checker that took a timeout for a failure would miss what surfaces later, and one that took it for a success would
// accuse the innocent.
package history
