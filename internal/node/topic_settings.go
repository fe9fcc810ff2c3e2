package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/flush"
	"penstock/replicate/wire"
)

// TopicSettings are the settings of a topic that an operator can change. All numbers but Partitions and MinISR are per
// partition.
type TopicSettings = meta.TopicSettings

// The values of TopicSettings.QuotaMode and TopicSettings.Durability.
const (
	QuotaReject     = meta.QuotaReject     // at the quota, publishing fails with ErrQuota
	QuotaDropOldest = meta.QuotaDropOldest // at the quota, the oldest segments are removed, confirmed or not

	DurabilitySynced = meta.DurabilitySynced // the only durability: see Topic.Publish
)

// ErrTopicSettings is wrapped by errors that say what is wrong with a topic's settings. Nothing was changed.
var ErrTopicSettings = meta.ErrSettings

// Settings returns the topic's settings as this node knows them. In a cluster they may lag behind a change that was
// made through another node.
func (t *Topic) Settings() TopicSettings {
	s := *t.settings.Load()
	s.Partitions, s.Durability = t.Partitions(), meta.DurabilitySynced
	return s
}

// Configure replaces the topic's settings and returns the settings that hold afterwards. s.Version must be the version
// of the settings to replace (0: there are none yet), or Configure returns ErrVersion. When Configure returns nil, the
// settings are durable and this node uses them; the other nodes of a cluster get them a moment later. If s.Partitions
// is larger than before, partitions are added, and a key may then belong to another partition (PartitionFor).
//
// After ErrTopicSettings, ErrVersion, ErrTooManyPartitions or ErrDeleted nothing was changed. After any other error the
// change may have been made, or may be found after a restart: read the settings again. Configure waits for the disk, or
// for the metadata store at most Options.PublishTimeout.
func (t *Topic) Configure(ctx context.Context, s TopicSettings) (TopicSettings, error) {
	return t.configureAs(ctx, "", s)
}

func (t *Topic) configureAs(ctx context.Context, token string, s TopicSettings) (TopicSettings, error) {
	if err := s.Validate(); err != nil {
		return t.Settings(), err
	}
	if need, name := s.Level(); need > t.e.Level() {
		return t.Settings(), fmt.Errorf("%w: %s needs feature level %d, because older versions would not obey it; this is "+
			"level %d: upgrade it first", ErrTopicSettings, name, need, t.e.Level())
	}
	if err := t.CheckPartitions(ctx, s.Partitions); err != nil {
		return t.Settings(), err
	}
	if err := t.checkDelays(ctx, &s); err != nil {
		return t.Settings(), err
	}
	done, err := t.e.grow(t, s.Partitions, token)
	if err != nil {
		return t.Settings(), err
	}
	defer done()
	return t.e.members.configureTopic(ctx, t, s)
}

// checkDelays returns an ErrTopicSettings if retention by age would become shorter, and remove delayed messages before
// they are due. Of leaders that do not answer within checkTime it knows nothing.
func (t *Topic) checkDelays(ctx context.Context, s *TopicSettings) error {
	now, next := t.shared.Limits.Load().RetentionAge, t.limitsOf(s).RetentionAge
	if next == 0 || now != 0 && next >= now {
		return nil
	}
	ctx, cancel := t.e.host.WithTimeout(ctx, checkTime)
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
		ErrTopicSettings, next, early, t.Name(), time.UnixMilli(last).UTC().Format(time.RFC3339))
}

// limitsOf returns the limits that the topic has with the settings s.
func (t *Topic) limitsOf(s *TopicSettings) *flush.Limits {
	o := &t.e.opts
	return flush.LimitsOf(s, flush.Limits{
		RetentionBytes: o.RetentionBytes, RetentionCount: int64(o.RetentionCount), RetentionAge: o.RetentionAge,
	})
}

// configure makes s the settings that this node uses from now on. One goroutine at a time calls it for a topic: the one
// that makes the topic; later the worker in a cluster, or the holder of changing on a single node.
func (t *Topic) configure(s TopicSettings) {
	t.settings.Store(&s)
	t.shared.Limits.Store(t.limitsOf(&s))
	t.e.store.Flusher().AskQuotas()
}

// meta returns the content of topic.json for the topic's present state.
func (t *Topic) meta() *datadir.Topic {
	m := &datadir.Topic{
		Format: datadir.TopicFormat, ID: t.shared.ID, Name: t.Name(), Partitions: len(t.partitions()), CreatedNs: t.created,
		MadeBy: t.MadeBy(),
	}
	if s := t.Settings(); s.Version != 0 {
		m.Settings = s.Stored()
	}
	return m
}

// configureTopic changes the settings in the metadata store, and returns when this node has applied them.
func (cn *clusterNode) configureTopic(ctx context.Context, t *Topic, s TopicSettings) (TopicSettings, error) {
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.opts.PublishTimeout)
	defer cancel()
	mt, err := cn.Rows.ConfigureTopic(ctx, t.shared.ID, s)
	switch {
	case errors.Is(err, meta.ErrConflict):
		return t.Settings(), ErrVersion
	case errors.Is(err, meta.ErrNotFound):
		return t.Settings(), ErrDeleted
	case err != nil && mt == nil:
		return t.Settings(), err
	}
	err = cn.Await(ctx, func() bool {
		now := t.Settings()
		return now.Version >= mt.Settings.Version && now.Partitions >= mt.Partitions
	})
	if err != nil {
		return mt.EffectiveSettings(), fmt.Errorf("engine: the settings of topic %s are changed, but this node has not "+
			"heard of it yet: %w", t.Name(), err)
	}
	return mt.EffectiveSettings(), nil
}

// learnSettings applies the topic's settings in the store's row, and who made it. If this node has a copy of any
// partition, learnSettings also writes them to topic.json. Otherwise the node's own limits would hold after a restart
// until the node has joined the cluster, and might remove messages that the topic's settings keep. Only the worker
// calls it.
func (t *Topic) learnSettings(mt *meta.Topic) {
	s := mt.EffectiveSettings().Stored()
	if !t.learnMaker(mt.MadeBy) && s == *t.settings.Load() {
		return
	}
	t.configure(s)
	for _, pt := range t.partitions() {
		if pt.Log() == nil {
			continue
		}
		if err := t.e.createTopicFiles(t.meta()); err != nil {
			t.e.log.Warn("a topic's settings hold, but could not be stored on this node; the cluster has them",
				"topic", t.Name(), "error", err)
		}
		return
	}
}

// createTopicFiles writes a topic's directory and topic.json durably. It must return before any put of the topic is
// answered. It takes catalog and mu, and keeps m.
func (e *Engine) createTopicFiles(m *datadir.Topic) error {
	e.host.Lock(&e.catalog)
	defer e.catalog.Unlock()
	if err := m.Write(e.disk); err != nil {
		return err
	}
	e.mu.Lock()
	if e.noted[m.ID] != nil {
		e.noted[m.ID] = m
	}
	e.mu.Unlock()
	return nil
}
