package world

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"penstock/engine/meta"
	"penstock/replicate"
)

// ReportDisk implements meta.Store.
func (c *client) ReportDisk(ctx context.Context, disk meta.DiskState) error {
	return c.do(ctx, func() error { return c.w.store.reportDisk(c.self.ID, c.self.Boot, disk) })
}

func (s *store) reportDisk(id replicate.NodeID, boot uuid.UUID, disk meta.DiskState) error {
	old := s.snap.Nodes[id]
	switch {
	case old == nil || old.Boot != boot:
		return meta.ErrNotFound
	case old.Disk == disk:
		return nil
	}
	n := *old
	n.Disk = disk
	next := s.edit()
	next.Nodes[id] = &n
	s.w.tracef("store: the disk of node %d is %q", id, disk)
	s.publish(next)
	return nil
}

// heirs are the nodes that may have a partition from its leader: see cluster's heirsOf.
func (s *store) heirs(p *meta.Partition) []replicate.NodeID {
	rank := func(n replicate.NodeID) int {
		if s.snap.Nodes[n] == nil {
			return 0
		}
		return s.snap.Nodes[n].Disk.Rank()
	}
	leader := p.State.Leader
	return slices.DeleteFunc(s.electable(p), func(n replicate.NodeID) bool {
		return n == leader || rank(leader) > 0 && rank(n) > 0
	})
}
