package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/fold"
	"penstock/internal/node/health"
	"penstock/internal/node/machine"
	"penstock/internal/node/partition"
	"penstock/replicate/wire"
	"penstock/segment"
)

// alone is the membership of a single node. The node leads all partitions, and each topic.json takes the place of the
// metadata store. Changes of a topic are ordered by Topic.changing: see the methods. After a crash a topic has its old
// settings or the new ones; channels that the log of a partition lacks are written at the next start
// (completeChannels).
type alone struct {
	e *Engine
}

func (alone) others() bool             { return false }
func (alone) context() context.Context { return context.Background() }
func (alone) Leased() bool             { return true }

// createTopic makes a topic's files and lists it. Engine.CreateTopic lets only one caller at a time create a topic of
// a name. If the engine closes or the process ends after the files were made, the next start has the topic, although no
// caller was told that it was created.
func (a alone) createTopic(_ context.Context, name string, o TopicOptions) (*Topic, error) {
	e := a.e
	if o.Replicas > 1 {
		return nil, fmt.Errorf("%w: a single node keeps one replica of it, not %d", ErrTopicOptions, o.Replicas)
	}
	t, err := a.makeTopic(name, &o)
	e.mu.Lock()
	switch {
	case e.closed: // Close did not see the new topic, so its puts would never be answered
		e.mu.Unlock()
		if t != nil {
			t.abandon()
		}
		return nil, ErrClosed
	case err != nil:
		e.mu.Unlock()
		return nil, err
	}
	e.list(t)
	e.store.Add(t.partitions())
	e.mu.Unlock()
	a.refuseIfPoisoned(t.partitions())
	return t, nil
}

// refuseIfPoisoned closes the inboxes of partitions that were just listed, if the commit log has failed. When the
// commit log fails, the failure is stored first, and then all listed inboxes are closed. So either that closes these
// inboxes, or this check sees the failure.
func (a alone) refuseIfPoisoned(parts []*partition.Partition) {
	if a.e.store.Failure() == nil {
		return
	}
	for _, pt := range parts {
		pt.CloseAndRefuse(a.e.store.Refusal(), false)
	}
}

// makeTopic makes a topic with its files; it does not list the topic. After an error it moves the files to the trash.
func (a alone) makeTopic(name string, o *TopicOptions) (*Topic, error) {
	e := a.e
	if err := e.store.Failure(); err != nil {
		return nil, err
	}
	m := &datadir.Topic{
		Format: datadir.TopicFormat, ID: e.host.NewUUID(), Name: name, Partitions: o.Partitions,
		CreatedNs: e.now().UnixNano(),
		MadeBy:    o.MadeBy, Settings: o.settings(),
	}
	t := newTopic(e, m)
	if err := a.makeTopicFiles(t, m); err != nil {
		// The files must be removed: a second attempt creates another topic of that name, and the next Open would find
		// both.
		t.abandon()
		return nil, fmt.Errorf("engine: cannot create topic %s: %w", name, errors.Join(err, datadir.TrashTopic(e.disk, m.ID)))
	}
	return t, nil
}

func (a alone) makeTopicFiles(t *Topic, m *datadir.Topic) error {
	if err := a.e.createTopicFiles(m); err != nil {
		return err
	}
	for n := range uint32(m.Partitions) {
		pt, err := a.e.store.NewSolo(&t.shared, n)
		if err != nil {
			return err
		}
		t.add(pt)
	}
	return nil
}

func (a alone) deleteTopic(_ context.Context, name string) error { return a.e.deleteTopicLocal(name) }

// configureTopic implements membership. It takes changing and waits for the disk.
func (a alone) configureTopic(ctx context.Context, t *Topic, s TopicSettings) (TopicSettings, error) {
	a.e.host.Lock(&t.changing)
	defer t.changing.Unlock()
	now := t.Settings()
	switch {
	case t.shared.Deleted.Load():
		return now, ErrDeleted
	case a.e.isClosed():
		return now, ErrClosed
	case s.Version != now.Version:
		return now, ErrVersion
	case s.MinISR > 1:
		return now, fmt.Errorf("%w: min_isr is %d; a single node is one replica", ErrTopicSettings, s.MinISR)
	}
	partitions, err := s.WantedPartitions(now.Partitions, MaxPartitions)
	if err != nil {
		return now, err
	}
	s = s.Stored()
	s.Version++
	m := t.meta()
	m.Settings, m.Partitions = s, partitions
	// topic.json is replaced as a whole: a crash leaves the old settings or the new ones.
	store := func() error {
		if err := a.e.createTopicFiles(m); err != nil {
			return fmt.Errorf("engine: the settings of topic %s could not be stored; they stay as they were, unless the "+
				"node restarts before they are changed again: %w", t.Name(), err)
		}
		return nil
	}
	if partitions == now.Partitions {
		err = store()
	} else {
		err = a.grow(ctx, t, partitions, store)
	}
	if err != nil {
		return t.Settings(), err
	}
	t.configure(s)
	return t.Settings(), nil
}

