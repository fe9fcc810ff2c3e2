package part

import (
	"math"

	"penstock/engine/inbox"
)

// A quota in reject mode is enforced by the committer at the partition's leader: it knows the log's end, and appends
// nothing that would pass the quota. What counts is the log from the oldest message that some channel has not confirmed
// to its end. So a quota is never passed, and confirmations make room. To find where the batch of that message begins
// may take a read of a segment: the flusher does it, at every tick and soon after a put was refused.

// quotaRoom is how much may still be appended to a partition.
type quotaRoom struct{ bytes, count int64 }

// quotaRoom returns the room that pt has, or nil if it has no quota. Only the committer calls it, and the result is
// valid until the next call.
func (c *committer) quotaRoom(pt *Partition) *quotaRoom {
	l := pt.topic.Limits.Load()
	if l == nil || l.RejectBytes == 0 && l.RejectCount == 0 {
		return nil
	}
	st := pt.machine.State()
	start, _, startID := pt.log.Start()
	c.room = quotaRoom{math.MaxInt64, math.MaxInt64}
	if l.RejectCount != 0 {
		from := min(max(pt.flush.Needed(), startID), st.NextID)
		c.room.count = l.RejectCount - int64(st.NextID-from)
	}
	if l.RejectBytes != 0 {
		from := min(max(pt.flush.CountedFrom(), start), st.End)
		c.room.bytes = l.RejectBytes - int64(st.End-from)
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
	c.store.flusher.AskQuotas()
	return true
}
