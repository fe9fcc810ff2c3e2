package partition

import (
	"penstock/internal/node/aside"
	"penstock/internal/node/logread"
	"penstock/segment"
)

// This file connects the cuts of replicas with internal/node/aside, which keeps what they take.

// Aside returns what keeps the batches that cuts took from copies on this node.
func (s *Store) Aside() *aside.Keeper { return s.aside }

// loadAside reads what earlier processes kept. If that fails, the node starts nevertheless: what is there stays until a
// later start can read it.
func (s *Store) loadAside() {
	if err := s.aside.Load(); err != nil {
		s.log.Warn("what earlier cuts took from copies cannot be listed; it stays where it is", "error", err)
	}
}

// keepAside is the last part of step 2 of a cut: it durably keeps the messages that the cut takes. It keeps nothing if
// the cut takes only control batches, such as the one that begins an epoch. It also keeps nothing if the copy
// begins anew and the leader had all of it: retention removed that there on purpose. If keepAside fails, no record of
// the cut is written, and the log stays as it is. It runs on the goroutine of logCut.make, without mu. It reads
// what is cut, and so may wait for the device.
func (c *logCut) keepAside() error {
	r := c.replica
	if !r.HasLog() {
		return nil // it begins with the reset
	}
	log := r.pt.log
	end, endPos, endID := log.End()
	from, about := c.State.End, aside.Cut{
		TopicID: r.pt.topic.ID, Topic: r.pt.topic.Name, Partition: r.pt.number, Reason: aside.ReasonCut,
		Committed: c.committed, From: c.State.Next, FromID: c.State.NextID, Until: endPos, NextID: endID,
	}
	if c.reset {
		about.Reason = aside.ReasonAnew
		from, about.From, about.FromID = log.Start()
	}
	if endID <= about.FromID || c.reset && c.leaderHad {
		return nil
	}
	about.Node = r.node.Self.Name
	if row := r.row.Load(); row != nil {
		about.Leader, about.LeaderEpoch = uint32(row.State.Leader), row.State.Epoch
	}
	kept, err := r.node.store.aside.Keep(log, about, from, end)
	if err == nil {
		kept.Log(r.node.Log)
	}
	return err
}

// SweepAside removes what need not be kept any more. The flusher calls it.
func (s *Store) SweepAside() {
	parts := map[segment.Identity]*Partition{}
	for _, pt := range s.Partitions() {
		parts[pt.Identity()] = pt
	}
	s.aside.Sweep(func(id segment.Identity, pos segment.Position, crc uint32) aside.State {
		if pt := parts[id]; pt != nil {
			return pt.hasBatch(pos, crc)
		}
		return aside.Unknown
	})
}

// hasBatch says whether the log has, committed, the batch with this position and checksum. A checksum covers the one of
// the batch before, so then the log has, or had, all the batches before it, too. While the log is being cut, it still
// has what the cut takes, and hasBatch does not look. It may read the device. It takes Replica.mu.
func (pt *Partition) hasBatch(pos segment.Position, crc uint32) aside.State {
	r := pt.replica
	r.mu.Lock()
	looks := pt.log != nil && r.cut == nil && r.committed() > pos
	r.mu.Unlock()
	if !looks {
		return aside.Unknown
	}
	if _, first, _ := pt.log.Start(); pos < first {
		return aside.Other
	}
	h, err := logread.HeaderAt(pt.log, pos)
	if err != nil || h.Position != pos {
		return aside.Unknown
	}
	if h.CRC != crc {
		return aside.Other
	}
	return aside.Same
}
