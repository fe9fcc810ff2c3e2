package topic

import (
	"errors"
	"time"

	"penstock/internal/node/fold"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// dueAfterRetention returns how many messages wait for their time that retention by age could remove before they are
// due, and when the last message is due (unix ms). It takes every message to be due as late as the last one, so it may
// count too many. It takes Replica.mu, and may read the disk.
func dueAfterRetention(pt *partition.Partition, age time.Duration) (count int, lastDueMs int64) {
	pt.ReadFold(func(now *fold.Cursors) {
		now.EachWaiting(func(_ segment.MsgID, _ segment.Offset, dueMs int64) { lastDueMs = max(lastDueMs, dueMs) })
	})
	if lastDueMs == 0 || pt.Log() == nil {
		return 0, 0
	}
	at, first, err := pt.Log().SeekTime(lastDueMs*int64(time.Millisecond) - int64(age))
	if err != nil && !errors.Is(err, segment.ErrAtEnd) {
		return 0, 0 // damage, which others report; or the log is closed
	}
	pt.ReadFold(func(now *fold.Cursors) {
		now.EachWaiting(func(id segment.MsgID, from segment.Offset, _ int64) {
			if from != 0 && from < at || from == 0 && id < first {
				count++
			}
		})
	})
	return count, lastDueMs
}
