package host

import (
	"context"
	"time"

	"penstock/engine/meta"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/peer"
)

// Transport is what a simulation has in place of a peer.Net, with the same promises. Received.Buf of the frames that it
// delivers is nil; their payloads are never used again.
type Transport interface {
	SetNodes(nodes map[replicate.NodeID]*meta.Node)
	TrySend(to replicate.NodeID, f *netproto.Frame) error
	AwaitRoom(ctx context.Context, to replicate.NodeID) error
	Connected(node replicate.NodeID) bool
	Disconnect(node replicate.NodeID, reason error)
	Close()
}

// Network is a node's connections to the others. It is no interface, so that the frames that are sent over a peer.Net
// can stay on their senders' stacks.
type Network struct {
	real      *peer.Net // or
	simulated Transport
}

// TrySend is peer.Net's. A Transport gets a copy of the frame.
func (n *Network) TrySend(to replicate.NodeID, f *netproto.Frame) error {
	if n.real != nil {
		return n.real.TrySend(to, f)
	}
	own := *f
	return n.simulated.TrySend(to, &own)
}

// AwaitRoom is peer.Net's.
func (n *Network) AwaitRoom(ctx context.Context, to replicate.NodeID) error {
	if n.real != nil {
		return n.real.AwaitRoom(ctx, to)
	}
	return n.simulated.AwaitRoom(ctx, to)
}

// Connected is peer.Net's.
func (n *Network) Connected(node replicate.NodeID) bool {
	if n.real != nil {
		return n.real.Connected(node)
	}
	return n.simulated.Connected(node)
}

// Disconnect is peer.Net's.
func (n *Network) Disconnect(node replicate.NodeID, reason error) {
	n.transport().Disconnect(node, reason)
}

// ReadOn is peer.Net's. Nothing blocks the readers of a simulated network.
func (n *Network) ReadOn(after time.Duration) {
	if n.real != nil {
		n.real.ReadOn(after)
	}
}

// SetNodes is peer.Net's.
func (n *Network) SetNodes(nodes map[replicate.NodeID]*meta.Node) { n.transport().SetNodes(nodes) }

// Close is peer.Net's.
func (n *Network) Close() { n.transport().Close() }

func (n *Network) transport() Transport {
	if n.real != nil {
		return n.real
	}
	return n.simulated
}
