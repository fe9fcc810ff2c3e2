package cluster

import (
	"context"
	"slices"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/segment"
)

// The metadata can be older than the logs: the embedded etcd is on the disk that was put back, or an existing etcd was
// restored. Then who is in sync, and who leads, is of another moment than the logs, as after a restore of the whole
// cluster. A node that registers notices it in three ways: the store is at an older revision than the node has seen;
// the row of the node has an older life of the directory; a log has a newer epoch than its partition's row. The rows
// concerned are then rewritten as after a restore, before the node is live: their leaders compare their logs with those
// of all members before anything is cut, and nobody is refused. If a crash comes between two rows, the next
// registration begins anew, which costs epochs.

// older returns the partitions whose rows may be older than the logs of node self. behind says that the whole store is;
// then these are all partitions that have a copy there, by their rows or by epochs, which has the newest epoch in the
// log of each copy. It has no side effects.
func (s *state) older(self replicate.NodeID, behind bool, epochs map[meta.PartitionID]segment.Epoch) (
	ids []meta.PartitionID,
) {
	for _, id := range s.parts.IDs() {
		row, epoch := s.parts.Get(id), epochs[id]
		if !s.visible(id) {
			continue
		}
		here := epoch > 0 || slices.Contains(row.State.Replicas, self)
		if behind && here || epoch > row.State.Epoch {
			ids = append(ids, id)
		}
	}
	return ids
}

// distrusted returns the row of a partition whose rows are of another moment than its logs: in an epoch above all that
// the row and the log of m (epoch) know, with all replicas as the ISR, which State.Restored makes a leader compare
// itself with. A log that the row does not count on is one of them: it may be the only one that has everything. It has
// no side effects.
func distrusted(
	p *meta.Partition, m replicate.Member, epoch segment.Epoch, nodes map[replicate.NodeID]*meta.Node,
) *meta.Partition {
	next := edit(p)
	if epoch > 0 && !slices.Contains(next.State.Replicas, m.Node) && len(next.State.Replicas) < replicate.MaxReplicaCount {
		next.State.Replicas = append(next.State.Replicas, m.Node)
	}
	var all []replicate.Member
	for _, id := range next.State.Replicas {
		switch n := nodes[id]; {
		case id == m.Node:
			all = append(all, m)
		case n != nil:
			all = append(all, replicate.Member{Node: id, Store: n.Store})
		}
	}
	afterRestore(&next.State, max(epoch, p.State.Epoch)+restoredEpochs, all)
	return next
}

// afterRestore makes the ISR those members of which none is known to have everything, in a new epoch that is above all
// that their logs know.
func afterRestore(s *replicate.State, epoch segment.Epoch, members []replicate.Member) {
	s.Epoch, s.Restored, s.ISR = epoch, epoch, members
}

// distrustOlder rewrites the rows that are older than what n has. It returns false if rows were rewritten, or somebody
// else was faster: then the caller reads again. Each row is rewritten once in a registration.
func (s *store) distrustOlder(
	ctx context.Context, st *state, r *meta.Registration, n *meta.Node, life meta.Life,
) (bool, error) {
	if n.ID == 0 {
		return true, nil // these metadata do not know the node at all: no row counts on it
	}
	now := meta.Seen{Cluster: st.snap.Cluster, Generation: st.snap.Generation, Revision: st.snap.Revision}
	behind := life == meta.LifePast || r.Seen.After(now)
	changed := 0
	for _, id := range st.older(n.ID, behind, r.Epochs) {
		if s.distrusted[id] {
			continue
		}
		row, key := st.parts.Get(id), s.key(partKey(partsDir, id))
		next := distrusted(&row.Partition, replicate.Member{Node: n.ID, Store: n.Store}, r.Epochs[id], st.snap.Nodes)
		ok, _, err := s.txnOn(ctx, st, []kv.Cond{{Key: key, ModRevision: row.rev}},
			[]kv.Op{{Key: key, Value: encodePartition(next)}})
		if !ok || err != nil {
			return false, err
		}
		s.distrusted[id] = true
		changed++
	}
	if changed == 0 {
		return true, nil
	}
	s.log.Warn("the metadata store is of an earlier moment than this node's data, as after a restore: the leaders of the "+
		"partitions concerned compare their logs with those of all replicas before anything is cut. Nothing is lost by "+
		"that; a partition waits for the replicas that do not answer",
		"partitions", changed, "revision", now.Revision, "seen", r.Seen.Revision)
	return false, nil
}
