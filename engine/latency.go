package engine

// LatencyRecorder is told how long messages took from their publish to their consumer's Finish. Record runs under a channel's lock: it must be
// fast, must not block and must not call the engine.
type LatencyRecorder interface {
	Record(ns int64)
}

// maxTimedCount bounds the messages whose publish times a channel remembers. Beyond it all are forgotten: they are not measured, and nothing else.
const maxTimedCount = 1 << 16

// timedMessages knows when the messages were published that consumers of a channel have: Finish brings an id only.
type timedMessages struct {
	to        LatencyRecorder
	published map[ID]int64 // ns since 1970. Of one that is dropped, not finished, it stays
}

func newTimedMessages(make func() LatencyRecorder) *timedMessages {
	if make == nil {
		return nil
	}
	return &timedMessages{to: make(), published: map[ID]int64{}}
}

func (t *timedMessages) delivered(d *Delivery) {
	if len(t.published) >= maxTimedCount {
		clear(t.published)
	}
	t.published[d.ID] = d.Timestamp
}

func (t *timedMessages) finished(id ID, now int64) {
	if at, ok := t.published[id]; ok {
		delete(t.published, id)
		t.to.Record(max(0, now-at))
	}
}
