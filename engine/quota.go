package engine

import (
	"errors"
	"math"
	"sync/atomic"

	"penstock/segment"
)

// A quota in reject mode is held by the committer of the partition's leader: it knows the log's end, and adds nothing that would
// pass the quota. What counts is from the oldest message that some channel has not confirmed to the end, so a quota is never passed, and what
// consumers confirm makes room. Where that message's batch begins has to be looked up, perhaps in a segment: the flusher does it, at every
// tick and when a put was refused.

// quotaState is a partition's side of it.
type quotaState struct {
	countedFrom atomic.Uint64 // offset of the oldest batch that counts
	lookedUp    segment.MsgID // for which countedFrom was found; the flusher's
	atEnd       bool          // there was no such message
}

// quotaRoom is what may still be added to a partition.
type quotaRoom struct{ bytes, count int64 }

// quotaRoom returns the room that pt has, or nil if nothing bounds it.
func (c *committer) quotaRoom(pt *partition) *quotaRoom {
	l := pt.t.limits.Load()
	if l == nil || l.rejectBytes == 0 && l.rejectCount == 0 {
		return nil
	}
	st := pt.machine.State()
	start, _, startID := pt.log.Start()
	c.room = quotaRoom{math.MaxInt64, math.MaxInt64}
	if l.rejectCount != 0 {
		from := min(max(segment.MsgID(pt.needed.Load()), startID), st.NextID)
		c.room.count = l.rejectCount - int64(st.NextID-from)
	}
	if l.rejectBytes != 0 {
		from := min(max(segment.Offset(pt.quota.countedFrom.Load()), start), st.End)
		c.room.bytes = l.rejectBytes - int64(st.End-from)
	}
	return &c.room
}

// overQuota says whether p would pass the quota behind what the run has already, and lets the flusher look what is confirmed by now.
func (c *committer) overQuota(room *quotaRoom, r *run, p *Put) bool {
	if room == nil || p.kind.internal() {
		return false
	}
	if int64(r.count)+int64(p.count()) <= room.count && r.puts.bytes+int64(p.bytes) <= room.bytes {
		return false
	}
	c.e.flusher.askQuotas()
	return true
}

// askQuotas lets the flusher look soon.
func (f *flusher) askQuotas() {
	f.quotasAsked.Store(true)
	f.wakeUp()
}

// learnQuotas looks up from where on partitions count.
func (f *flusher) learnQuotas() {
	f.quotasAsked.Store(false)
	for _, pt := range f.e.partitionList() {
		if l := pt.t.limits.Load(); l == nil || l.rejectBytes == 0 {
			continue
		}
		q, needed := &pt.quota, segment.MsgID(pt.needed.Load())
		if needed == q.lookedUp && !q.atEnd && needed != 0 {
			continue
		}
		at, _, err := pt.log.Seek(needed)
		if q.atEnd = errors.Is(err, segment.ErrAtEnd); err != nil && !q.atEnd {
			continue // it is below the start, which counts then; or cannot be read, which others tell
		}
		q.lookedUp = needed
		q.countedFrom.Store(uint64(at))
	}
}
