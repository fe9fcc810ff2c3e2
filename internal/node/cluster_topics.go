package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/partition"
	"penstock/internal/node/topic"
)

// clusterTopics are the topics of the cluster as this node has them: each with all its partitions, and with logs where
// this node is a replica. As the rows of the store say, it makes, grows, deletes and hides them, and opens and retires
// copies.
//
// Recovery and join use it first, on the goroutine of Open; then only the worker does, the goroutine of
// clusterNode.work. So it has no lock. Any goroutine may call partition and placed, and unknown.names. A crash loses
// everything here: the next process gets all rows again.
type clusterTopics struct {
	e  *Engine
	cn *clusterNode

	byID  map[uuid.UUID]*Topic              // topics that this node has
	table atomic.Pointer[meta.Rows[placed]] // the partitions of all of them; replaced as a whole
	// Names of topics for which this process began to make files and failed.
	halfMade map[uuid.UUID]string
	unknown  unknownTopics

	// Topics that Open found and that the catalog does not have: a newer topic has the name, or the cluster deleted the
	// topic and its metadata cannot be read. start passes them to the worker.
	unlisted []*Topic
	// Directories under topics/ that are named by a UUID and whose metadata Open could not read. removeUnreadable
	// handles them.
	unreadable []uuid.UUID
}

// applyTopic makes, grows, deletes or hides this node's part of a topic, as the snapshot says. Only the worker calls
// it.
func (ct *clusterTopics) applyTopic(snap *meta.Snapshot, id uuid.UUID) {
	t, mt := ct.byID[id], snap.Topics[id]
	if t != nil && mt != nil {
		_ = ct.e.catalog.List(t, nil) // closed: nobody looks it up any more
		t.Local().Learn(mt)
	}
	switch {
	case mt != nil && t == nil:
		t, err := ct.makeReplicas(snap, mt)
		if err != nil {
			ct.cn.Log.Error("a topic of the cluster could not be opened on this node; it is tried again",
				"topic", mt.Name, "error", err)
			ct.halfMade[id] = mt.Name
			ct.tryLater(mt)
			return
		}
		delete(ct.halfMade, id)
		ct.unknown.set(id, "")
		ct.add(t)
	case mt != nil && mt.Partitions > t.Partitions():
		if err := ct.expandTopic(snap, mt, t); err != nil {
			ct.cn.Log.Error("new partitions of a topic could not be opened on this node; it is tried again",
				"topic", mt.Name, "error", err)
			ct.tryLater(mt)
		}
	case mt == nil && t == nil && snap.Deleted[id]:
		ct.unknown.set(id, "")
		if name, ok := ct.halfMade[id]; ok && ct.e.store.Failure() == nil { // as in dropTopic
			delete(ct.halfMade, id)
			ct.cn.Spawn(func() { ct.e.catalog.TrashFiles(id, name, func() {}) })
		}
	case mt == nil && t != nil && snap.Deleted[id]:
		ct.remove(id)
		ct.dropTopic(t)
	case mt == nil && t != nil:
		// A topic that the store lacks, but does not list as deleted, keeps its bytes. It only becomes invisible.
		ct.cn.Log.Warn("the cluster does not know a topic of this node's data directory: it is kept and not served",
			"topic", t.Name(), "uuid", id)
		ct.unknown.set(id, t.Name())
		ct.remove(id)
		for _, pt := range t.PartitionList() {
			pt.Replica().End(errs.ErrNoLeader)
		}
		t.Local().Close(errs.ErrDeleted)
		ct.e.catalog.Unlist(t)
	}
}

// applyRow passes a partition's row to its replica. Before that it opens this node's copy if the row names this node as
// a replica; after it, it retires a copy that the row does not name. Only the worker calls it.
func (ct *clusterTopics) applyRow(snap *meta.Snapshot, id meta.PartitionID) {
	pt, row := ct.partition(id), snap.Partitions.Get(id)
	if pt == nil || row == nil {
		return
	}
	mine := slices.Contains(row.State.Replicas, ct.cn.Self.ID)
	if mine && pt.Replica().IsTearingDown() {
		ct.tryLater(snap.Topics[id.Topic], id.Partition)
		return
	}
	if mine && !pt.Replica().Present() {
		switch err := ct.openReplica(ct.byID[id.Topic], pt); {
		case errors.Is(err, errs.ErrClosed):
			return
		case err != nil:
			ct.cn.Log.Error("a copy of a partition could not be opened; it is tried again",
				"topic", pt.Topic().Name, "partition", pt.Number(), "error", err)
			ct.tryLater(snap.Topics[id.Topic], id.Partition)
			return
		}
	}
	pt.Replica().Learn(row)
	if !mine && pt.Replica().Present() {
		ct.cn.Log.Info("a copy of a partition is not needed any more", "topic", pt.Topic().Name, "partition", pt.Number())
		pt.Replica().Retire()
	}
	ct.cn.RemoveIfUnneeded(snap, pt, row)
}

