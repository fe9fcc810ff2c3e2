package engine

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/engine/host"
	"penstock/engine/inbox"
	"penstock/engine/meta"
	"penstock/replicate"
	"penstock/segment/aio"
)

// bareReplica is a replica of a node in a cluster, without a log, a disk, a network or a store.
func bareReplica() *replica {
	h := host.NewMachine()
	log := slog.New(slog.DiscardHandler)
	s := newStore(storeOptions{
		Host: h, Log: log, Clock: base.NewClock(h.Wall, h.Mono), Counters: new(Counters), Pulse: new(aio.Pulse),
	})
	cn := newReplicaNode(context.Background(), s, log, nil, replicate.Config{}, nil, new(nobodyAbove))
	cn.self = meta.Node{ID: 1, Store: uuid.UUID{1}, Boot: uuid.UUID{9}}
	s.join(cn)
	pt := &partition{e: s, t: &partTopic{name: "t", servingChanged: func() {}}}
	pt.Use(&s.inboxes)
	pt.rep = &replica{cn: cn, pt: pt}
	return pt.rep
}

// nobodyAbove is a node above that forwards no put, and remembers what it is to look at later.
type nobodyAbove struct {
	later []uint32 // partitions
	news  base.Notice
}

func (*nobodyAbove) ForwardPut(*partition, *inbox.Put) error { return ErrNoLeader }
func (*nobodyAbove) Freeze(*partition)                       {}
func (*nobodyAbove) Reroute(*partition)                      {}
func (*nobodyAbove) Confirm()                                {}
func (*nobodyAbove) HasExited(replicate.NodeID) bool         { return false }
func (a *nobodyAbove) TryLater(_ *meta.Topic, partition uint32) {
	a.later = append(a.later, partition)
}
func (a *nobodyAbove) News() *base.Notice { return &a.news }
