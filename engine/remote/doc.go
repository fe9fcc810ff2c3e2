// Package remote serves clients of nodes that lead no partition of a topic: both the node that such a client is
// connected to, and the leaders that it subscribes at.
//
//	client ─► Consumer ─► leg ── Subscribe, Consume ──► subscription ─► channel.Consumer ─► channel   at each leader
//	client ◄─ Sink     ◄─ leg ◄── Deliver, Consumed ─── (a Sink)     ◄─
//
// For the leader's channel a subscription is a consumer like any other; the leader's lease and epoch apply to it as to
// all. When the connection between the nodes ends, the leader closes its consumer, so that other consumers get at once
// what it had in flight. When leadership moves, the client's node subscribes at the next leader, which delivers again
// what was in flight. If the client's node becomes a leader itself, it is the node of one of the legs, and its frames
// take a queue instead of a connection (loopback).
//
// Deliveries must not fill the connection, which replication uses too. So a leader has at most a window of bytes under
// way to a client (windowBytes). The client's node pays them back (wire.ConsumeCredit) when the client's sink has room.
//
// At which leaders a client subscribes, and how much of its RDY each gets, is decided by machines of engine/route. What
// keeps ordered channels in order is in deadline.go and fence.go.
//
// The cluster node has one Consumers and calls it with frames, ticks and news of leaders; the engine's public consumers
// call Consumer. Locks: Consumer.mu and subscription.mu, then Consumers.mu, which is a leaf. Sink.Deliver is called
// with Consumer.mu held, a client's Sink.Flush, Closed and Failed without; the channel calls Deliver of a subscription
// with Channel.mu held, and its Flush and Closed without.
//
// A goroutine runs for each frame that may wait (attach, end, a full connection), for the loopback while it has frames,
// and for clients whose RDY is smaller than the number of leaders. A crash leaves nothing: the other side sees the
// connection end.
//
// # What becomes of a FIN when the leader crashes
//
// Consumer.Finish returns before the leader has the FIN, and nobody answers a FIN that was taken. How far it came
// decides, and the client is not told which of the cases it was:
//
//	it waits in leg.ops, or is in a frame                 lost
//	the leader's channel has it, its log has it not yet   lost: for Options.ConfirmInterval, or while a batch of
//	                                                      confirmations before it is not committed (controlPut.busy)
//	it is in the leader's log, not in its successor's     lost: the old leader cuts it when it comes back
//	it is in its successor's log                          kept: the successor serves when that is committed
//
// Where it is lost, the successor delivers the message again, with the count of attempts that the log has. If the
// client finishes a message that it got from the old leader before it has it from the new one, it is told
// ErrNotInFlight: by Finish while no leg to the new one is accepted, later through FailureSink.Failed.
package remote
