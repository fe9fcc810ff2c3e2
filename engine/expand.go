package engine

import (
	"context"
	"errors"
	"time"

	"penstock/engine/core"
	"penstock/engine/part"
	"penstock/replicate/wire"
)

// A partition that a topic gets later begins with an empty log. The topic's channels must be in that log before any
// message there is confirmed: a channel added after that would miss earlier messages. So one control batch creates all
// channels, and all begin with the partition. On a single node this batch precedes the first publish. In a cluster the
// partition's leader asks the leader of partition 0 for the channels before it creates any itself; until then messages
// wait.

// maxInitBytes bounds the settings in one control batch.
const maxInitBytes = 64 << 10

// stateLocal returns the state of the topic's channels on this node, without ephemeral ones, which are in no log. In a
// cluster this node leads partition 0, and the state comes from its fold: channels are shut and made again when
// leaderships move, and would look deleted in between.
func (t *Topic) stateLocal() *wire.TopicState {
	if t.e.members.others() {
		return t.partitions()[0].FoldState()
	}
	s := &wire.TopicState{Paused: t.paused.Load()}
	for _, c := range t.Channels() {
		if now, ok := c.local.State(); ok && !c.ephemeral {
			s.Channels = append(s.Channels, now)
		}
	}
	return s
}

// initBatches returns the control entries that create s in an empty log. The first batch creates all channels.
func initBatches(s *wire.TopicState) (all [][]core.Control) {
	var now []core.Control
	for i := range s.Channels {
		now = append(now, core.Control{Kind: core.ChannelCreated, Channel: s.Channels[i].Name})
	}
	now = append(now, core.Control{Kind: core.TopicPaused, Flag: s.Paused})
	size := 0
	for i := range s.Channels {
		c := &s.Channels[i]
		if c.Paused {
			now = append(now, core.Control{Kind: core.ChannelPaused, Channel: c.Name, Flag: true})
		}
		if c.Skipped {
			now = append(now, core.Control{Kind: core.ChannelSkipped, Channel: c.Name, Flag: true})
		}
		if c.Settings.Version == 0 {
			continue
		}
		if size += len(c.Settings.Append(nil)); size > maxInitBytes {
			all, now, size = append(all, now), nil, 0
		}
		now = append(now, core.Control{Kind: core.ChannelConfigured, Channel: c.Name, Settings: &c.Settings})
	}
	return append(all, now)
}

// join lets a new partition be published to and read. It runs on the committer, so no message can be committed between
// the two.
func (t *Topic) join(pt *part.Partition) {
	t.add(pt)
	for _, c := range t.Channels() {
		pt.Follow(c.local, c.name)
	}
}

// incompletePart is a partition whose log lacks channels, and the entries that make them.
type incompletePart struct {
	pt      *part.Partition
	entries []core.Control
}

// findIncomplete finds partitions whose log lacks channels. restore calls it, while nothing else uses the folds.
func (t *Topic) findIncomplete() {
	parts := t.partitions()
	if parts[0].WhyUnread() != nil {
		return // its fold may have channels that were deleted later
	}
	for _, pt := range parts[1:] {
		if pt.WhyUnread() != nil {
			continue
		}
		if entries := pt.Lacks(parts[0]); len(entries) > 0 {
			t.incomplete = append(t.incomplete, incompletePart{pt, entries})
		}
	}
}

// mayLackChannels says whether a partition that never had a channel may be one whose channels other partitions have:
// the topic has grown. Growing raises the version of its settings above 0.
func (t *Topic) mayLackChannels(pt *part.Partition) bool {
	return pt.Number() > 0 && t.settings.Load().Version > 0
}

// leadsUninitialized says whether this node leads the partition, and the partition has never had a channel, although
// other partitions of the topic may have. A partition whose channels were deleted does not count: the leader of
// partition 0 may not have deleted them yet.
func (t *Topic) leadsUninitialized(pt *part.Partition) bool {
	return t.mayLackChannels(pt) && pt.LeadsWithoutChannels() // what a single node lacks completeChannels writes
}

// initRetryPause is the pause between attempts while the leader of partition 0 does not answer.
const initRetryPause = 100 * time.Millisecond

// initPartitionsUntilDone repeats initPartitions until it succeeds or the topic is deleted. It succeeds, too, when this
// node no longer leads the partitions.
func (t *Topic) initPartitionsUntilDone(parts []*part.Partition) {
	cn := t.e.cluster
	for {
		err := t.initPartitions(cn.Ctx, parts)
		if err == nil || errors.Is(err, ErrDeleted) || cn.sleep(cn.Ctx, initRetryPause) != nil {
			return
		}
	}
}

// initPartitions creates the topic's channels, as the leader of partition 0 knows them, in those of parts that have
// none.
func (t *Topic) initPartitions(ctx context.Context, parts []*part.Partition) error {
	var empty []*part.Partition
	for _, pt := range parts {
		if t.leadsUninitialized(pt) {
			empty = append(empty, pt)
		}
	}
	if len(empty) == 0 {
		return nil
	}
	s, err := t.fetchState(ctx, true)
	if err != nil || len(s.Channels) == 0 && !s.Paused {
		return err
	}
	t.e.host.Lock(&t.changing)
	defer t.changing.Unlock()
	for _, pt := range empty {
		if t.shared.Deleted.Load() {
			return ErrDeleted
		}
		if t.leadsUninitialized(pt) {
			err = errors.Join(err, t.initPartition(ctx, pt, s))
		}
	}
	return err
}

// lockInitialized locks changing at a moment when no partition that this node leads lacks the topic's channels. Any
// other control entry would make such a partition look initialized, and channels added later would miss messages. If it
// returns nil, the caller must unlock.
func (t *Topic) lockInitialized(ctx context.Context) error {
	for asked := map[*part.Partition]bool{}; ; {
		t.e.host.Lock(&t.changing)
		var barren []*part.Partition
		for _, pt := range t.partitions() {
			if !asked[pt] && t.leadsUninitialized(pt) {
				barren = append(barren, pt)
				asked[pt] = true // if it still looks uninitialized, the topic has no channels
			}
		}
		if len(barren) == 0 {
			return nil
		}
		t.changing.Unlock()
		if err := t.initPartitions(ctx, barren); err != nil {
			return err
		}
	}
}

// fetchState asks the leader of partition 0 for the topic's state. With adopts, only a leader that knows all partitions
// answers.
func (t *Topic) fetchState(ctx context.Context, adopts bool) (*wire.TopicState, error) {
	s := new(wire.TopicState)
	first := func(n uint32) bool { return n == 0 }
	err := t.e.cluster.gather(ctx, t, wire.Operation{Kind: wire.OpState, Flag: adopts}, first,
		func(result []byte) error { return wire.DecodeResult(result, s) })
	return s, err
}

// initPartition creates s in the log of a partition. changing is held.
func (t *Topic) initPartition(ctx context.Context, pt *part.Partition, s *wire.TopicState) error {
	var channels []*Channel
	for i := range s.Channels {
		c, ok := t.LookupChannel(s.Channels[i].Name)
		if !ok {
			c = newChannel(t, s.Channels[i].Name)
			t.mu.Lock()
			t.channels[c.name] = c
			t.mu.Unlock()
		}
		channels = append(channels, c)
	}
	err := pt.WriteControls(ctx, initBatches(s), func() {
		for _, c := range channels {
			pt.Follow(c.local, c.name)
		}
	})
	if err == nil && s.Paused {
		t.paused.Store(true)
	}
	t.startChannels()
	for _, c := range channels {
		c.local.ApplyPosts()
		c.local.Wake()
	}
	return err
}
