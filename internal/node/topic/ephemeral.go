package topic

import (
	"context"
	"errors"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/node/names"
	"penstock/internal/node/partition"
	"penstock/replicate/wire"
	"penstock/segment"
)

// An ephemeral channel ends with its last consumer, and an ephemeral topic with its last channel: on a single node at
// once, in a cluster a while later. When a consumer leaves a leader, its client may be connected to another node still:
// that node has lost the connection for a moment, or has heard of the next leader before this one did. Channels that
// are ephemeral are in no log, so those of a leader that is gone are gone, too; and if no consumer comes to the new
// leader, nothing else would end the topic. A client at a fixed address is known only to the leader that it is
// connected to, so a leader without a channel asks the others before it ends the topic.

const (
	// EphemeralGrace is how long a new leader waits for the consumers of an ephemeral topic. Clients of NSQ ask their
	// lookupds for the topic's nodes once a minute.
	EphemeralGrace = 2 * time.Minute
	// ephemeralPause is how long a leader waits for a consumer that has left: its node subscribes anew within a second.
	ephemeralPause = 5 * time.Second
)

// begun ends the topic after a while, if nobody uses it: this node has begun to lead a partition in place of another
// node, which may have had the last consumer.
func (l *Local) begun(pt *partition.Partition) {
	if epoch := pt.ServingEpoch(); epoch > 1 {
		l.endLater(int(pt.Number()), epoch, l.t.env.Options.EphemeralGrace)
	}
}

// unused ends the topic if it is ephemeral and has lost its last channel.
func (l *Local) unused() {
	if l.t.env.Cluster == nil {
		l.dropIfEphemeral()
		return
	}
	for n, pt := range l.t.PartitionList() {
		if epoch := pt.ServingEpoch(); epoch > 0 {
			l.endLater(n, epoch, min(ephemeralPause, l.t.env.Options.EphemeralGrace))
			return
		}
	}
}

// endLater ends the topic after wait, if it is ephemeral, and no leader has a channel of it by then, and this node has
// led the partition all the time. As long as a leader that lives does not answer, or the deletion fails, it tries
// again.
func (l *Local) endLater(partition int, epoch segment.Epoch, wait time.Duration) {
	if !names.Ephemeral(l.t.Name()) {
		return
	}
	cl := l.t.env.Cluster
	cl.Spawn(func() {
		for l.t.env.Host.Pause(wait, cl.Ctx.Done()) && l.t.PartitionList()[partition].ServingEpoch() == epoch {
			used, err := l.usedAtLeaders(cl.Ctx)
			if used || errors.Is(err, errs.ErrDeleted) || err == nil && l.dropIfEphemeral() {
				return
			}
			wait = min(ephemeralPause, l.t.env.Options.EphemeralGrace)
		}
	})
}

// usedAtLeaders says whether a leader of the topic has an ephemeral channel of it. Partitions without a living leader
// have no channels.
func (l *Local) usedAtLeaders(ctx context.Context) (used bool, err error) {
	cl := l.t.env.Cluster
	snap, view := cl.Rows.Snapshot(), cl.View()
	led := func(n uint32) bool {
		return view.Serves(snap, snap.Partitions.Get(meta.PartitionID{Topic: l.t.ID(), Partition: n}))
	}
	err = l.t.onLeaders(ctx, wire.Operation{Kind: wire.OpState}, led, func(result []byte) error {
		var s wire.TopicState
		err := wire.DecodeResult(result, &s)
		used = used || s.Ephemeral > 0
		return err
	})
	return used, err
}

// ephemeralCount returns the number of the topic's ephemeral channels on this node.
func (l *Local) ephemeralCount() (n int) {
	for _, c := range l.t.Channels() {
		if c.ephemeral {
			n++
		}
	}
	return n
}

// dropIfEphemeral deletes the topic if it is ephemeral and has lost its last channel. It waits for the deletion, and
// returns false if that failed.
func (l *Local) dropIfEphemeral() bool {
	if !names.Ephemeral(l.t.Name()) {
		return true
	}
	l.mu.Lock()
	n := len(l.channels)
	l.mu.Unlock()
	if n == 0 {
		err := l.t.env.Catalog.DeleteTopic(context.Background(), l.t.Name())
		if err != nil && !errors.Is(err, errs.ErrNoTopic) && !errors.Is(err, errs.ErrClosed) {
			l.t.env.Log.Warn("an ephemeral topic could not be deleted", "topic", l.t.Name(), "error", err)
			return false
		}
	}
	return true
}
