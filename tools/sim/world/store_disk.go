package world

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// ReportDisk implements meta.Store.
func (c *client) ReportDisk(ctx context.Context, disk meta.DiskState) error {
	return c.do(ctx, func() error { return c.w.store.reportDisk(c.self.ID, c.self.Boot, disk) })
}

// ReportData implements meta.Store.
func (c *client) ReportData(ctx context.Context, logged uint64, unknownTopics int, clockDiffers bool) error {
	return c.do(ctx, func() error {
		return c.w.store.reportData(c.self.ID, c.self.Boot, logged, unknownTopics, clockDiffers)
	})
}

func (s *store) reportData(
	id replicate.NodeID, boot uuid.UUID, logged uint64, unknownTopics int, clockDiffers bool,
) error {
	old := s.snap.Nodes[id]
	switch {
	case old == nil || old.Boot != boot:
		return meta.ErrNotFound
	case old.Logged >= logged && old.UnknownTopics == unknownTopics && old.ClockDiffers == clockDiffers:
		return nil
	}
	n := *old
	n.Logged, n.UnknownTopics, n.ClockDiffers = max(n.Logged, logged), unknownTopics, clockDiffers
	next := s.edit()
	next.Nodes[id] = &n
	s.publish(next)
	return nil
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
	leader, worst, drains := p.State.Leader, meta.DiskFailed, false
	if own := s.snap.Nodes[leader]; own != nil && own.Disk != meta.DiskGood {
		worst, drains = meta.DiskGood, own.Disk.Rank() >= meta.DiskHung.Rank()
		if own.Disk == meta.DiskFailed {
			worst = meta.DiskSlow
		}
	}
	return slices.DeleteFunc(s.electable(p), func(n replicate.NodeID) bool {
		is := s.snap.Nodes[n]
		return n == leader || is != nil && (is.Disk.Rank() > worst.Rank() || is.Draining && !drains)
	})
}

// mayBeNamed says whether a leader may hand a partition over to a node that it names: see cluster's mayBeNamed.
func (s *store) mayBeNamed(p *meta.Partition, n replicate.NodeID) bool {
	is := s.snap.Nodes[n]
	return n != p.State.Leader && slices.Contains(s.electable(p), n) &&
		(is == nil || is.Rank() < meta.DiskFailed.Rank())
}
