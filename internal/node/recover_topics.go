package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/node/aside"
	"penstock/internal/node/datadir"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/internal/node/topic"
	"penstock/segment"
)

// topicRecovery makes topics and their partitions from topic.json files and from the batches that recovery replayed. It
// runs on the goroutine of Open, before any other goroutine of the engine, and needs no lock. It only moves directories
// of deleted topics to the trash and writes nothing else, so after a crash it can simply run again.
type topicRecovery struct {
	*partition.Recovery
	e *Engine
}

// recover opens the commit log and rebuilds all topics from it. If the commit log is damaged, the engine serves the
// data that could be read and stores nothing new (Store.poison).
func (e *Engine) recover() error {
	r := &topicRecovery{partition.NewRecovery(e.store), e}
	defer func() {
		r.Log.Release()
		found := r.Report()
		e.info.RecoveredBytes, e.info.PartitionsReadOnly = found.Bytes, found.ReadOnly
		e.info.CorruptionsAtRecover = found.Corruptions
		e.forgotten, e.logEnd, e.logDamaged = found.Forgotten, found.LogEnd, found.LogDamaged
	}()
	err := r.Replay(e.node.StoreID(), e.node.Level())
	if errors.Is(err, clog.ErrForgotten) {
		return fmt.Errorf("engine: %w: %s", err, forgottenHelp)
	}
	if err == nil {
		err = e.checkMemory(r.Log.MemoryBytes())
	}
	if err != nil {
		return err
	}
	return r.open()
}

// open makes topics and partitions from the metadata and from the replayed batches.
func (r *topicRecovery) open() error {
	e := r.e
	each := func(n int, do func(i int)) { platform.Each(e.host, n, do) }
	metas, err := datadir.ListTopics(e.disk, e.log, each, func(name string, err error) {
		id, parseErr := uuid.Parse(name)
		if parseErr == nil && r.sweep(id, err) {
			return
		}
		e.log.Warn("a directory under topics/ is not a topic's; it is left as it is and not served",
			"directory", name, "error", err)
		if parseErr == nil {
			e.members.noteUnreadable(id)
		}
	})
	if err != nil {
		return err
	}
	if err := r.mustHaveLog(metas); err != nil {
		return err
	}
	if err := r.setAside(metas); err != nil {
		return err
	}
	known := map[uuid.UUID]bool{}
	e.opts.Startup.Enter("opens topics")
	r.OpenLogs(r.wanted(metas))
	defer func() { e.store.Add(r.Opened()) }()
	for i := range metas {
		e.opts.Startup.Count(i, len(metas))
		m := &metas[i]
		known[m.ID] = true
		if r.Log.Dropped(m.ID) {
			r.trash(m.ID, m.Name)
			continue
		}
		if err := r.openTopic(m); err != nil {
			return err
		}
	}
	r.ForgetDamaged()
	return r.quarantine(known)
}

// sweep removes the directory of a topic whose topic.json is not there, if that is what is left of a topic: of one that
// was deleted, or of one whose making a crash has cut short. The latter has no segment, and the commit log does not
// know it; a node of a cluster leaves it to the cluster's metadata. why is why topic.json could not be read.
func (r *topicRecovery) sweep(id uuid.UUID, why error) bool {
	switch {
	case !errors.Is(why, fs.ErrNotExist):
		return false
	case r.Log.Dropped(id):
		r.trash(id, id.String())
		return true
	case r.e.members.others() || r.e.store.Failure() != nil || r.Log.Empty() || datadir.HasPartitions(r.e.disk, id):
		return false
	}
	for _, rp := range r.Log.Partitions() {
		if rp.ID.Topic == id {
			return false
		}
	}
	r.e.log.Info("the beginning of a topic that was never made is removed: a crash had cut its making short", "topic", id)
	r.trash(id, id.String())
	return true
}

// trash moves the files of a deleted topic away. If that fails, the flusher tries again; until it succeeds, the commit
// log keeps all its files, one of which has the topic's tombstone.
func (r *topicRecovery) trash(id uuid.UUID, name string) {
	err := datadir.TrashTopic(r.e.disk, id)
	if err == nil {
		return
	}
	r.e.log.Error("the files of a deleted topic cannot be moved away; it is tried again. Until then the commit log keeps "+
		"all its files, and publishing waits when they are used up: look at this directory, and remove it if nothing helps",
		"topic", name, "directory", datadir.TopicPath(id), "error", err)
	f := r.e.store.Flusher()
	f.TrashLater(id, f.PinFiles())
}

