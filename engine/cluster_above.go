package engine

import (
	"penstock/engine/base"
	"penstock/engine/inbox"
	"penstock/engine/meta"
	"penstock/replicate"
)

// ForwardPut queues a put for the node that leads its partition. While no node leads, the put waits in that queue. A
// put of the engine's own fails instead.
func (cn *clusterNode) ForwardPut(pt *partition, p *inbox.Put) error {
	if p.Kind.Internal() {
		return ErrNoLeader
	}
	p.Seq = 0
	return cn.forward.enqueue(pt, p)
}

// Freeze implements nodeAbove: see forwarder.freeze.
func (cn *clusterNode) Freeze(pt *partition) { cn.forward.freeze(pt) }

// Reroute implements nodeAbove.
func (cn *clusterNode) Reroute(pt *partition) { cn.reroute(pt) }

// Confirm implements nodeAbove.
func (cn *clusterNode) Confirm() { cn.e.channels.Flush() }

// HasExited implements nodeAbove.
func (cn *clusterNode) HasExited(node replicate.NodeID) bool { return cn.hasExited(node) }

// TryLater implements nodeAbove.
func (cn *clusterNode) TryLater(topic *meta.Topic, partition uint32) { cn.tryLater(topic, partition) }

// News implements nodeAbove.
func (cn *clusterNode) News() *base.Notice { return &cn.e.news }
