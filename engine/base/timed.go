package base

// maxTimedCount bounds the messages whose publish times a channel remembers. When it is reached the channel forgets all
// of them, and these messages are not measured.
const maxTimedCount = 1 << 16

// TimedMessages has the publish times of the messages that a channel's consumers have, because Finish brings only an
// id. Channel.mu guards it. A crash loses it: what is delivered again is measured from its publish time again.
type TimedMessages struct {
	Recorder  LatencyRecorder
	published map[ID]int64 // ns since 1970; messages that are dropped, not finished, stay
}

// NewTimedMessages returns nil if make is nil: nothing is measured.
func NewTimedMessages(make func() LatencyRecorder) *TimedMessages {
	if make == nil {
		return nil
	}
	return &TimedMessages{Recorder: make(), published: map[ID]int64{}}
}

// Delivered notes when a message that is being delivered was published.
func (t *TimedMessages) Delivered(d *Delivery) {
	if len(t.published) >= maxTimedCount {
		clear(t.published)
	}
	t.published[d.ID] = d.Timestamp
}

// Finished records the time from publish to FIN of a message; now is in ns since 1970.
func (t *TimedMessages) Finished(id ID, now int64) {
	if at, ok := t.published[id]; ok {
		delete(t.published, id)
		t.Recorder.Record(max(0, now-at))
	}
}
