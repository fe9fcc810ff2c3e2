package channel

import "penstock/internal/node/message"

// maxTimedCount bounds the number of messages whose publish times a channel remembers. When a channel reaches it, the
// channel forgets all of them, and their latencies are not recorded.
const maxTimedCount = 1 << 16

// timedMessages holds the publish times of the messages that a channel's consumers have, because Finish brings only an
// id. Channel.mu guards it. A crash loses it: a message that is delivered again is measured from its publish time
// again.
type timedMessages struct {
	make      func() message.LatencyRecorder
	recorder  message.LatencyRecorder // nil: not made yet
	published map[message.ID]int64    // ns since 1970; requeued and timed-out messages stay in the map
}

// newTimedMessages returns nil if make is nil: then no latencies are recorded.
func newTimedMessages(make func() message.LatencyRecorder) *timedMessages {
	if make == nil {
		return nil
	}
	return &timedMessages{make: make, published: map[message.ID]int64{}}
}

// Recorder returns the channel's recorder. It asks the program for it when somebody needs it: a channel is made with
// locks held on which commits depend.
func (t *timedMessages) Recorder() message.LatencyRecorder {
	if t.recorder == nil {
		t.recorder = t.make()
	}
	return t.recorder
}

// Delivered notes the publish time of a message that is being delivered.
func (t *timedMessages) Delivered(d *message.Delivery) {
	if len(t.published) >= maxTimedCount {
		clear(t.published)
	}
	t.published[d.ID] = d.Timestamp
}

// Finished records the time from publish to FIN of a message. now is in ns since 1970.
func (t *timedMessages) Finished(id message.ID, now int64) {
	if at, ok := t.published[id]; ok {
		delete(t.published, id)
		t.Recorder().Record(max(0, now-at))
	}
}
