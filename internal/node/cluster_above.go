package node

import (
	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/forward"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/segment"
)

// ForwardPut implements partition.Above. It queues a put for the node that leads its partition. While no node leads,
// the put waits in that queue, until its deadline. Puts of the engine itself are not forwarded: they get ErrNoLeader.
func (cn *clusterNode) ForwardPut(pt *partition.Partition, p *inbox.Put) error {
	if p.Kind.Internal() {
		return errs.ErrNoLeader
	}
	p.Seq = 0
	return cn.forward.Enqueue(pt, p)
}

func (cn *clusterNode) Freeze(pt *partition.Partition)  { cn.forward.Freeze(pt) }
func (cn *clusterNode) Reroute(pt *partition.Partition) { cn.forward.Reroute(pt) }
func (cn *clusterNode) TryLater(topic *meta.Topic, partition uint32) {
	cn.topics.tryLater(topic, partition)
}
func (cn *clusterNode) News() *platform.Notice { return &cn.e.news }

// newForwarder returns the forwarder of puts for other nodes.
func (cn *clusterNode) newForwarder() *forward.Forwarder {
	e := cn.e
	return forward.New(forward.Env{
		Peers: &cn.peers, Clock: e.clock, Now: cn.Now, Limits: &e.limits,
		MaxBytes: func() int64 { return e.current().MaxNodeInboxBytes },
		Timeout:  e.publishTimeout, Overloaded: &e.counters.Overloaded, First: e.firstRequest(),
		Find: func(id segment.Identity) forward.Partition {
			if pt := cn.topics.partition(id); pt != nil {
				return pt
			}
			return nil
		},
	})
}

var _ forward.Partition = (*partition.Partition)(nil)