// tryLater makes the worker apply a topic and some of its partitions (none given: all) again after openRetryInterval.
// That is needed when a topic or copy could not be opened, on a full disk for example, or when a row came too early:
// the store has no reason to report the row again.
func (ct *clusterTopics) tryLater(mt *meta.Topic, partitions ...uint32) {
	if mt == nil {
		return
	}
	ch := &meta.Change{Topics: []uuid.UUID{mt.ID}}
	for n := range uint32(mt.Partitions) {
		if len(partitions) == 0 || slices.Contains(partitions, n) {
			ch.Partitions = append(ch.Partitions, meta.PartitionID{Topic: mt.ID, Partition: n})
		}
	}
	ct.cn.Spawn(func() {
		ct.cn.Pause(openRetryInterval)
		if ct.cn.Ctx.Err() == nil {
			ct.cn.changed(ch)
		}
	})
}

// placed is a partition and its topic.
type placed struct {
	*partition.Partition
	topic *Topic
}

func (ct *clusterTopics) partition(id meta.PartitionID) *partition.Partition {
	return ct.placed(id).Partition
}

// placed returns a partition and its topic; the zero value if this node does not know the partition.
func (ct *clusterTopics) placed(id meta.PartitionID) placed {
	if p := ct.table.Load().Get(id); p != nil {
		return *p
	}
	return placed{}
}

// add adds a topic of this node. Only the worker calls it, and start before the worker runs.
func (ct *clusterTopics) add(t *Topic) {
	ct.byID[t.ID()] = t
	ct.addToTable(t, t.PartitionList())
}

// addToTable lists partitions of t in the table.
func (ct *clusterTopics) addToTable(t *Topic, parts []*partition.Partition) {
	table := ct.table.Load().Edit()
	for _, pt := range parts {
		table.Set(pt.Identity(), &placed{pt, t})
	}
	next := table.Rows()
	ct.table.Store(&next)
}

// remove removes a topic and its partitions. Only the worker calls it.
func (ct *clusterTopics) remove(topic uuid.UUID) {
	delete(ct.byID, topic)
	next := ct.table.Load().Without(topic)
	ct.table.Store(&next)
}

// makeReplicas makes this node's part of a topic of the cluster, and lists it. The Topic gets all partitions; those
// that this node replicates also get a log. topic.json is written before anything is stored in the partitions. After an
// error, or a crash in between, files may be left; the worker tries again, or removes them if the topic was deleted.
func (ct *clusterTopics) makeReplicas(snap *meta.Snapshot, mt *meta.Topic) (*Topic, error) {
	if ct.isQuarantined(mt.ID) {
		return nil, fmt.Errorf("engine: there are logs of topic %s on this node whose %s cannot be read; restart the node",
			mt.Name, datadir.TopicFile)
	}
	m := topicMetaOf(mt)
	t := topic.New(ct.e.shared, m)
	var local []*partition.Partition
	for n := range uint32(m.Partitions) {
		pt := ct.e.store.NewPartition(t.OfPartitions(), n)
		t.Local().Add(pt)
		row := snap.Partitions.Get(pt.Identity())
		if row == nil || !slices.Contains(row.State.Replicas, ct.cn.Self.ID) {
			continue
		}
		if err := ct.e.store.OpenEmpty(pt); err != nil {
			t.Local().Abandon()
			return nil, err
		}
		local = append(local, pt)
	}
	if len(local) > 0 {
		if err := ct.e.catalog.WriteFile(m); err != nil {
			t.Local().Abandon()
			return nil, err
		}
	}
	if err := ct.e.catalog.List(t, local); err != nil {
		t.Local().Abandon()
		return nil, err
	}
	return t, nil
}

