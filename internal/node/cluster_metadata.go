package node

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/partition"
	"penstock/internal/node/topic"
)

// A cluster node can restore a topic.json that it cannot read: the cluster's metadata has the same content.

// restoreMetadata restores the topics whose topic.json this node cannot read, from the cluster's metadata. join calls
// it before the copies take part in replication and before any goroutine runs. That order matters: a row may count this
// node's copies as in sync. If empty copies took their place, one of them could be elected leader, and the followers
// would cut their whole logs. A crash in between is harmless: the next start restores the rest.
func (e *Engine) restoreMetadata(snap *meta.Snapshot) error {
	e.removeUnreadable(snap)
	kept := map[uuid.UUID]map[uint32]*partition.Partition{}
	for _, pt := range e.store.Partitions() {
		id := pt.Topic().ID
		if t := e.quarantined[id]; t != nil && snap.Deleted[id] && !slices.Contains(e.cluster.unlisted, t) {
			e.cluster.unlisted = append(e.cluster.unlisted, t) // start has it deleted instead of restored
		}
		if pt.Topic().Quarantined && snap.Topics[id] != nil {
			if kept[id] == nil {
				kept[id] = map[uint32]*partition.Partition{}
			}
			kept[id][pt.Number()] = pt
		}
	}
	for _, id := range sortedIDs(kept) {
		m := topicMetaOf(snap.Topics[id])
		t := topic.New(e.shared, m)
		for n := range uint32(m.Partitions) {
			pt := kept[id][n]
			if pt == nil {
				pt = e.store.NewPartition(t.OfPartitions(), n)
			}
			pt.SetTopic(t.OfPartitions())
			t.Local().Add(pt)
		}
		if err := e.createTopicFiles(m); err != nil {
			return fmt.Errorf("engine: %s of topic %s could not be read, and not be written anew: %w",
				datadir.TopicFile, m.Name, err)
		}
		if old := e.topics[m.Name]; old != nil {
			e.cluster.unlisted = append(e.cluster.unlisted, old)
		}
		e.list(t)
		e.info.CorruptionsAtRecover = append(e.info.CorruptionsAtRecover,
			fmt.Sprintf("%s/%s could not be read: written anew from the cluster's metadata",
				datadir.TopicPath(id), datadir.TopicFile))
		e.log.Warn("the metadata of a topic could not be read on this node and was written anew from the cluster's; its "+
			"messages are whole",
			"topic", m.Name, "uuid", id)
	}
	return nil
}

// removeUnreadable moves the directories of deleted topics to the trash if their metadata cannot be read and the commit
// log has no batch of them. For such a topic there is no Topic through which the engine could delete it.
// restoreMetadata calls removeUnreadable before any goroutine runs. If a directory cannot be moved now, the next start
// tries again. A crash leaves each directory in its old or its new place.
func (e *Engine) removeUnreadable(snap *meta.Snapshot) {
	for _, id := range e.cluster.unreadable {
		if !snap.Deleted[id] || e.isQuarantined(id) {
			continue
		}
		if err := datadir.TrashTopic(e.disk, id); err != nil {
			e.log.Warn("the files of a deleted topic cannot be removed; the next start of this node tries again",
				"uuid", id, "error", err)
			continue
		}
		e.log.Info("the files of a topic whose metadata cannot be read are removed: the cluster has deleted it", "uuid", id)
	}
	e.cluster.unreadable = nil
}

// sortedIDs returns the keys of m in order, so that a simulation with the same seed takes the same steps.
func sortedIDs[V any](m map[uuid.UUID]V) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

// isQuarantined says whether this node has logs of a topic whose metadata it could not read: see
// topicRecovery.quarantine.
func (e *Engine) isQuarantined(id uuid.UUID) bool {
	return slices.ContainsFunc(e.store.Partitions(), func(pt *partition.Partition) bool {
		return pt.Topic().Quarantined && pt.Topic().ID == id
	})
}

// topicMetaOf returns the content of topic.json for a topic of the cluster.
func topicMetaOf(mt *meta.Topic) *datadir.Topic {
	return &datadir.Topic{
		Format: datadir.TopicFormat, ID: mt.ID, Name: mt.Name, Partitions: mt.Partitions, CreatedNs: mt.CreatedNs,
		MadeBy: mt.MadeBy, Settings: mt.EffectiveSettings().Stored(),
	}
}
