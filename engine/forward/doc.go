// Package forward takes the puts of partitions that this node does not lead to the nodes that do, and takes theirs. It
// is the shell around route.Lane, which decides when a put may leave.
//
//	producer ─► partition ─► Forwarder.Enqueue ─ lane ─ ForwardPut ─► HandlePut ─► Inbox   at the leader
//	producer ◄───────────────── HandleAck ◄──────────── ForwardAck ─── reply ◄─── Put.Done
//
// A node has one Forwarder. Producers call Enqueue, replicas that lose a leadership Freeze and Reroute, the ticker
// Tick, readers of connections HandlePut, HandleAck and PeerLost. Forwarder.mu is taken after Replica.mu and before
// Inbox.mu; puts are answered without it. No goroutine runs here, but for an answer that finds its connection full.
//
// A crash loses what waits in lanes; nobody was told that it is stored. What was sent may be stored at its leader, and
// nobody was told that either.
package forward
