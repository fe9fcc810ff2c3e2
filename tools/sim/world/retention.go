package world

import (
	"slices"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// Retention by size or age takes messages whoever has not read them. Each copy does so for itself, and whoever leads
// counts as confirmed, in every channel, what its own copy has lost; that stays so when a copy that still has the
// messages leads after it. So a message may go unread if a copy that led had lost it, and no other may: what a log's
// start passed by was old enough, or far enough from the end, for settings that somebody had made.

// wish is the most that a topic's settings, up to now, want to go. 0: nothing.
type wish struct {
	keepBytes int64
	keepAge   int64 // ns
}

// cut is a move of the start of one copy's log.
type cut struct {
	partition uint32
	to        msgID
	full      bool  // there were more bytes behind it than some settings keep
	keepAge   int64 // what is older may go; 0: none is old enough
	clock     int64 // the highest that the node's wall clock may have shown, since boot
}

// copyStart is where the log of a node's copy begins.
type copyStart struct {
	id    msgID
	cuts  []cut  // since it served last
	drops int    // how often the copy was given up
	trims []trim // all that its retention has done
}

// trim is what retention took of a copy, while its log went on.
type trim struct {
	to msgID
	at int64
}

// retention knows of every cut.
type retention struct {
	starts map[nodePart]*copyStart
	ends   map[meta.PartitionID]segment.Offset // the highest that any copy had
}

func (r *retention) init() {
	r.starts, r.ends = map[nodePart]*copyStart{}, map[meta.PartitionID]segment.Offset{}
}

// want notes settings that are made, once nobody can miss them.
func (t *topicModel) want(s *meta.TopicSettings) {
	bytes := s.RetentionBytes
	if s.QuotaMode == meta.QuotaDropOldest && s.QuotaBytes > 0 && (bytes == 0 || s.QuotaBytes < bytes) {
		bytes = s.QuotaBytes
	}
	least := func(a *int64, b int64) {
		if b > 0 && (*a == 0 || b < *a) {
			*a = b
		}
	}
	t.kept.note(s)
	least(&t.wish.keepBytes, bytes)
	least(&t.wish.keepAge, s.RetentionAgeMs*ms)
}

// look compares where a copy's log begins with where it began.
func (r *retention) look(n *host, v *partition.Marks) {
	key := nodePart{n, v.ID}
	s := r.starts[key]
	if s == nil {
		s = &copyStart{}
		r.starts[key] = s
	}
	r.ends[v.ID] = max(r.ends[v.ID], v.EndAt)
	if n.w.store.snap.Topics[v.ID.Topic] == nil {
		return
	}
	t := n.w.models[v.ID.Topic]
	if v.StartID > s.id {
		n.w.tracef("%s: the copy of %s begins at %d now, not at %d", n.name, n.w.partName(v.ID), v.StartID, s.id)
		r.mayStart(n, t, s.id, v)
		if !v.Cutting && v.Drops == s.drops {
			s.trims = append(s.trims, trim{v.StartID, n.w.now})
		}
	}
	s.drops = v.Drops
	switch {
	case v.StartID < s.id:
		s.cuts = nil // another log: the disk is a new one, or the replica came back
	case v.StartID > s.id && t.wish != wish{}:
		s.cuts = append(s.cuts, cut{
			partition: v.ID.Partition, to: v.StartID, keepAge: t.wish.keepAge, clock: n.local() + n.highSkew,
			full: t.wish.keepBytes > 0 && v.StartAt <= r.ends[v.ID]-segment.Offset(t.wish.keepBytes),
		})
	}
	if s.id = v.StartID; v.Serves {
		t.served[v.ID.Partition] = max(t.served[v.ID.Partition], v.StartID)
		t.cuts = append(t.cuts, s.cuts...)
		s.cuts = nil
	}
}

// gone says that a message was removed by the wish of who made the topic's settings.
func (w *World) gone(t *topicModel, id node.ID, v *value) bool { return w.cutAway(t.cuts, id, v) }

// goneAt says the same of one copy, whether it has served since or not.
func (w *World) goneAt(n *host, id meta.PartitionID, v *value) bool {
	s := w.checks.taken.starts[nodePart{n, id}]
	return s != nil && w.cutAway(s.cuts, v.id, v)
}

// trimmedAt says that retention took a message from a copy after it was answered OK.
func (w *World) trimmedAt(n *host, id meta.PartitionID, v *value) bool {
	s := w.checks.taken.starts[nodePart{n, id}]
	return s != nil && slices.ContainsFunc(s.trims, func(c trim) bool { return v.id.MsgID() < c.to && c.at > v.answered })
}

func (w *World) cutAway(cuts []cut, id node.ID, v *value) bool {
	if len(cuts) == 0 {
		return false
	}
	born := w.bornAt(v) // no leader has put it into its log at an earlier time, whatever its clock was
	for _, c := range cuts {
		if c.partition == id.Partition() && id.MsgID() < c.to && (c.full || c.keepAge > 0 && c.clock-born >= c.keepAge) {
			return true
		}
	}
	return false
}
