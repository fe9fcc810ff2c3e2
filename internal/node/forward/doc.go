// Package forward sends the puts of partitions that another node leads to that node, and takes the puts that other
// nodes send to this one. It is the shell around route.Lane, which decides when a put may leave.
//
//	producer ─► partition ─► Forwarder.Enqueue ─ lane ─ ForwardPut ─► HandlePut ─► Inbox   at the leader
//	producer ◄───────────────── HandleAck ◄──────────── ForwardAck ─── reply ◄─── Put.Done
//
// A node has one Forwarder. Producers call Enqueue. Replicas that lose a leadership call Freeze and Reroute. The ticker
// calls Tick. The connections' readers call HandlePut, HandleAck and PeerLost. Forwarder.mu is taken after Replica.mu
// and before Inbox.mu; puts are answered without Forwarder.mu. The package starts no goroutine, except for an answer
// whose connection has a full queue.
//
// A crash loses the puts that wait in lanes; no producer was told that they are stored. A put that was sent may be
// stored at its leader; its producer was not told that either. When only the connection ends, the leader still knows
// what it answered, and is asked (Forwarder.askAgain, arrivals).
package forward
