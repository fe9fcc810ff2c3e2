package topic

import (
	"context"
	"errors"
	"time"

	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/partition"
	"penstock/replicate/wire"
)

// A partition that is added to a topic begins with an empty log. The topic's channels must be in that log before any
// message there is confirmed: a channel that is added later would miss earlier messages. So one control batch creates
// all channels, and each of them begins at the start of the partition. On a single node this batch precedes the first
// put. In a cluster, the partition's leader asks the leader of partition 0 for the channels before it creates any
// itself; until then the messages wait.

// maxInitBytes bounds the bytes of channel settings in one control batch.
const maxInitBytes = 64 << 10

// state returns the state of the topic's channels on this node, without ephemeral ones, which are in no log. In a
// cluster the caller makes sure that this node leads partition 0, and the state comes from the fold of its log. The
// channels themselves would not do: they are shut and made again when leaderships move, and would look deleted in
// between.
func (l *Local) state() *wire.TopicState {
	if l.t.env.Cluster != nil {
		s := new(wire.TopicState)
		s.Paused = l.t.PartitionList()[0].ReadChannels(func(cur *fold.Cursor) {
			s.Channels = append(s.Channels, wire.ChannelState{
				Name: cur.Name, Paused: cur.Paused, Skipped: cur.Skipped, Settings: cur.Settings,
			})
		})
		return s
	}
	s := &wire.TopicState{Paused: l.t.paused.Load()}
	for _, c := range l.t.Channels() {
		if now, ok := c.local.State(); ok && !c.ephemeral {
			s.Channels = append(s.Channels, now)
		}
	}
	return s
}

// initBatches returns the control entries that create s in an empty log. The first batch creates all channels.
func initBatches(s *wire.TopicState) (all [][]fold.Control) {
	var now []fold.Control
	for i := range s.Channels {
		now = append(now, fold.Control{Kind: fold.ChannelCreated, Channel: s.Channels[i].Name})
	}
	now = append(now, fold.Control{Kind: fold.TopicPaused, Flag: s.Paused})
	size := 0
	for i := range s.Channels {
		c := &s.Channels[i]
		if c.Paused {
			now = append(now, fold.Control{Kind: fold.ChannelPaused, Channel: c.Name, Flag: true})
		}
		if c.Skipped {
			now = append(now, fold.Control{Kind: fold.ChannelSkipped, Channel: c.Name, Flag: true})
		}
		if c.Settings.Version == 0 {
			continue
		}
		if size += len(c.Settings.Append(nil)); size > maxInitBytes {
			all, now, size = append(all, now), nil, 0
		}
		now = append(now, fold.Control{Kind: fold.ChannelConfigured, Channel: c.Name, Settings: &c.Settings})
	}
	return append(all, now)
}

// join adds a new partition to the topic, so that puts can enter it, and gives it to the channels. It runs on the
// committer, so that no message can be committed between the two.
func (l *Local) join(pt *partition.Partition) {
	l.t.local.Add(pt)
	for _, c := range l.t.Channels() {
		pt.Follow(c.local, c.name)
	}
	l.t.env.News.Raise()
}

// incompletePart is a partition whose log lacks channels, with the entries that create them there.
type incompletePart struct {
	pt      *partition.Partition
	entries []fold.Control
}

// findIncomplete finds partitions whose log lacks channels that partition 0 has, and adds them to incomplete. restore
// calls it, while nothing else uses the folds.
func (l *Local) findIncomplete() {
	parts := l.t.PartitionList()
	if parts[0].WhyUnread() != nil {
		return // the fold of partition 0 may still have channels that were deleted later
	}
	for _, pt := range parts[1:] {
		if pt.WhyUnread() != nil {
			continue
		}
		if entries := pt.Lacks(parts[0]); len(entries) > 0 {
			l.incomplete = append(l.incomplete, incompletePart{pt, entries})
		}
	}
}

// mayLackChannels says whether other partitions may have channels that pt, which never had one, lacks. That can be so
// only if the topic has grown, which raised the version of its settings above 0.
func (l *Local) mayLackChannels(pt *partition.Partition) bool {
	return pt.Number() > 0 && l.t.config.now.Load().Version > 0
}

// leadsUninitialized says whether this node leads the partition, and the partition has never had a channel, although
// other partitions of the topic may have. A partition whose channels were deleted does not count: the leader of
// partition 0 may not have deleted them yet.
func (l *Local) leadsUninitialized(pt *partition.Partition) bool {
	return l.mayLackChannels(pt) && pt.LeadsWithoutChannels() // on a single node false: see Complete
}

// initRetryPause is the pause between attempts of initPartitions while the leader of partition 0 does not answer.
const initRetryPause = 100 * time.Millisecond