// grow adds partitions to a topic until it has to of them. It calls store to make that number durable. A crash before
// store leaves the topic as it was; a crash after it leaves empty partitions, whose channels completeChannels creates
// at the next start. changing is held.
func (a alone) grow(ctx context.Context, t *Topic, to int, store func() error) error {
	e := a.e
	if err := e.store.Failure(); err != nil {
		return err
	}
	var added []*partition.Partition
	abandon := func(err error) error {
		for _, pt := range added {
			_ = pt.Log().Close() // nothing was written
		}
		return err
	}
	for n := uint32(t.Partitions()); n < uint32(to); n++ {
		pt, err := a.e.store.NewSolo(&t.shared, n)
		if err != nil {
			return abandon(fmt.Errorf("engine: cannot make partition %d of topic %s; it stays as it was: %w", n, t.Name(), err))
		}
		added = append(added, pt)
	}
	if err := store(); err != nil {
		return abandon(err)
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return abandon(ErrClosed)
	}
	e.store.Add(added)
	e.mu.Unlock()
	a.refuseIfPoisoned(added)
	for _, pt := range added {
		if err := pt.WriteControls(ctx, initBatches(t.stateLocal()), func() { t.join(pt) }); err != nil {
			return err
		}
	}
	for _, c := range t.Channels() {
		c.local.ApplyPosts()
		c.local.Wake()
	}
	return nil
}

// createChannel does nothing: the caller goes on with Topic.createChannelLocal, which creates the channel in all
// partitions, since this node leads them all.
func (alone) createChannel(context.Context, *Topic, string, origin) error { return nil }

// deleteChannel deletes the channel in all partitions, since this node leads them all. It takes Topic.changing.
func (alone) deleteChannel(ctx context.Context, t *Topic, name string) error {
	return t.deleteChannelLocal(ctx, name)
}

func (alone) gather(
	ctx context.Context, t *Topic, op wire.Operation, only func(partition uint32) bool, take func([]byte) error,
) error {
	return t.performHere(ctx, op, only, take, t.perform)
}

func (alone) subscribe(_ context.Context, c *Channel, o ConsumerOptions, s Sink) (servedConsumer, error) {
	return c.local.Attach(o, s, false)
}

func (alone) closeTopic(*Topic, error) {}

func (alone) exportMetadata() ([]byte, error) { return nil, nil }

func (alone) noteUnreadable(uuid.UUID) {}

func (alone) opened(t *Topic) { t.restore() }

func (alone) join(context.Context) error { return nil }

// start runs last in Open: it completes channels, starts the goroutines of all channels, and deletes ephemeral topics
// that an earlier process left behind.
func (a alone) start() {
	a.completeChannels()
	a.e.forEachTopic(func(t *Topic) { t.startChannels() })
	a.e.dropEphemeral()
}

// completeChannels creates the channels of partition 0 in partitions whose log lacks them. A log lacks them after a
// crash while the partition or the channel was being added. restore has found these partitions (Topic.incomplete).
func (a alone) completeChannels() {
	a.e.forEachTopic(func(t *Topic) {
		for _, in := range t.incomplete {
			if err := in.pt.WriteControls(context.Background(), [][]fold.Control{in.entries}, nil); err != nil {
				a.e.log.Warn("channels of a topic are not in the log of one of its partitions yet; the next start tries again",
					"topic", t.Name(), "partition", in.pt.Number(), "error", err)
			}
		}
		t.incomplete = nil
	})
}

func (alone) leaveCluster(context.Context) error { return nil }
func (alone) leaveBeforeClose()                  {}
func (alone) close() error                       { return nil }
func (alone) diskJudged(machine.DiskVerdict)     {}

func (alone) describe(*StorageStats)   {}
func (alone) look() *health.Cluster    { return nil }
func (alone) remoteStats() RemoteStats { return RemoteStats{} }
func (alone) snapshot() *meta.Snapshot { return nil }
func (alone) node() meta.Node          { return meta.Node{} }

func (alone) tombstone(context.Context, meta.TombstoneKey, time.Time) error {
	panic("BUG: engine: a tombstone on a single node")
}

// verifySome returns ErrOptions: a single node has no other copy to compare.
func (alone) verifySome(context.Context, *Topic, uint32, segment.Offset) (*Verified, error) {
	return nil, fmt.Errorf("%w: there is one copy only, which the scrub reads", ErrOptions)
}
