// Package inbox defines puts, and the inboxes in which puts wait until the committer of their partition takes them.
//
// A Put is a request to append: messages from a producer, or something that the engine itself stores. A List of puts
// always has one owner: an Inbox, a lane of the forwarder, or, after the puts were taken out of an inbox, the committer
// or the replica. A goroutine that waits for the answer to its put uses a Waiter. Every other submitter gets the answer
// through Put.Done.
//
// The partitions and the forwarder call this package, and the engine's public API submits through it. The package knows
// nothing of logs, replicas or topics, and starts no goroutine. Each inbox has one lock, Inbox.mu, which is a leaf.
//
// A crash loses the puts that wait in an inbox. None of them was answered.
package inbox
