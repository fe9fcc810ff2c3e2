package topic

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/fold"
	"penstock/internal/node/names"
	"penstock/internal/node/partition"
	"penstock/replicate/wire"
	"penstock/segment"
)

// Settings returns the topic's settings as this node knows them. In a cluster they may lag behind a change that was
// made through another node.
func (t *Topic) Settings() meta.TopicSettings {
	s := *t.config.now.Load()
	s.Partitions, s.Durability = t.Partitions(), meta.DurabilitySynced
	return s
}

// ConfigureAs replaces the topic's settings and returns the settings that hold afterwards. s.Version must be the
// version of the settings to replace (0: there are none yet), or it returns ErrVersion. When ConfigureAs returns nil,
// the settings are durable and this node uses them; the other nodes of a cluster get them a moment later. If
// s.Partitions is larger than before, partitions are added, and a key may then belong to another partition
// (PartitionFor).
//
// token is that of a client that does not administer the node; "": any other. Partitions that it adds count for the
// token that has made the topic. It adds none to a topic that counts for nobody: these would be in nobody's share.
//
// After ErrTopicSettings, ErrVersion, ErrTooManyPartitions or ErrDeleted nothing was changed. After any other error the
// change may have been made, or may be found after a restart: read the settings again. ConfigureAs waits for the disk,
// or for the metadata store at most Options.PublishTimeout.
func (t *Topic) ConfigureAs(ctx context.Context, token string, s meta.TopicSettings) (meta.TopicSettings, error) {
	if token != "" && t.MadeBy() == "" && s.Partitions > t.Partitions() && t.env.options().TokenShare < 100 {
		return t.Settings(), fmt.Errorf("%w: topic %s counts for no token, so partitions that %s adds would be in nobody's "+
			"share: ask an administrator, whose token has admin on *, to add them (see the node's setting token-share)",
			meta.ErrSettings, t.Name(), names.Token(token))
	}
	if err := s.Validate(); err != nil {
		return t.Settings(), err
	}
	if need, name := s.Level(); need > t.env.level() {
		return t.Settings(), fmt.Errorf("%w: %s needs feature level %d, because older versions would not obey it; this is "+
			"level %d: upgrade it first", meta.ErrSettings, name, need, t.env.level())
	}
	if err := t.CheckPartitions(ctx, s.Partitions); err != nil {
		return t.Settings(), err
	}
	if err := t.config.checkDelays(ctx, &s); err != nil {
		return t.Settings(), err
	}
	done, err := t.env.Catalog.Grow(t, s.Partitions, token)
	if err != nil {
		return t.Settings(), err
	}
	defer done()
	if t.env.Cluster == nil {
		return t.config.changeHere(ctx, s)
	}
	return t.config.changeInCluster(ctx, s)
}

// File returns the content of topic.json for the topic's present state.
func (t *Topic) File() *datadir.Topic {
	m := &datadir.Topic{
		Format: datadir.TopicFormat, ID: t.shared.ID, Name: t.Name(), Partitions: len(t.PartitionList()),
		CreatedNs: t.created, MadeBy: t.MadeBy(),
	}
	if s := t.Settings(); s.Version != 0 {
		m.Settings = s.Stored()
	}
	return m
}

// config has the settings of a topic as this node uses them, and changes them. One goroutine at a time calls use: the
// one that makes the topic; later the worker in a cluster, or the holder of Local.changing on a single node. Any
// goroutine may read now and call the other methods. After a crash the settings come from topic.json, or from the
// cluster's metadata.
type config struct {
	t   *Topic
	now atomic.Pointer[meta.TopicSettings]
}

