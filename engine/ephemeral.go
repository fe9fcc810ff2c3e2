package engine

import (
	"context"
	"errors"
	"time"

	"penstock/engine/base"
	"penstock/segment"
)

// An ephemeral topic ends with its last channel, and an ephemeral channel with its last consumer. Channels that are
// ephemeral are in no log, so those of a leader that is gone are gone, too; and if no consumer comes to the new leader,
// nothing would ever end the topic.

// ephemeralGrace is how long a new leader waits for the consumers of an ephemeral topic. Clients of NSQ ask their
// lookupds for the topic's nodes once a minute.
const ephemeralGrace = 2 * time.Minute

// endLater ends the topic after a while, if it is ephemeral, and this node has begun to lead partition 0 in place of
// another one, and nobody has made a channel by then. Partitions of a topic have the same consumers.
func (t *Topic) endLater(partition uint32, epoch segment.Epoch) {
	if partition != 0 || epoch <= 1 || !base.Ephemeral(t.Name()) {
		return
	}
	cn := t.e.cluster
	cn.Spawn(func() {
		if t.e.host.Pause(t.e.opts.ephemeralGrace, cn.Ctx.Done()) && t.partitions()[0].ServingEpoch() == epoch {
			t.dropIfEphemeral()
		}
	})
}

// dropIfEphemeral deletes the topic if it is ephemeral and has lost its last channel. It waits for the deletion.
func (t *Topic) dropIfEphemeral() {
	if !base.Ephemeral(t.Name()) {
		return
	}
	t.mu.Lock()
	n := len(t.channels)
	t.mu.Unlock()
	if n == 0 {
		if err := t.e.DeleteTopic(context.Background(), t.Name()); err != nil && !errors.Is(err, ErrNoTopic) &&
			!errors.Is(err, ErrClosed) {
			t.e.log.Warn("an ephemeral topic could not be deleted", "topic", t.Name(), "error", err)
		}
	}
}
