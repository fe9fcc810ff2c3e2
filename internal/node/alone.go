package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/internal/node/machine"
	"penstock/internal/node/names"
	"penstock/internal/node/topic"
)

// alone is the membership of a single node. The node leads all partitions, and each topic.json takes the place of the
// metadata store. The topics order their changes themselves (package topic).
type alone struct {
	e *Engine
}

func (alone) others() bool             { return false }
func (alone) context() context.Context { return context.Background() }
func (alone) Leased() bool             { return true }
func (alone) LeaseLeft() time.Duration { return math.MaxInt64 }
func (a alone) Now() int64             { return int64(a.e.host.Awake()) }
func (alone) Lapsed(int64) bool        { return false }

// createTopic makes a topic's files and lists it. Engine.CreateTopic lets only one caller at a time create a topic of
// a name. If the engine closes or the process ends after the files were made, the next start has the topic, although no
// caller was told that it was created.
func (a alone) createTopic(_ context.Context, name string, o TopicOptions) (*Topic, error) {
	e := a.e
	if o.Replicas > 1 {
		return nil, fmt.Errorf("%w: a single node keeps one replica of it, not %d", errs.ErrTopicOptions, o.Replicas)
	}
	t, err := a.makeTopic(name, &o)
	switch {
	case err != nil && e.catalog.Closed():
		return nil, errs.ErrClosed
	case err != nil:
		return nil, err
	}
	if err := e.catalog.List(t, t.PartitionList()); err != nil { // its puts would never be answered
		t.Local().Abandon()
		return nil, err
	}
	e.store.RefuseIfFailed(t.PartitionList())
	return t, nil
}

// makeTopic makes a topic with its files; it does not list the topic. After an error it moves the files to the trash.
func (a alone) makeTopic(name string, o *TopicOptions) (*Topic, error) {
	e := a.e
	if err := e.store.Failure(); err != nil {
		return nil, err
	}
	m := &datadir.Topic{
		Format: datadir.TopicFormat, ID: e.host.NewUUID(), Name: name, Partitions: o.Partitions,
		CreatedNs: e.Now().UnixNano(),
		MadeBy:    o.MadeBy, Settings: o.settings(),
	}
	t := topic.New(e.shared, m)
	if err := a.makeTopicFiles(t, m); err != nil {
		// The files must be removed: a second attempt creates another topic of that name, and the next Open would find
		// both.
		t.Local().Abandon()
		return nil, fmt.Errorf("engine: cannot create topic %s: %w", name, errors.Join(err, datadir.TrashTopic(e.disk, m.ID)))
	}
	return t, nil
}

func (a alone) makeTopicFiles(t *Topic, m *datadir.Topic) error {
	if err := a.e.catalog.WriteFile(m); err != nil {
		return err
	}
	for n := range uint32(m.Partitions) {
		pt, err := a.e.store.NewSolo(t.OfPartitions(), n)
		if err != nil {
			return err
		}
		t.Local().Add(pt)
	}
	return nil
}

func (a alone) deleteTopic(_ context.Context, name string) error {
	t, err := a.e.catalog.BeginDelete(name)
	if err != nil {
		return err
	}
	return a.e.catalog.Delete(t, t.PartitionList())
}

func (alone) noteUnreadable(uuid.UUID) {}

func (alone) opened(t *Topic) { t.Local().Restore() }

func (alone) join(context.Context) error { return nil }

// start runs last in Open: it completes channels, starts the goroutines of all channels, and deletes ephemeral topics
// that an earlier process left behind.
func (a alone) start() {
	all := a.e.catalog.Topics()
	for _, t := range all {
		t.Local().Complete()
	}
	for _, t := range all {
		t.Local().Start()
	}
	for _, t := range all {
		if !names.Ephemeral(t.Name()) {
			continue
		}
		if err := a.e.DeleteTopic(context.Background(), t.Name()); err != nil {
			a.e.log.Warn("an ephemeral topic of the last run could not be deleted", "topic", t.Name(), "error", err)
		}
	}
}

func (alone) leaveCluster(context.Context) error { return nil }
func (alone) leaveBeforeClose()                  {}
func (alone) close() error                       { return nil }
func (alone) diskJudged(machine.DiskVerdict)     {}

func (alone) describe(*StorageStats)   {}
func (alone) look() *health.Cluster    { return nil }
func (alone) snapshot() *meta.Snapshot { return nil }
func (alone) node() meta.Node          { return meta.Node{} }

func (alone) tombstone(context.Context, meta.TombstoneKey, time.Time) error {
	panic("BUG: engine: a tombstone on a single node")
}
