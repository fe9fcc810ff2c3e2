package engine

// LatencyRecorder records the time from a message's publish to its Finish. Record runs under a channel's lock: it must
// be fast, must not block and must not call the engine.
type LatencyRecorder interface {
	Record(ns int64)
}

// maxTimedCount bounds the messages whose publish times a channel remembers. When it is reached the channel forgets all
// of them, and these messages are not measured.
const maxTimedCount = 1 << 16

// timedMessages has the publish times of the messages that a channel's consumers have, because Finish brings only an
// id. Channel.mu guards it.
type timedMessages struct {
	to        LatencyRecorder
	published map[ID]int64 // ns since 1970; messages that are dropped, not finished, stay
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