// checkDelays returns an ErrTopicSettings if retention by age would become shorter, and remove delayed messages before
// they are due. Of leaders that do not answer within checkTime it knows nothing.
func (c *config) checkDelays(ctx context.Context, s *meta.TopicSettings) error {
	t := c.t
	now, next := t.shared.Limits.Load().RetentionAge, flush.LimitsOf(s, t.env.options().Retention).RetentionAge
	if next == 0 || now != 0 && next >= now {
		return nil
	}
	ctx, cancel := t.env.Host.WithTimeout(ctx, checkTime)
	defer cancel()
	early, last := 0, int64(0)
	op := wire.Operation{Kind: wire.OpState, AgeMs: next.Milliseconds()}
	_ = t.onLeaders(ctx, op, nil, func(result []byte) error {
		var of wire.TopicState
		err := wire.DecodeResult(result, &of)
		early, last = early+of.Early, max(last, of.LastDueMs)
		return err
	})
	if early == 0 {
		return nil
	}
	return fmt.Errorf("%w: retention_age_ms of %v could remove %d delayed messages of topic %s before they are due, "+
		"the last of them at %s: set more, wait until then, or empty the channels first",
		meta.ErrSettings, next, early, t.Name(), time.UnixMilli(last).UTC().Format(time.RFC3339))
}

// use makes s the settings that this node uses from now on.
func (c *config) use(s meta.TopicSettings) {
	c.now.Store(&s)
	c.relimit()
}

// relimit makes the limits those of the topic's settings, and of the node's options where it has none. It repeats that
// if either changed meanwhile, so that no limits of the past stay.
func (c *config) relimit() {
	for done := false; !done; {
		s, o := c.now.Load(), c.t.env.options()
		c.t.shared.Limits.Store(flush.LimitsOf(s, o.Retention))
		done = s == c.now.Load() && o == c.t.env.options()
	}
	c.t.env.Store.Flusher().AskQuotas()
}

// Learn applies the topic's settings in the store's row, and who made it. If this node has a copy of any
// partition, Learn also writes them to topic.json. Otherwise the node's own limits would hold after a restart
// until the node has joined the cluster, and might remove messages that the topic's settings keep. Only the worker
// calls it.
func (l *Local) Learn(mt *meta.Topic) {
	s := mt.EffectiveSettings().Stored()
	if !l.t.tally.learnMaker(mt.MadeBy) && s == *l.t.config.now.Load() {
		return
	}
	l.t.config.use(s)
	for _, pt := range l.t.PartitionList() {
		if pt.Log() == nil {
			continue
		}
		if err := l.t.env.Catalog.WriteFile(l.t.File()); err != nil {
			l.t.env.Log.Warn("a topic's settings hold, but could not be stored on this node; the cluster has them",
				"topic", l.t.Name(), "error", err)
		}
		return
	}
}

// changeInCluster changes the settings in the metadata store, and returns when this node has applied them.
func (c *config) changeInCluster(ctx context.Context, s meta.TopicSettings) (meta.TopicSettings, error) {
	t := c.t
	ctx, cancel := t.env.Host.WithTimeout(ctx, t.env.options().PublishTimeout)
	defer cancel()
	mt, err := t.env.Cluster.Rows.ConfigureTopic(ctx, t.shared.ID, s)
	switch {
	case errors.Is(err, meta.ErrConflict):
		return t.Settings(), errs.ErrVersion
	case errors.Is(err, meta.ErrNotFound):
		return t.Settings(), errs.ErrDeleted
	case err != nil && mt == nil:
		return t.Settings(), err
	}
	err = t.env.Cluster.Await(ctx, func() bool {
		now := t.Settings()
		return now.Version >= mt.Settings.Version && now.Partitions >= mt.Partitions
	})
	if err != nil {
		return mt.EffectiveSettings(), fmt.Errorf("engine: the settings of topic %s are changed, but this node has not "+
			"heard of it yet: %w", t.Name(), err)
	}
	return mt.EffectiveSettings(), nil
}

