package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/partition"
	"penstock/internal/node/topic"
)

// makeReplicas makes this node's part of a topic of the cluster, and lists it. The Topic gets all partitions; those
// that this node replicates also get a log. topic.json is written before anything is stored in the partitions. After an
// error, or a crash in between, files may be left; the worker tries again, or removes them if the topic was deleted.
func (e *Engine) makeReplicas(snap *meta.Snapshot, mt *meta.Topic) (*Topic, error) {
	if e.isQuarantined(mt.ID) {
		return nil, fmt.Errorf("engine: there are logs of topic %s on this node whose %s cannot be read; restart the node",
			mt.Name, datadir.TopicFile)
	}
	m := topicMetaOf(mt)
	t := topic.New(e.shared, m)
	var local []*partition.Partition
	for n := range uint32(m.Partitions) {
		pt := e.store.NewPartition(t.OfPartitions(), n)
		t.Local().Add(pt)
		row := snap.Partitions.Get(pt.Identity())
		if row == nil || !slices.Contains(row.State.Replicas, e.cluster.Self.ID) {
			continue
		}
		if err := e.store.OpenEmpty(pt); err != nil {
			t.Local().Abandon()
			return nil, err
		}
		local = append(local, pt)
	}
	if len(local) > 0 {
		if err := e.createTopicFiles(m); err != nil {
			t.Local().Abandon()
			return nil, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		t.Local().Abandon()
		return nil, errs.ErrClosed
	}
	e.list(t)
	e.store.Add(local)
	return t, nil
}

// expandTopic makes this node's part of the partitions that were added to a topic of the cluster. After an error it can
// be repeated: it goes on with the first partition that is missing.
func (e *Engine) expandTopic(snap *meta.Snapshot, mt *meta.Topic, t *Topic) error {
	m := t.File()
	m.Partitions = mt.Partitions
	// topic.json comes before anything is in the new partitions: recovery reads their number from it.
	if err := e.createTopicFiles(m); err != nil {
		return err
	}
	for n := uint32(t.Partitions()); n < uint32(mt.Partitions); n++ {
		pt := e.store.NewPartition(t.OfPartitions(), n)
		row := snap.Partitions.Get(pt.Identity())
		mine := row != nil && slices.Contains(row.State.Replicas, e.cluster.Self.ID)
		if mine {
			if err := e.openEmpty(pt); err != nil {
				return err
			}
		}
		t.Local().Add(pt)
		e.cluster.addToTable(t, []*partition.Partition{pt})
		if row != nil {
			pt.Replica().Learn(row)
		}
	}
	return nil
}

// openReplica begins to replicate a partition of a known topic, of which this node has never had a copy or has retired
// its copy. Only the worker calls it.
func (e *Engine) openReplica(t *Topic, pt *partition.Partition) error {
	if pt.Replica().HasLog() {
		return pt.Replica().OpenAgain()
	}
	if err := e.createTopicFiles(t.File()); err != nil {
		return err
	}
	return e.openEmpty(pt)
}

// openEmpty gives a partition of a known topic an empty log, and lists the partition.
func (e *Engine) openEmpty(pt *partition.Partition) error {
	if err := e.store.OpenEmpty(pt); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.store.Add([]*partition.Partition{pt})
	return nil
}

// dropTopic deletes this node's part of a topic that was deleted in the cluster. The worker calls it; goroutines of its
// own wait for the disk. After a crash in between, the next process finishes the deletion.
func (e *Engine) dropTopic(t *Topic) {
	e.noteTopicDeleted(t.Name())
	t.OfPartitions().Deleted.Store(true) // before the replicas end, so that readers hear why
	var local []*partition.Partition
	for _, pt := range t.PartitionList() {
		pt.Replica().End(errs.ErrDeleted)
		if pt.Log() != nil {
			local = append(local, pt)
		}
	}
	if len(local) == 0 {
		e.mu.Lock()
		e.unlist(t)
		e.mu.Unlock()
		t.Local().Close(errs.ErrDeleted)
		if e.store.Failure() != nil {
			// The commit log could not be read and may contain batches of this topic. A later start that can read it
			// replays them into the topic's files, so the files must stay. That start then deletes the topic.
			e.log.Warn("a deleted topic's files stay until this node starts with a commit log that can be read",
				"topic", t.Name(), "uuid", t.ID())
			return
		}
		// The commit log has nothing of the topic, but a directory may exist: the node may have restarted after it had
		// made the directory and before it wrote anything.
		e.cluster.Spawn(func() { e.trashTopic(t, nil, func() {}) })
		return
	}
	e.cluster.Spawn(func() {
		if err := e.deleteParts(t, local); err != nil && !errors.Is(err, errs.ErrClosed) {
			e.log.Error("a deleted topic could not be removed from this node; it is removed at the next start",
				"topic", t.Name(), "error", err)
		}
	})
}

// createTopic creates a topic in the cluster, and returns when this node has it. It waits at most
// Options.PublishTimeout.
func (cn *clusterNode) createTopic(ctx context.Context, name string, o TopicOptions) (*Topic, error) {
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.publishTimeout())
	defer cancel()
	mt, err := cn.Rows.CreateTopic(ctx, meta.Topic{
		Name: name, Partitions: o.Partitions, Replicas: cmp.Or(o.Replicas, cn.opts.Replicas),
		CreatedNs: cn.e.Now().UnixNano(), MadeBy: o.MadeBy, Settings: o.settings(),
	})
	if err != nil && !errors.Is(err, meta.ErrExists) {
		return nil, fmt.Errorf("engine: cannot create topic %s: %w", name, err)
	}
	var t *Topic
	err = cn.Await(ctx, func() (ok bool) {
		t, ok = cn.e.LookupTopic(name)
		return ok && (mt == nil || t.ID() == mt.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("engine: topic %s was created, but this node has not heard of it yet: %w", name, err)
	}
	return t, nil
}

// sleep waits for d. It returns ErrClosed if the engine closes meanwhile, and ctx's error if ctx ends.
func (cn *clusterNode) sleep(ctx context.Context, d time.Duration) error {
	slept := cn.e.host.Pause(d, ctx.Done())
	switch {
	case cn.Ctx.Err() != nil:
		return errs.ErrClosed
	case slept:
		return nil
	}
	return ctx.Err()
}

// deleteTopic deletes a topic in the cluster, and returns when this node no longer lists it. It waits at most
// Options.PublishTimeout.
func (cn *clusterNode) deleteTopic(ctx context.Context, name string) error {
	t, ok := cn.e.LookupTopic(name)
	if !ok {
		return cn.e.noTopic(name)
	}
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.publishTimeout())
	defer cancel()
	if err := cn.Rows.DeleteTopic(ctx, t.ID()); err != nil {
		if errors.Is(err, meta.ErrNotFound) { // another request deleted it a moment ago
			return fanout.NewGoneError(0, errs.ErrNoTopic)
		}
		return err
	}
	err := cn.Await(ctx, func() bool {
		now, ok := cn.e.LookupTopic(name)
		return !ok || now != t
	})
	if err != nil {
		return fmt.Errorf("engine: topic %s is deleted, but this node has not removed it yet: %w", name, err)
	}
	return nil
}
