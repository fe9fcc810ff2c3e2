package engine

import (
	"context"
	"errors"
	"time"

	"penstock/engine/base"
	"penstock/segment"
)

// An ephemeral channel ends with its last consumer, and an ephemeral topic with its last channel: on a single node at
// once, in a cluster a while later. When a consumer leaves a leader, its client may be connected to another node still:
// that node has lost the connection for a moment, or has heard of the next leader before this one did. Channels that
// are ephemeral are in no log, so those of a leader that is gone are gone, too; and if no consumer comes to the new
// leader, nothing else would end the topic. Partitions are taken to have the same consumers.

const (
	// ephemeralGrace is how long a new leader waits for the consumers of an ephemeral topic. Clients of NSQ ask their
	// lookupds for the topic's nodes once a minute.
	ephemeralGrace = 2 * time.Minute
	// ephemeralPause is how long a leader waits for a consumer that has left: its node subscribes anew within a second.
	ephemeralPause = 5 * time.Second
)

// begun ends the topic after a while, if this node has begun to lead partition 0 in place of another one.
func (t *Topic) begun(partition uint32, epoch segment.Epoch) {
	if partition == 0 && epoch > 1 {
		t.endLater(0, epoch, t.e.opts.ephemeralGrace)
	}
}

// unused ends the topic if it is ephemeral and has lost its last channel.
func (t *Topic) unused() {
	if t.e.cluster == nil {
		t.dropIfEphemeral()
		return
	}
	for n, pt := range t.partitions() {
		if epoch := pt.ServingEpoch(); epoch > 0 {
			t.endLater(n, epoch, min(ephemeralPause, t.e.opts.ephemeralGrace))
			return
		}
	}
}

// endLater ends the topic after wait, if it is ephemeral, and nobody has made a channel by then, and this node has led
// the partition all the time.
func (t *Topic) endLater(partition int, epoch segment.Epoch, wait time.Duration) {
	if !base.Ephemeral(t.Name()) {
		return
	}
	cn := t.e.cluster
	cn.Spawn(func() {
		if t.e.host.Pause(wait, cn.Ctx.Done()) && t.partitions()[partition].ServingEpoch() == epoch {
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
