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

// imports returns the topics of a data directory that has belonged to a single node until now: they become topics of
// the cluster. nil: the directory belongs to a cluster already.
func (ct *clusterTopics) imports() (all []meta.ImportedTopic) {
	if ct.e.node.Cluster() != uuid.Nil {
		return nil
	}
	for _, t := range ct.e.catalog.Topics() {
		im := meta.ImportedTopic{Topic: meta.Topic{
			ID: t.ID(), Name: t.Name(), Partitions: len(t.PartitionList()), CreatedNs: t.CreatedNs(),
			MadeBy: t.MadeBy(), Settings: t.Settings().Stored(),
		}}
		im.Topic.Settings.MinISR = 0 // a single node's value means nothing for a cluster's replicas
		for _, pt := range t.PartitionList() {
			im.Epochs = append(im.Epochs, pt.Epoch())
		}
		all = append(all, im)
	}
	return all
}

// restoreMetadata restores the topics whose topic.json this node cannot read, from the cluster's metadata, which has
// the same content. join calls it before the copies take part in replication and before any goroutine runs. That order
// matters: a row may count this node's copies as in sync. If empty copies took their place, one of them could be
// elected leader, and the followers would cut their whole logs. A crash in between is harmless: the next start restores
// the rest.
func (ct *clusterTopics) restoreMetadata(snap *meta.Snapshot) error {
	ct.removeUnreadable(snap)
	kept := map[uuid.UUID]map[uint32]*partition.Partition{}
	for _, pt := range ct.e.store.Partitions() {
		id := pt.Topic().ID
		if t := ct.e.quarantined[id]; t != nil && snap.Deleted[id] && !slices.Contains(ct.unlisted, t) {
			ct.unlisted = append(ct.unlisted, t) // start has it deleted instead of restored
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
		t := topic.New(ct.e.shared, m)
		for n := range uint32(m.Partitions) {
			pt := kept[id][n]
			if pt == nil {
				pt = ct.e.store.NewPartition(t.OfPartitions(), n)
			}
			pt.SetTopic(t.OfPartitions())
			t.Local().Add(pt)
		}
		if err := ct.e.catalog.WriteFile(m); err != nil {
			return fmt.Errorf("engine: %s of topic %s could not be read, and not be written anew: %w",
				datadir.TopicFile, m.Name, err)
		}
		if old, ok := ct.e.catalog.LookupTopic(m.Name); ok {
			ct.unlisted = append(ct.unlisted, old)
		}
		if err := ct.e.catalog.List(t, nil); err != nil {
			return err
		}
		ct.e.info.CorruptionsAtRecover = append(ct.e.info.CorruptionsAtRecover,
			fmt.Sprintf("%s/%s could not be read: written anew from the cluster's metadata",
				datadir.TopicPath(id), datadir.TopicFile))
		ct.e.log.Warn("the metadata of a topic could not be read on this node and was written anew from the cluster's; its "+
			"messages are whole",
			"topic", m.Name, "uuid", id)
	}
	return nil
}

// removeUnreadable moves the directories of deleted topics to the trash if their metadata cannot be read and the commit
// log has no batch of them. For such a topic there is no Topic through which the engine could delete it.
// restoreMetadata calls removeUnreadable before any goroutine runs. If a directory cannot be moved now, the next start
// tries again. A crash leaves each directory in its old or its new place.
func (ct *clusterTopics) removeUnreadable(snap *meta.Snapshot) {
	for _, id := range ct.unreadable {
		if !snap.Deleted[id] || ct.isQuarantined(id) {
			continue
		}
		if err := datadir.TrashTopic(ct.e.disk, id); err != nil {
			ct.e.log.Warn("the files of a deleted topic cannot be removed; the next start of this node tries again",
				"uuid", id, "error", err)
			continue
		}
		ct.e.log.Info("the files of a topic whose metadata cannot be read are removed: the cluster has deleted it",
			"uuid", id)
	}
	ct.unreadable = nil
}

// sortedIDs returns the keys of m in order, so that a simulation with the same seed takes the same steps.
func sortedIDs[V any](m map[uuid.UUID]V) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

// isQuarantined says whether this node has logs of a topic whose metadata it could not read: see
// topicRecovery.quarantine.
func (ct *clusterTopics) isQuarantined(id uuid.UUID) bool {
	return slices.ContainsFunc(ct.e.store.Partitions(), func(pt *partition.Partition) bool {
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
