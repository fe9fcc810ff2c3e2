package delivery

import (
	"runtime"
	"testing"

	"penstock/internal/node/fold"
	"penstock/segment"
)

// What bounds memory counts memory: the estimate is what the fold and the machines of its channels use, not less than
// nine tenths of it, and not more than three times as much.
func TestMemoryBytes(t *testing.T) {
	const count = 1 << 17
	for name, tc := range map[string]struct {
		channels int
		build    func(c *fold.Cursors)
	}{
		"published with a delay": {2, func(c *fold.Cursors) {
			for id := range segment.MsgID(count) {
				c.Publish(id, 1)
				c.PublishDeferred([]fold.DeferredMessage{{ID: id, DueMs: 1 << 40, At: 1}})
			}
		}},
		"given back with a delay": {1, func(c *fold.Cursors) {
			c.Publish(0, count)
			for id := segment.MsgID(0); id < count; id += 4096 {
				ct := fold.Control{Kind: fold.Deferred, Channel: "a"}
				for i := range segment.MsgID(4096) {
					ct.Deferrals = append(ct.Deferrals, fold.Deferral{ID: id + i, DueMs: 1 << 40, Attempts: 1})
				}
				must(t, c.ApplyAt(&ct, count, 0))
			}
		}},
		"confirmed apart": {1, func(c *fold.Cursors) {
			c.Publish(0, count)
			for id := segment.MsgID(1); id < count; id += 2 {
				ct := fold.Control{Kind: fold.Confirmed, Channel: "a", Ranges: []fold.IDRange{{From: id, To: id + 1}}}
				must(t, c.ApplyAt(&ct, count, 0))
			}
		}},
	} {
		before := heapBytes()
		c := new(fold.Cursors)
		machines := make([]*Channel, tc.channels)
		for i := range machines {
			must(t, c.ApplyAt(&fold.Control{Kind: fold.ChannelCreated, Channel: string(rune('a' + i))}, 0, 0))
		}
		tc.build(c)
		for i := range machines {
			machines[i] = NewChannel(ChannelConfig{Name: string(rune('a' + i)), MaxRanges: count, MaxDeferred: count})
			var res Result
			machines[i].Step(1, &Event{
				Kind: EvAddPartition, Cursor: c.Channel(machines[i].cfg.Name).Clone(), Deferred: c.Deferred, End: c.End(),
			}, &res)
		}
		got, want := c.MemoryBytes(), heapBytes()-before
		t.Logf("%s: %d bytes are estimated, %d used: %d for each", name, got, want, want/count)
		if got < want*9/10 || got > 3*want {
			t.Errorf("%s: %d bytes are estimated, %d are used", name, got, want)
		}
		runtime.KeepAlive(machines)
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