// changeHere changes the settings on a single node. It takes changing and waits for the disk.
func (c *config) changeHere(ctx context.Context, s meta.TopicSettings) (meta.TopicSettings, error) {
	t := c.t
	t.env.Host.Lock(&t.local.changing)
	defer t.local.changing.Unlock()
	now := t.Settings()
	switch {
	case t.shared.Deleted.Load():
		return now, errs.ErrDeleted
	case t.env.Closed():
		return now, errs.ErrClosed
	case s.Version != now.Version:
		return now, errs.ErrVersion
	case s.MinISR > 1:
		return now, fmt.Errorf("%w: min_isr is %d; a single node is one replica", meta.ErrSettings, s.MinISR)
	}
	partitions, err := s.WantedPartitions(now.Partitions, datadir.MaxPartitions)
	if err != nil {
		return now, err
	}
	s = s.Stored()
	s.Version++
	m := t.File()
	m.Settings, m.Partitions = s, partitions
	// topic.json is replaced as a whole: a crash leaves the old settings or the new ones.
	store := func() error {
		if err := t.env.Catalog.WriteFile(m); err != nil {
			return fmt.Errorf("engine: the settings of topic %s could not be stored; they stay as they were, unless the "+
				"node restarts before they are changed again: %w", t.Name(), err)
		}
		return nil
	}
	if partitions == now.Partitions {
		err = store()
	} else {
		err = t.local.grow(ctx, partitions, store)
	}
	if err != nil {
		return t.Settings(), err
	}
	c.use(s)
	return t.Settings(), nil
}

// grow adds partitions to a topic of a single node until it has to of them. It calls store to make that number durable.
// A crash before store leaves the topic as it was; a crash after it leaves empty partitions, whose channels Complete
// creates at the next start. changing is held.
func (l *Local) grow(ctx context.Context, to int, store func() error) error {
	if err := l.t.env.Store.Failure(); err != nil {
		return err
	}
	var added []*partition.Partition
	abandon := func(err error) error {
		for _, pt := range added {
			_ = pt.Log().Close() // nothing was written
		}
		return err
	}
	for n := uint32(l.t.Partitions()); n < uint32(to); n++ {
		pt, err := l.t.env.Store.NewSolo(&l.t.shared, n)
		if err != nil {
			return abandon(fmt.Errorf("engine: cannot make partition %d of topic %s; it stays as it was: %w",
				n, l.t.Name(), err))
		}
		added = append(added, pt)
	}
	if err := store(); err != nil {
		return abandon(err)
	}
	if err := l.t.env.Catalog.AddCopies(added); err != nil {
		return abandon(err)
	}
	for _, pt := range added {
		if err := pt.WriteControls(ctx, initBatches(l.state()), func() { l.join(pt) }); err != nil {
			return err
		}
	}
	for _, c := range l.t.Channels() {
		c.local.ApplyPosts()
		c.local.Wake()
	}
	return nil
}

// dueAfterRetention returns how many messages wait for their time that retention by age could remove before they are
// due, and when the last message is due (unix ms). It takes every message to be due as late as the last one, so it may
// count too many. It takes Replica.mu, and may read the disk.
func dueAfterRetention(pt *partition.Partition, age time.Duration) (count int, lastDueMs int64) {
	pt.ReadFold(func(now *fold.Cursors) {
		now.EachWaiting(func(_ segment.MsgID, _ segment.Offset, dueMs int64) { lastDueMs = max(lastDueMs, dueMs) })
	})
	if lastDueMs == 0 || pt.Log() == nil {
		return 0, 0
	}
	at, first, err := pt.Log().SeekTime(lastDueMs*int64(time.Millisecond) - int64(age))
	if err != nil && !errors.Is(err, segment.ErrAtEnd) {
		return 0, 0 // damage, which others report; or the log is closed
	}
	pt.ReadFold(func(now *fold.Cursors) {
		now.EachWaiting(func(id segment.MsgID, from segment.Offset, _ int64) {
			if from != 0 && from < at || from == 0 && id < first {
				count++
			}
		})
	})
	return count, lastDueMs
}
