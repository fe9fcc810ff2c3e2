package engine

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"penstock/engine/meta"
)

// What a node of a cluster does about topic.json files that it cannot read: the cluster knows each topic, too.

// restoreMetadata gives topics whose topic.json this node cannot read back what that file said: the cluster knows it too. join calls it before the
// copies take part and before anything else runs: a row may count this node in sync with them, and an empty copy that took their place would be elected and
// would cut the whole ones.
func (e *Engine) restoreMetadata(snap *meta.Snapshot) error {
	e.removeUnreadable(snap)
	kept := map[uuid.UUID]map[uint32]*partition{}
	for _, pt := range e.partitionList() {
		if pt.t.quarantined && snap.Deleted[pt.t.uuid] && !slices.Contains(e.cluster.unlisted, pt.t) {
			e.cluster.unlisted = append(e.cluster.unlisted, pt.t) // start deletes it: nobody restores what it lacks
		}
		if pt.t.quarantined && snap.Topics[pt.t.uuid] != nil {
			if kept[pt.t.uuid] == nil {
				kept[pt.t.uuid] = map[uint32]*partition{}
			}
			kept[pt.t.uuid][pt.number] = pt
		}
	}
	for _, id := range sortedIDs(kept) {
		m := topicMetaOf(snap.Topics[id])
		t := newTopic(e, m)
		for n := range uint32(m.Partitions) {
			pt := kept[id][n]
			if pt == nil {
				pt = e.newReplicaPartition(t, n)
			}
			pt.t = t
			t.add(pt)
		}
		if err := e.createTopicFiles(m); err != nil {
			return fmt.Errorf("engine: %s of topic %s could not be read, and not be written anew: %w", topicFile, m.Name, err)
		}
		if old := e.topics[m.Name]; old != nil {
			e.cluster.unlisted = append(e.cluster.unlisted, old)
		}
		e.topics[m.Name] = t
		e.info.CorruptionsAtRecover = append(e.info.CorruptionsAtRecover, fmt.Sprintf("%s/%s could not be read: written anew from the cluster's metadata", topicDir(id), topicFile))
		e.log.Warn("the metadata of a topic could not be read on this node and was written anew from the cluster's; its messages are whole", "topic", m.Name, "uuid", id)
	}
	return nil
}

// removeUnreadable moves away the directories of deleted topics whose metadata does not read and of which the commit log
// knows nothing: the engine has no Topic for them that it could delete. restoreMetadata calls it, before anything else
// runs. The next start tries again to move a directory that cannot be moved now; a crash leaves it where it was, or moved.
func (e *Engine) removeUnreadable(snap *meta.Snapshot) {
	for _, id := range e.cluster.unreadable {
		if !snap.Deleted[id] || e.isQuarantined(id) {
			continue
		}
		if err := trashTopicFiles(e.disk, id); err != nil {
			e.log.Warn("the files of a deleted topic cannot be removed; the next start of this node tries again", "uuid", id, "error", err)
			continue
		}
		e.log.Info("the files of a topic whose metadata cannot be read are removed: the cluster has deleted it", "uuid", id)
	}
	e.cluster.unreadable = nil
}

// isQuarantined says whether this node has logs of a topic that it could not give their topic: see quarantine.
func (e *Engine) isQuarantined(id uuid.UUID) bool {
	return slices.ContainsFunc(e.partitionList(), func(pt *partition) bool { return pt.t.quarantined && pt.t.uuid == id })
}

// topicMetaOf is what topic.json says of a topic of the cluster.
func topicMetaOf(mt *meta.Topic) *topicMeta {
	return &topicMeta{Format: topicFormat, ID: mt.ID, Name: mt.Name, Partitions: mt.Partitions, CreatedNs: mt.CreatedNs, Settings: mt.EffectiveSettings().Stored()}
}
