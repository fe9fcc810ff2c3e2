package platform

import (
	"context"
	"crypto/x509"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/peer"
)

// Transport takes the place of a peer.Net in a simulation, and makes the same promises. The frames that it delivers
// have a nil Received.Buf, and their payloads are never reused.
type Transport interface {
	SetNodes(nodes map[replicate.NodeID]*peer.Node)
	TrySend(to replicate.NodeID, f *netproto.Frame) error
	AwaitRoom(ctx context.Context, to replicate.NodeID) error
	Connected(node replicate.NodeID) bool
	Disconnect(node replicate.NodeID, reason error)
	Close()
}

// Network holds a node's connections to the other nodes. It is not an interface, so that frames sent over a peer.Net
// can stay on the stacks of their senders. Exactly one of real and simulated is set.
type Network struct {
	real      *peer.Net
	simulated Transport
}

// Simulated returns the connections of a simulated host.
func Simulated(t Transport) *Network { return &Network{simulated: t} }

// LimitHandshakes is peer.Net.LimitHandshakes. A Transport has none.
func (n *Network) LimitHandshakes(count int) {
	if n.real != nil {
		n.real.LimitHandshakes(count)
	}
}

// TrySend is peer.Net.TrySend. A Transport gets a copy of the frame.
func (n *Network) TrySend(to replicate.NodeID, f *netproto.Frame) error {
	if n.real != nil {
		return n.real.TrySend(to, f)
	}
	own := *f
	return n.simulated.TrySend(to, &own)
}

func (n *Network) AwaitRoom(ctx context.Context, to replicate.NodeID) error {
	if n.real != nil {
		return n.real.AwaitRoom(ctx, to)
	}
	return n.simulated.AwaitRoom(ctx, to)
}

// Stats is peer.Net.Stats; on a simulated network nothing is counted.
func (n *Network) Stats() peer.Stats {
	if n.real != nil {
		return n.real.Stats()
	}
	return peer.Stats{}
}

func (n *Network) Connected(node replicate.NodeID) bool {
	if n.real != nil {
		return n.real.Connected(node)
	}
	return n.simulated.Connected(node)
}

// Received is peer.Net.Received; in a simulated network nothing is counted, and it returns false.
func (n *Network) Received(node replicate.NodeID) (uint64, bool) {
	if n.real != nil {
		return n.real.Received(node)
	}
	return 0, false
}

// Shown is peer.Net.Shown; in a simulated network nothing is shown.
func (n *Network) Shown(node replicate.NodeID) *x509.Certificate {
	if n.real != nil {
		return n.real.Shown(node)
	}
	return nil
}

func (n *Network) Disconnect(node replicate.NodeID, reason error) {
	n.transport().Disconnect(node, reason)
}

func (n *Network) SetNodes(nodes map[replicate.NodeID]*peer.Node) { n.transport().SetNodes(nodes) }
func (n *Network) Close()                                         { n.transport().Close() }

func (n *Network) transport() Transport {
	if n.real != nil {
		return n.real
	}
	return n.simulated
}
