package part

import (
	"math"
	"time"

	"penstock/engine/inbox"
)

// The committer at the partition's leader enforces a quota in reject mode: it knows the end of the log, and appends
// nothing that would exceed the quota. The quota counts the log from the oldest message that some channel has not
// confirmed to the end. So a quota is never exceeded, and confirmations make room. It may take a read of a segment to
// find where the batch of that oldest message begins. So the flusher looks it up, at every tick and soon after a put
// was refused.

// quotaRoom is how many bytes and messages may still be appended to a partition.
type quotaRoom struct{ bytes, count int64 }

// quotaRoom returns the room that pt has under its quota, or nil if it has no quota. Only the committer calls it. The
// result is valid until the next call.
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

// overQuota says whether p, appended to the puts that r has already, would exceed the quota. If so, it asks the flusher
// to look up what is confirmed by now.
func (c *committer) overQuota(pt *Partition, room *quotaRoom, r *run, p *inbox.Put) bool {
	if room == nil || p.Kind.Internal() {
		return false
	}
	if int64(r.count)+int64(p.Count()) <= room.count && r.puts.Size()+int64(p.Bytes) <= room.bytes {
		return false
	}
	c.store.flusher.AskQuotas()
	pt.quotaAt.Store(int64(c.store.clock.Mono()))
	return true
}

// overQuotaFor is how long after the last put that was refused because of its quota a partition counts as over it.
const overQuotaFor = time.Minute

// OverQuota says whether a put was refused because of the quota in the last overQuotaFor, and the topic still has one.
// Any goroutine may call it.
func (pt *Partition) OverQuota() bool {
	l, at := pt.topic.Limits.Load(), pt.quotaAt.Load()
	return l != nil && (l.RejectBytes != 0 || l.RejectCount != 0) && at != 0 &&
		pt.store.clock.Mono()-time.Duration(at) < overQuotaFor
}
