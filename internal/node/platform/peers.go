package platform

import (
	"context"
	"errors"

	"penstock/netproto"
	"penstock/replicate"
)

// Peers is this node's view of the cluster: its own id, its connections, and goroutines that end with the node. The
// cluster node has one Peers, which all packages that talk to other nodes share. Self and Network are set when the node
// has joined, before the first frame is sent or received. Peers has no lock. A crash leaves nothing of it.
type Peers struct {
	*Network
	Self  replicate.NodeID
	Ctx   context.Context // ends when the node closes
	Spawn func(f func())  // runs f on a goroutine that the node waits for when it closes
}

// Reply sends an answer without waiting. If the connection's queue is full, a goroutine sends the answer later. If the
// connection is lost, the answer is lost too; the other node then learns that the connection is lost.
func (p *Peers) Reply(to replicate.NodeID, f *netproto.Frame) {
	if err := p.TrySend(to, f); !errors.Is(err, netproto.ErrQueueFull) {
		return
	}
	own := *f
	p.Spawn(func() {
		for errors.Is(p.TrySend(to, &own), netproto.ErrQueueFull) && p.AwaitRoom(p.Ctx, to) == nil {
			continue // this ends: the other node reads, or the connection breaks because its pings get no answer
		}
	})
}