// initPartitionsUntilDone repeats initPartitions until it succeeds, the topic is deleted, or the engine closes. It also
// counts as success if this node no longer leads the partitions. It runs on a goroutine of its own.
func (l *Local) initPartitionsUntilDone(parts []*partition.Partition) {
	cl := l.t.env.Cluster
	for {
		err := l.initPartitions(cl.Ctx, parts)
		if err == nil || errors.Is(err, errs.ErrDeleted) || !l.t.env.Host.Pause(initRetryPause, cl.Ctx.Done()) {
			return
		}
	}
}

// initPartitions creates the topic's channels, as the leader of partition 0 knows them, in those of parts that this
// node leads and that have never had a channel. It takes changing, and may wait for other nodes and for commits.
func (l *Local) initPartitions(ctx context.Context, parts []*partition.Partition) error {
	var empty []*partition.Partition
	for _, pt := range parts {
		if l.leadsUninitialized(pt) {
			empty = append(empty, pt)
		}
	}
	if len(empty) == 0 {
		return nil
	}
	s, err := l.t.fetchState(ctx, true)
	if err != nil || len(s.Channels) == 0 && !s.Paused {
		return err
	}
	l.t.env.Host.Lock(&l.changing)
	defer l.changing.Unlock()
	for _, pt := range empty {
		if l.t.shared.Deleted.Load() {
			return errs.ErrDeleted
		}
		if l.leadsUninitialized(pt) {
			err = errors.Join(err, l.initPartition(ctx, pt, s))
		}
	}
	return err
}

// lockInitialized locks changing at a moment when no partition that this node leads still needs the topic's channels.
// If the caller wrote another control entry into such a partition first, the partition would look initialized, and the
// channels that are added later would miss messages. If lockInitialized returns nil, the caller must unlock changing.
func (l *Local) lockInitialized(ctx context.Context) error {
	for asked := map[*partition.Partition]bool{}; ; {
		l.t.env.Host.Lock(&l.changing)
		var barren []*partition.Partition
		for _, pt := range l.t.PartitionList() {
			if !asked[pt] && l.leadsUninitialized(pt) {
				barren = append(barren, pt)
				asked[pt] = true // a partition that looks uninitialized after initPartitions: the topic has no channels
			}
		}
		if len(barren) == 0 {
			return nil
		}
		l.changing.Unlock()
		if err := l.initPartitions(ctx, barren); err != nil {
			return err
		}
	}
}

// fetchState asks the leader of partition 0 for the topic's state. With adopts, a leader that knows fewer partitions
// than this node refuses: see checkPartitionCount.
func (t *Topic) fetchState(ctx context.Context, adopts bool) (*wire.TopicState, error) {
	s := new(wire.TopicState)
	first := func(n uint32) bool { return n == 0 }
	err := t.onLeaders(ctx, wire.Operation{Kind: wire.OpState, Flag: adopts}, first,
		func(result []byte) error { return wire.DecodeResult(result, s) })
	return s, err
}

// initPartition writes the channels and the pause of s into the log of a partition, and gives the partition to these
// channels. changing is held.
func (l *Local) initPartition(ctx context.Context, pt *partition.Partition, s *wire.TopicState) error {
	var channels []*Channel
	for i := range s.Channels {
		c, ok := l.t.LookupChannel(s.Channels[i].Name)
		if !ok {
			c = newChannel(l.t, s.Channels[i].Name)
			l.mu.Lock()
			l.channels[c.name] = c
			l.mu.Unlock()
		}
		channels = append(channels, c)
	}
	err := pt.WriteControls(ctx, initBatches(s), func() {
		for _, c := range channels {
			pt.Follow(c.local, c.name)
		}
	})
	switch {
	case err == nil && s.Paused:
		l.t.paused.Store(true)
	case errors.Is(err, errs.ErrUnknown):
		// The entries may be committed later, and then nobody gives the partition to the channels: the log has them, so
		// nothing is written again.
		l.t.env.Cluster.Spawn(func() { l.reassign(int(pt.Number())) })
	}
	l.Start()
	for _, c := range channels {
		c.local.ApplyPosts()
		c.local.Wake()
	}
	return err
}

// Complete creates the channels of partition 0 in partitions whose log lacks them. A log lacks them after a crash while
// the partition or the channel was being added. Restore has found these partitions (incomplete). A single node calls it
// at the end of its start.
func (l *Local) Complete() {
	for _, in := range l.incomplete {
		if err := in.pt.WriteControls(context.Background(), [][]fold.Control{in.entries}, nil); err != nil {
			l.t.env.Log.Warn("channels of a topic are not in the log of one of its partitions yet; the next start tries again",
				"topic", l.t.Name(), "partition", in.pt.Number(), "error", err)
		}
	}
	l.incomplete = nil
}
