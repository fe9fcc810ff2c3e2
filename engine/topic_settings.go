package engine

import (
	"context"
	"errors"
	"fmt"

	"penstock/engine/dir"
	"penstock/engine/flush"
	"penstock/engine/meta"
)

// TopicSettings are the settings of a topic that an operator can change; see its fields.
type TopicSettings = meta.TopicSettings

// The values of TopicSettings.QuotaMode and TopicSettings.Durability.
const (
	QuotaReject     = meta.QuotaReject
	QuotaDropOldest = meta.QuotaDropOldest

	DurabilitySynced = meta.DurabilitySynced
)

// ErrTopicSettings says what is wrong with a topic's settings.
var ErrTopicSettings = meta.ErrSettings

// Settings returns the topic's settings as this node knows them.
func (t *Topic) Settings() TopicSettings {
	s := *t.settings.Load()
	s.Partitions, s.Durability = t.Partitions(), meta.DurabilitySynced
	return s
}

// Configure replaces the topic's settings and returns the settings that hold afterwards. s.Version must be that of the
// settings to replace (0: there are none yet), or Configure returns ErrVersion. When it returns nil the settings are
// durable and this node uses them; other nodes of a cluster get them a moment later. If s.Partitions is larger than
// before, partitions are added, and a key may belong to another partition then (PartitionFor). After ErrTopicSettings
// nothing was changed. It takes changing and waits for the disk.
func (t *Topic) Configure(ctx context.Context, s TopicSettings) (TopicSettings, error) {
	if err := s.Validate(); err != nil {
		return t.Settings(), err
	}
	return t.e.members.configureTopic(ctx, t, s)
}

// configure makes s the settings that hold from now on.
func (t *Topic) configure(s TopicSettings) {
	o := &t.e.opts
	own := flush.Limits{
		RetentionBytes: o.RetentionBytes, RetentionCount: int64(o.RetentionCount), RetentionAge: o.RetentionAge,
	}
	t.settings.Store(&s)
	t.shared.Limits.Store(flush.LimitsOf(&s, own))
	t.e.store.Flusher().AskQuotas()
}

// meta is the content of topic.json for the topic's present state.
func (t *Topic) meta() *dir.Topic {
	m := &dir.Topic{
		Format: dir.TopicFormat, ID: t.shared.ID, Name: t.Name(), Partitions: len(t.partitions()), CreatedNs: t.created,
	}
	if s := t.Settings(); s.Version != 0 {
		m.Settings = s.Stored()
	}
	return m
}

// configureTopic changes the settings in the store, and returns when this node has them.
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

// learnSettings takes the topic's settings from the store. It also writes them to topic.json: after a restart, until
// the node has joined the cluster, the node's own limits must not remove messages that the topic's settings keep.
func (t *Topic) learnSettings(mt *meta.Topic) {
	s := mt.EffectiveSettings().Stored()
	if s == *t.settings.Load() {
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

// createTopicFiles writes a topic's directory and topic.json durably. That must happen before anything in the topic is
// acknowledged.
func (e *Engine) createTopicFiles(m *dir.Topic) error {
	e.host.Lock(&e.catalog)
	defer e.catalog.Unlock()
	return m.Write(e.disk)
}