// expandTopic makes this node's part of the partitions that were added to a topic of the cluster. After an error it can
// be repeated: it goes on with the first partition that is missing.
func (ct *clusterTopics) expandTopic(snap *meta.Snapshot, mt *meta.Topic, t *Topic) error {
	m := t.File()
	m.Partitions = mt.Partitions
	// topic.json comes before anything is in the new partitions: recovery reads their number from it.
	if err := ct.e.catalog.WriteFile(m); err != nil {
		return err
	}
	for n := uint32(t.Partitions()); n < uint32(mt.Partitions); n++ {
		pt := ct.e.store.NewPartition(t.OfPartitions(), n)
		row := snap.Partitions.Get(pt.Identity())
		mine := row != nil && slices.Contains(row.State.Replicas, ct.cn.Self.ID)
		if mine {
			if err := ct.openEmpty(pt); err != nil {
				return err
			}
		}
		t.Local().Add(pt)
		ct.addToTable(t, []*partition.Partition{pt})
		if row != nil {
			pt.Replica().Learn(row)
		}
	}
	return nil
}

// openReplica begins to replicate a partition of a known topic, of which this node has never had a copy or has retired
// its copy. Only the worker calls it.
func (ct *clusterTopics) openReplica(t *Topic, pt *partition.Partition) error {
	if pt.Replica().HasLog() {
		return pt.Replica().OpenAgain()
	}
	if err := ct.e.catalog.WriteFile(t.File()); err != nil {
		return err
	}
	return ct.openEmpty(pt)
}

// openEmpty gives a partition of a known topic an empty log, and lists the partition.
func (ct *clusterTopics) openEmpty(pt *partition.Partition) error {
	if err := ct.e.store.OpenEmpty(pt); err != nil {
		return err
	}
	ct.e.catalog.Locked(func() { ct.e.store.Add([]*partition.Partition{pt}) })
	return nil
}

// dropTopic deletes this node's part of a topic that was deleted in the cluster. The worker calls it; goroutines of its
// own wait for the disk. After a crash in between, the next process finishes the deletion.
func (ct *clusterTopics) dropTopic(t *Topic) {
	ct.e.catalog.NoteDeleted(t.Name())
	t.OfPartitions().Deleted.Store(true) // before the replicas end, so that readers hear why
	var local []*partition.Partition
	for _, pt := range t.PartitionList() {
		pt.Replica().End(errs.ErrDeleted)
		if pt.Log() != nil {
			local = append(local, pt)
		}
	}
	if len(local) == 0 {
		ct.e.catalog.Unlist(t)
		t.Local().Close(errs.ErrDeleted)
		if ct.e.store.Failure() != nil {
			// The commit log could not be read and may contain batches of this topic. A later start that can read it
			// replays them into the topic's files, so the files must stay. That start then deletes the topic.
			ct.e.log.Warn("a deleted topic's files stay until this node starts with a commit log that can be read",
				"topic", t.Name(), "uuid", t.ID())
			return
		}
		// The commit log has nothing of the topic, but a directory may exist: the node may have restarted after it had
		// made the directory and before it wrote anything.
		ct.cn.Spawn(func() { ct.e.catalog.Trash(t, nil, func() {}) })
		return
	}
	ct.cn.Spawn(func() {
		if err := ct.e.catalog.Delete(t, local); err != nil && !errors.Is(err, errs.ErrClosed) {
			ct.e.log.Error("a deleted topic could not be removed from this node; it is removed at the next start",
				"topic", t.Name(), "error", err)
		}
	})
}

// unknownTopics are the topics of this node's data directory that the cluster neither has nor lists as deleted: the
// metadata are of an earlier moment than the data, or were made anew. Their messages are kept and not served. The
// worker calls set; any goroutine may call names. A crash loses nothing: the next process compares again.
type unknownTopics struct {
	byID  map[uuid.UUID]string
	shown atomic.Pointer[[]string]
}

// set notes that the cluster does not know the topic of this name; "": it does, or has deleted it.
func (u *unknownTopics) set(id uuid.UUID, name string) {
	if u.byID[id] == name {
		return
	}
	if u.byID == nil {
		u.byID = map[uuid.UUID]string{}
	}
	if u.byID[id] = name; name == "" {
		delete(u.byID, id)
	}
	names := slices.Sorted(maps.Values(u.byID))
	u.shown.Store(&names)
}

// names returns the names, sorted; read only.
func (u *unknownTopics) names() []string {
	if names := u.shown.Load(); names != nil {
		return *names
	}
	return nil
}
