package base

// maxTimedCount bounds the number of messages whose publish times a channel remembers. When a channel reaches it, the
// channel forgets all of them, and their latencies are not recorded.
const maxTimedCount = 1 << 16

// TimedMessages holds the publish times of the messages that a channel's consumers have, because Finish brings only an
// id. Channel.mu guards it. A crash loses it: a message that is delivered again is measured from its publish time
// again.
type TimedMessages struct {
	make      func() LatencyRecorder
	recorder  LatencyRecorder // nil: not made yet
	published map[ID]int64    // ns since 1970; requeued and timed-out messages stay in the map
}

// NewTimedMessages returns nil if make is nil: then no latencies are recorded.
func NewTimedMessages(make func() LatencyRecorder) *TimedMessages {
	if make == nil {
		return nil
	}
	return &TimedMessages{make: make, published: map[ID]int64{}}
}

// Recorder returns the channel's recorder. It asks the program for it when somebody needs it: a channel is made with
// locks held on which commits depend.
func (t *TimedMessages) Recorder() LatencyRecorder {
	if t.recorder == nil {
		t.recorder = t.make()
	}
	return t.recorder
}

// Delivered notes the publish time of a message that is being delivered.
func (t *TimedMessages) Delivered(d *Delivery) {
	if len(t.published) >= maxTimedCount {
		clear(t.published)
	}
	t.published[d.ID] = d.Timestamp
}

// Finished records the time from publish to FIN of a message. now is in ns since 1970.
func (t *TimedMessages) Finished(id ID, now int64) {
	if at, ok := t.published[id]; ok {
		delete(t.published, id)
		t.Recorder().Record(max(0, now-at))
	}
}
