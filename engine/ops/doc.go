// Package ops carries requests about topics and channels to the nodes that lead them, and their answers back. To create
// a channel, to pause or seek one, to list what it has in flight: each node that leads a partition of the topic does it
// for its partitions (wire.Operation).
//
//	Channel.Pause ... ─► Operations.Gather ─► Topic.Execute, for the partitions that this node leads
//	                          └─► Ask ─ ForwardOp ─► HandleRequest ─► Node.Execute   at each other leader
//	                               ◄─ ForwardOpAck ──── its result or error
//
// What an operation does is the engine's business; nothing here looks into one but for the partitions that it names.
// While leaders change Gather asks again, so an operation that is done twice must do no harm.
//
// What was deleted a moment ago is told from what never existed ([DeletedNames], [GoneError]): a deletion that is asked
// for at several nodes, or whose leaders do not all have the channel any more, has succeeded ([Deletion]).
//
// The cluster node has one Operations. Its lock is a leaf: it is held for access to the table of requests, never while
// anything is sent or executed. A request of another node is executed on a goroutine of its own. A crash loses the
// table: the requesters see the connection end and ask the next leader.
package ops
