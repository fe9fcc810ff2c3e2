package engine

import (
	"errors"
	"math"
	"sync/atomic"

	"penstock/engine/inbox"
	"penstock/segment"
)

// A quota in reject mode is enforced by the committer at the partition's leader: it knows the log's end, and appends
// nothing that would pass the quota. What counts is the log from the oldest message that some channel has not confirmed
// to its end. So a quota is never passed, and confirmations make room. To find where the batch of that message begins
// may take a read of a segment: the flusher does it, at every tick and soon after a put was refused.

// quotaState is the part of a partition that the quota needs. The flusher's goroutine owns it; the committer reads
// countedFrom.
type quotaState struct {
	countedFrom atomic.Uint64 // offset of the oldest batch that counts
	lookedUp    segment.MsgID // the message for which countedFrom was found
	atEnd       bool          // that message does not exist yet: countedFrom was the log's end
}

// quotaRoom is how much may still be appended to a partition.
type quotaRoom struct{ bytes, count int64 }

// quotaRoom returns the room that pt has, or nil if it has no quota. Only the committer calls it, and the result is
// valid until the next call.
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

// overQuota says whether p, behind what the run has already, would pass the quota. If so it asks the flusher to look up
// what is confirmed by now.
func (c *committer) overQuota(room *quotaRoom, r *run, p *inbox.Put) bool {
	if room == nil || p.Kind.Internal() {
		return false
	}
	if int64(r.count)+int64(p.Count()) <= room.count && r.puts.Size()+int64(p.Bytes) <= room.bytes {
		return false
	}
	c.e.flusher.askQuotas()
	return true
}

// askQuotas makes the flusher call learnQuotas soon.
func (f *flusher) askQuotas() {
	f.quotasAsked.Store(true)
	f.wakeUp()
}

// learnQuotas updates countedFrom of the partitions that have a quota on bytes.
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
			continue // it lies below the log's start, which counts then; or it cannot be read, which others report
		}
		q.lookedUp = needed
		q.countedFrom.Store(uint64(at))
	}
}
