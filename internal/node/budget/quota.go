package budget

import (
	"math"
	"time"

	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/segment"
)

// The committer at the partition's leader enforces a quota in reject mode: it knows the end of the log, and appends
// nothing that would exceed the quota. The quota counts the messages that some channel has not confirmed, not what lies
// behind them: one delayed message leaves the room that its neighbours had. So a quota is never exceeded, and
// confirmations make room. The flusher counts the waiting messages (flush.Waiting) at every tick, and soon after a put
// was refused; until then everything from the oldest such message on counts.

// Room is how many bytes and messages may still be appended to a partition, and of which limits; 0: there is none.
type Room struct{ bytes, count, mostBytes, mostCount int64 }

// Room returns the room that the partition has under its quota. st is the end of its log, flushed is what the flusher
// knows of it. Only the committer calls it.
func (a *Account) Room(st segment.State, log *segment.Log, flushed *flush.Part) Room {
	l := a.topic.Limits.Load()
	if l == nil || l.RejectBytes == 0 && l.RejectCount == 0 {
		return Room{bytes: math.MaxInt64, count: math.MaxInt64}
	}
	start, _, startID := log.Start()
	room := Room{math.MaxInt64, math.MaxInt64, l.RejectBytes, l.RejectCount}
	count := int64(st.NextID - min(max(flushed.Needed(), startID), st.NextID))
	bytes := int64(st.End - min(start, st.End))
	if w := flushed.Waiting(); w != nil && w.End <= st.NextID && w.EndAt <= st.End {
		count = min(count, int64(w.Messages)+int64(st.NextID-w.End))
		bytes = min(bytes, w.Bytes+int64(st.End-w.EndAt))
	}
	if l.RejectCount != 0 {
		room.count = l.RejectCount - count
	}
	if l.RejectBytes != 0 {
		room.bytes = l.RejectBytes - bytes
	}
	return room
}

// Refuses returns an error if so many more messages and bytes would exceed the quota.
func (room *Room) Refuses(count, bytes int64) error {
	switch {
	case count > room.count:
		return &errs.LimitError{
			Err: errs.ErrQuota, What: "with this request the number of the partition's unconfirmed messages",
			Value: room.mostCount - room.count + count, Most: room.mostCount, Setting: "quota-count", OfTopic: true,
		}
	case bytes > room.bytes:
		return &errs.LimitError{
			Err: errs.ErrQuota, What: "with this request the number of the partition's unconfirmed bytes",
			Value: room.mostBytes - room.bytes + bytes, Most: room.mostBytes, Setting: "quota-bytes", OfTopic: true,
		}
	}
	return nil
}

// NoteRefused records that the quota refused a put now, by clock.Clock.Mono.
func (a *Account) NoteRefused(now time.Duration) { a.refusedAt.Store(int64(now)) }

// overQuotaFor is how long after the last put that was refused because of its quota a partition counts as over it.
const overQuotaFor = time.Minute

// OverQuota says whether a put was refused because of the quota in the last overQuotaFor before now, and the topic
// still has one. Any goroutine may call it.
func (a *Account) OverQuota(now time.Duration) bool {
	l, at := a.topic.Limits.Load(), a.refusedAt.Load()
	return l != nil && (l.RejectBytes != 0 || l.RejectCount != 0) && at != 0 && now-time.Duration(at) < overQuotaFor
}