// wanted returns the partitions of these topics that are to be opened.
func (r *topicRecovery) wanted(metas []datadir.Topic) (ids []segment.Identity) {
	for i := range metas {
		m := &metas[i]
		if r.Log.Dropped(m.ID) {
			continue
		}
		for n := range uint32(m.Partitions) {
			if id := (segment.Identity{Topic: m.ID, Partition: n}); r.mayOpen(id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// mayOpen says whether this node has a copy of the partition. In a cluster it has none of a partition that its log does
// not hold: the store will say whether it should have one.
func (r *topicRecovery) mayOpen(id segment.Identity) bool {
	return r.Log.Has(id) || !r.e.members.others()
}

// mustHaveLog returns an error if the directory has segments and the commit log is empty. Only the commit log says
// where the segments end; without it, new batches would overwrite their content. A node of a cluster starts all the
// same: it notes that all its copies are shortened, and setAside moves the segments away.
func (r *topicRecovery) mustHaveLog(metas []datadir.Topic) error {
	if !r.Log.Empty() || r.e.store.Failure() != nil {
		return nil // with a damaged commit log nothing is written; recover has reported it
	}
	others := r.e.members.others()
	for i := range metas {
		for n := range uint32(metas[i].Partitions) {
			in := datadir.PartitionPath(metas[i].ID, n)
			files, err := r.e.disk.ReadDir(in)
			if err != nil {
				continue // no segment was ever written there
			}
			for _, f := range files {
				if !strings.HasSuffix(f.Name(), ".seg") {
					continue
				}
				if others {
					return r.NoteForgotten("clog", "the folder clog is empty or gone, and there are segments")
				}
				return fmt.Errorf("engine: %s has segments, and the commit log, which says where they end, is empty or gone: "+
					"%w: %s", in, clog.ErrForgotten, forgottenHelp)
			}
		}
	}
	return nil
}

// setAside moves segments out of the way that a commit log which has forgotten does not know, so that nothing that is
// written or fetched from now on replaces them. The list of shortened copies is durable already.
func (r *topicRecovery) setAside(metas []datadir.Topic) error {
	if !r.Report().Forgotten {
		return nil
	}
	e := r.e
	for i := range metas {
		m := &metas[i]
		for n := range uint32(m.Partitions) {
			id := segment.Identity{Topic: m.ID, Partition: n}
			end := &r.Log.Partition(id).State
			files, err := segment.Beyond(e.disk, datadir.PartitionPath(id.Topic, id.Partition), id, *end)
			if err != nil {
				return err
			}
			to, err := aside.SetAside(e.disk, aside.Beyond(e.node.NodeID(), m.Name, id, end), files, e.host.Wall())
			if err != nil {
				return err
			}
			if to != "" {
				e.log.Warn("segments hold more of a partition than the commit log, which has forgotten: they were moved out of "+
					"the way, and the copy is fetched from another replica", "topic", m.Name, "partition", n, "to", to)
			}
		}
	}
	return nil
}

// quarantine opens the partitions of topics whose metadata is missing or unreadable; known has the other topics. Such
// topics are not listed and not served, but their batches are written to segments, and each checkpoint includes their
// partitions. After topic.json has been restored, a restart serves them again.
func (r *topicRecovery) quarantine(known map[uuid.UUID]bool) error {
	e := r.e
	for _, rp := range r.Log.Partitions() {
		id := rp.ID.Topic
		if known[id] || r.Log.Dropped(id) {
			continue
		}
		t := e.quarantined[id]
		if t == nil {
			t = topic.New(e.shared, &datadir.Topic{ID: id})
			t.OfPartitions().Quarantined = true
			e.quarantined[id] = t
			e.log.Warn("the commit log holds messages of a topic without metadata: they are kept and not served; restore "+
				"its topic.json and restart; a node of a cluster gets it from the cluster",
				"topic", id, "file", path.Join(datadir.TopicPath(id), datadir.TopicFile))
		}
		pt, err := r.OpenPartition(t.OfPartitions(), rp.ID.Partition)
		if err != nil {
			return err
		}
		t.Local().Add(pt)
	}
	return nil
}

// openTopic makes a topic with its partitions, and lists it. Two directories that claim the same name are an
// error, unless the data directory belongs to a cluster: then the newer topic is listed, and the worker decides about
// the other one.
func (r *topicRecovery) openTopic(m *datadir.Topic) error {
	e := r.e
	old, listed := e.catalog.LookupTopic(m.Name)
	if listed && !(e.members.others() && e.node.Cluster() != uuid.Nil) {
		return fmt.Errorf("engine: topics/%s and topics/%s both say they are topic %q: nothing was changed, move one of "+
			"them away", old.ID(), m.ID, m.Name)
	}
	t := topic.New(e.shared, m)
	for n := range uint32(m.Partitions) {
		if !r.mayOpen(segment.Identity{Topic: m.ID, Partition: n}) {
			t.Local().Add(e.store.NewPartition(t.OfPartitions(), n))
			continue
		}
		pt, err := r.OpenPartition(t.OfPartitions(), n)
		if err != nil {
			return err
		}
		t.Local().Add(pt)
	}
	e.members.opened(t)
	if listed {
		// An earlier process ended while the old topic was being deleted and the new topic of that name already
		// existed. The store knows which of the two was deleted.
		if old.CreatedNs() > t.CreatedNs() {
			old, t = t, old
		}
		e.cluster.topics.unlisted = append(e.cluster.topics.unlisted, old)
	}
	return e.catalog.List(t, nil)
}

// forgottenHelp says what an operator can do about clog.ErrForgotten.
const forgottenHelp = "messages that this node answered OK are missing: put the files back from where they were " +
	"moved to, mount what is not mounted, or restore a backup; to go on without what is missing, run: penstock accept-loss"

// heapBaseBytes is what a node uses besides the state of its channels.
const heapBaseBytes = 32 << 20

// MemoryError says that the state of the channels in the data directory needs more memory than the process may use.
// Nothing was changed.
type MemoryError struct {
	Needs int64 // bytes, at least
	Limit int64 // Options.MaxHeapBytes
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("engine: the deferred messages and confirmations that are stored need %d MiB of memory, and the "+
		"process may use %d MiB besides its buffers: nothing was changed, and nothing is lost; raise the limit of the "+
		"container, the service (MemoryMax) or GOMEMLIMIT", (e.Needs+1<<20-1)>>20, e.Limit>>20)
}

// checkMemory compares what replay found with what the process may use, before the channels are made.
func (e *Engine) checkMemory(state int64) error {
	if limit := e.opts.MaxHeapBytes; limit > 0 && state+heapBaseBytes > limit {
		return &MemoryError{state + heapBaseBytes, limit}
	}
	return nil
}
