// Package ops sends requests about topics and channels to the leaders of the topic's partitions, and brings back the
// answers. Such a request creates, pauses or seeks a channel, or lists what the channel has in flight. Each node that
// leads partitions of the topic executes the request (wire.Operation) for its own partitions.
//
//	Channel.Pause ... ─► Operations.Gather ─► Topic.Execute, for the partitions that this node leads
//	                          └─► Ask ─ ForwardOp ─► HandleRequest ─► Node.Execute   at each other leader
//	                               ◄─ ForwardOpAck ──── its result or error
//
// The engine defines what an operation does; this package reads only the list of partitions in it. While leaders
// change, Gather repeats the operation, so executing an operation twice must do no harm.
//
// The package also tells names that were deleted a moment ago from names that never existed ([DeletedNames],
// [GoneError]). A client may request the same deletion at several nodes, and some of the leaders may have deleted the
// channel already. In both cases the deletion has succeeded ([Deletion]).
//
// The cluster node has one Operations. Its lock is a leaf: it guards the table of requests, and is never held while
// anything is executed or sent. A request of another node is executed on its own goroutine. A crash loses the table:
// the requesters see the connection end and ask the next leader.
package fanout
