package partition

import (
	"math"
	"time"

	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/segment"
)

// The committer at the partition's leader enforces a quota in reject mode: it knows the end of the log, and appends
// nothing that would exceed the quota. The quota counts the messages that some channel has not confirmed, not what lies
// behind them: one delayed message leaves the room that its neighbours had. So a quota is never exceeded, and
// confirmations make room. What waits is found by the flusher (flush.Waiting), at every tick and soon after a put was
// refused; until then everything from the oldest such message on counts.

// quotaRoom is how many bytes and messages may still be appended to a partition, and of which limits; 0: there is none.
type quotaRoom struct{ bytes, count, mostBytes, mostCount int64 }

// quotaRoom returns the room that pt has under its quota, or nil if it has no quota. Only the committer calls it. The
// result is valid until the next call.
func (c *committer) quotaRoom(pt *Partition) *quotaRoom {
	l := pt.topic.Limits.Load()
	if l == nil || l.RejectBytes == 0 && l.RejectCount == 0 {
		return nil
	}
	st := pt.machine.State()
	start, _, startID := pt.log.Start()
	c.room = quotaRoom{math.MaxInt64, math.MaxInt64, l.RejectBytes, l.RejectCount}
	count := int64(st.NextID - min(max(pt.flush.Needed(), startID), st.NextID))
	bytes := int64(st.End - min(start, st.End))
	if w := pt.flush.Waiting(); w != nil && w.End <= st.NextID && w.EndAt <= st.End {
		count = min(count, int64(w.Messages)+int64(st.NextID-w.End))
		bytes = min(bytes, w.Bytes+int64(st.End-w.EndAt))
	}
	if l.RejectCount != 0 {
		c.room.count = l.RejectCount - count
	}
	if l.RejectBytes != 0 {
		c.room.bytes = l.RejectBytes - bytes
	}
	return &c.room
}

// overQuota returns an error if p, appended to the puts that r has already, would exceed the quota. Then it also asks
// the flusher to look up what is confirmed by now.
func (c *committer) overQuota(pt *Partition, room *quotaRoom, r *run, p *inbox.Put) error {
	if room == nil || p.Kind.Internal() {
		return nil
	}
	count, bytes := int64(r.count)+int64(p.Count()), r.puts.Size()+int64(p.Bytes)
	if count <= room.count && bytes <= room.bytes {
		return nil
	}
	c.store.flusher.AskQuotas()
	pt.quotaAt.Store(int64(c.store.clock.Mono()))
	if count > room.count {
		return &errs.LimitError{
			Err: errs.ErrQuota, What: "with this request the number of the partition's unconfirmed messages",
			Value: room.mostCount - room.count + count, Most: room.mostCount, Setting: "quota-count", OfTopic: true,
		}
	}
	return &errs.LimitError{
		Err: errs.ErrQuota, What: "with this request the number of the partition's unconfirmed bytes",
		Value: room.mostBytes - room.bytes + bytes, Most: room.mostBytes, Setting: "quota-bytes", OfTopic: true,
	}
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

// EachPassed implements flush.Owner. It takes Replica.mu.
func (pt *Partition) EachPassed(from segment.MsgID, visit func(begin, end segment.MsgID)) (
	end segment.MsgID, endAt segment.Offset, carried int,
) {
	pt.replica.mu.Lock()
	defer pt.replica.mu.Unlock()
	st := pt.machine.State()
	pt.fold.Passed(from, st.NextID, func(r fold.IDRange) { visit(r.From, r.To) })
	return st.NextID, st.End, pt.fold.CarriedCount(from)
}
