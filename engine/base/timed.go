package base

// maxTimedCount bounds the messages whose publish times a channel remembers. When it is reached the channel forgets all
// of them, and these messages are not measured.
const maxTimedCount = 1 << 16

// timedMessages has the publish times of the messages that a channel's consumers have, because Finish brings only an
// id. Channel.mu guards it.
type TimedMessages struct {
	Recorder  LatencyRecorder
	published map[ID]int64 // ns since 1970; messages that are dropped, not finished, stay
}

func NewTimedMessages(make func() LatencyRecorder) *TimedMessages {
	if make == nil {
		return nil
	}
	return &TimedMessages{Recorder: make(), published: map[ID]int64{}}
}

func (t *TimedMessages) Delivered(d *Delivery) {
	if len(t.published) >= maxTimedCount {
		clear(t.published)
	}
	t.published[d.ID] = d.Timestamp
}

func (t *TimedMessages) Finished(id ID, now int64) {
	if at, ok := t.published[id]; ok {
		delete(t.published, id)
		t.Recorder.Record(max(0, now-at))
	}
}
