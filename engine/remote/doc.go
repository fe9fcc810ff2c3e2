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
// Deliveries must not fill the connection, which replication uses too. So a subscription has at most windowBytes of
// messages under way, and the client's node returns that credit when the client's sink has room.
//
// At which leaders a client subscribes, and how much of its RDY each gets, is decided by machines of engine/route. What
// keeps ordered channels in order is in deadline.go and fence.go.
//
// The cluster node has one Consumers and calls it with frames, ticks and news of leaders; the engine's public consumers
// call Consumer. Locks: Consumer.mu and subscription.mu, then Consumers.mu, which is a leaf. Sinks are called with the
// lock of the Consumer held, and the channel calls a subscription with its own lock held.
//
// A goroutine runs for each frame that may wait (attach, end, a full connection), for the loopback while it has frames,
// and for clients whose RDY is smaller than the number of leaders. A crash leaves nothing: the other side sees the
// connection end.
package remote
