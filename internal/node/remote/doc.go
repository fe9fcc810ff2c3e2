// Package remote serves consumers that get their messages from the leaders of the partitions, wherever these are:
// clients that are connected to a node which leads no partition of their topic, and programs that embed a node. The
// package runs on both sides: at the client's node, and at the leaders where that node subscribes.
//
//	client ─► Consumer ─► leg ── Subscribe, Consume ──► subscription ─► channel.Consumer ─► channel   at each leader
//	client ◄─ Sink     ◄─ leg ◄── Deliver, Consumed ─── (a Sink)     ◄─
//
// To the leader's channel a subscription is a consumer like any other, and the leader's lease and epoch apply to it as
// to every consumer. When the connection between the nodes ends, the leader closes the consumer, so other consumers get
// its messages in flight at once. When leadership moves, the client's node subscribes at the next leader, which
// delivers the messages in flight again. If the client's node is a leader itself, one leg leads to the node itself; the
// frames of that leg go through a queue instead of a connection (loopback).
//
// Deliveries must not fill the connection, because replication uses it too. So a leader has at most one window of bytes
// on the way to a client (windowBytes). The client's node pays the bytes back (wire.ConsumeCredit) when the client's
// sink has room.
//
// Machines of internal/node/route decide at which leaders a client subscribes, and how much of the client's RDY each
// leader gets. The rules that keep ordered channels in order are in deadline.go and fence.go.
//
// The cluster node has one Consumers, and calls it with frames, ticks and news of leaders. The engine's public
// consumers call Consumer. Lock order: Consumer.mu or subscription.mu first, then Consumers.mu, which is a leaf.
// Sink.Deliver of a client is called with Consumer.mu held; Flush, Closed and Failed are called without that lock. The
// channel calls Deliver of a subscription with Channel.mu held, and Flush and Closed without that lock.
//
// Goroutines run for each frame that may wait (attach, end, a full connection), for the loopback while it has frames,
// and while some client's RDY is smaller than the number of its leaders. A crash leaves nothing: the other side sees
// the connection end.
//
// # The fate of a FIN when the leader crashes
//
// Consumer.Finish returns before the leader has the FIN, and a FIN that the leader accepts gets no answer. The fate of
// the FIN depends on how far it came, and the client is not told which case it was:
//
//	it waits in leg.ops, or is in a frame                 lost
//	the leader's channel has it, its log has it not yet   lost: for Options.ConfirmInterval, or while a batch of
//	                                                      confirmations before it is not committed (controlPut.busy)
//	it is in the leader's log, not in its successor's     lost: the old leader cuts it when it comes back
//	it is in its successor's log                          kept: the successor serves when that is committed
//
// Where the FIN is lost, the successor delivers the message again, with the attempt count from the log. The client may
// finish the delivery from the old leader before the new leader has delivered the message again. Such a call fails with
// ErrNotInFlight: Finish returns the error while no leg to the new leader is accepted, and later FailureSink.Failed
// reports it.
package remote
