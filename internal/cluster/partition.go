package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// partition returns a partition's row as the watch knows it.
func (s *store) partition(ctx context.Context, id meta.PartitionID) (*state, *partEntry, error) {
	st, _, err := s.topic(ctx, id.Topic)
	if err != nil {
		return nil, nil, err
	}
	if !st.visible(id) || st.parts.Get(id) == nil {
		return nil, nil, meta.ErrNotFound
	}
	return st, st.parts.Get(id), nil
}

// readPartition reads a partition's row from the store itself, because the watch may be behind.
func (s *store) readPartition(ctx context.Context, id meta.PartitionID) (*partEntry, error) {
	e, err := s.get(ctx, partKey(partsDir, id))
	if err != nil {
		return nil, err
	}
	if e.ModRevision == 0 {
		return nil, meta.ErrNotFound
	}
	p, err := decodePartition(id, e.Value)
	if err != nil {
		return nil, fmt.Errorf("cluster: the row of partition %v cannot be read: %w", id, err)
	}
	return &partEntry{Partition: *p, rev: e.ModRevision}, nil
}

// ReadPartition implements meta.Store.
func (s *store) ReadPartition(ctx context.Context, id meta.PartitionID) (*meta.Partition, error) {
	row, err := s.readPartition(ctx, id)
	if err != nil {
		return nil, err
	}
	return &row.Partition, nil
}

// putPartition writes a partition's row if it is unchanged since rev and conds hold.
func (s *store) putPartition(
	ctx context.Context, p *meta.Partition, rev int64, conds []kv.Cond, more ...kv.Op,
) (bool, int64, error) {
	key := s.key(partKey(partsDir, p.ID))
	return s.txn(ctx, append(conds, kv.Cond{Key: key, ModRevision: rev}),
		append(more, kv.Op{Key: key, Value: encodePartition(p)}))
}

// sameLeadership says whether row has the version and the leader that want names.
func sameLeadership(row, want *replicate.State) bool {
	return row.Epoch == want.Epoch && row.Version == want.Version && row.Leader == want.Leader && row.Boot == want.Boot
}

// ChangeISR implements meta.Store.
func (s *store) ChangeISR(ctx context.Context, id meta.PartitionID, want *replicate.State) (replicate.State, error) {
	st, err := s.current()
	if err != nil {
		return replicate.State{}, err
	}
	row := st.parts.Get(id)
	for {
		if row == nil || !sameLeadership(&row.State, want) {
			// The watch may be behind the leader, which learns of its own changes from the answers.
			if row, err = s.readPartition(ctx, id); err != nil {
				return replicate.State{}, err
			}
		}
		if !sameLeadership(&row.State, want) {
			return row.State, outcome(&row.State, want)
		}
		conds, err := s.checkISR(ctx, &row.Partition, want)
		if err != nil {
			return row.State, err
		}
		next := edit(&row.Partition)
		next.State.ISR, next.State.Short = slices.Clone(want.ISR), slices.Clone(want.Short)
		ok, err := s.putISR(ctx, next, row.rev, conds)
		if ok || err != nil {
			return next.State, err
		}
		before := row.rev
		if row, err = s.readPartition(ctx, id); err != nil {
			return replicate.State{}, err
		}
		if row.rev == before { // the row is unchanged: the row of a node changed
			return row.State, meta.ErrConflict
		}
	}
}

// outcome returns nil if row is the result of the proposal want, which was accepted and whose answer was lost;
// otherwise ErrConflict.
func outcome(row, want *replicate.State) error {
	accepted := *want
	accepted.Version++
	if sameLeadership(row, &accepted) && slices.Equal(row.ISR, want.ISR) && slices.Equal(row.Short, want.Short) {
		return nil
	}
	return meta.ErrConflict
}

// checkISR says why the row cannot get the ISR of want. If it can, checkISR returns the conditions to compare: the
// disks of the new members (P10).
func (s *store) checkISR(ctx context.Context, row *meta.Partition, want *replicate.State) ([]kv.Cond, error) {
	st := &row.State
	leads := false
	var conds []kv.Cond
	for i, m := range want.ISR {
		known := slices.Contains(st.ISR, m)
		leads = leads || known && m.Node == st.Leader
		if !slices.Contains(st.Replicas, m.Node) || slices.ContainsFunc(want.ISR[:i], func(o replicate.Member) bool {
			return o.Node == m.Node
		}) {
			return nil, meta.ErrConflict
		}
		if known {
			continue
		}
		e, err := s.get(ctx, nodeKey(nodesDir, m.Node))
		if err != nil {
			return nil, err
		}
		var n meta.Node
		if e.ModRevision == 0 || json.Unmarshal(e.Value, &n) != nil || n.Store != m.Store {
			return nil, fmt.Errorf("the disk of node %s is not the one that was proposed: %w", n.Name, meta.ErrConflict)
		}
		conds = append(conds, kv.Cond{Key: e.Key, ModRevision: e.ModRevision})
	}
	if !leads || len(want.ISR) < min(len(st.ISR), st.MinISR) {
		return nil, fmt.Errorf("an ISR without its leader, or made smaller than min_isr: %w", meta.ErrUnsafe)
	}
	return conds, nil
}

// releaseHung removes node, whose disk hangs, from the ISR together with its leadership, if enough other members
// remain. Otherwise the new leader would wait for it until its silence is proven. It comes back like any follower.
// Every member of the ISR has every committed batch, so none is lost. A hand-over calls it with the row that it is
// about to write; whether the row is still the same, the write decides.
func releaseHung(s *meta.Snapshot, p *meta.Partition, node replicate.NodeID) {
	if n := s.Nodes[node]; n == nil || n.Rank() < meta.DiskHung.Rank() || len(p.State.ISR) <= max(1, p.State.MinISR) {
		return
	}
	p.State.ISR = slices.DeleteFunc(slices.Clone(p.State.ISR), func(m replicate.Member) bool { return m.Node == node })
}

// ReportCopy implements meta.Store. A report about a disk that the node no longer has changes nothing.
func (s *store) ReportCopy(ctx context.Context, id meta.PartitionID, m replicate.Member, is meta.CopyState) error {
	for range maxAttemptCount {
		st, row, err := s.partition(ctx, id)
		if err != nil {
			return err
		}
		n := st.snap.Nodes[m.Node]
		if row.CopyOf(m) == is || is != meta.CopyWhole &&
			(n == nil || n.Store != m.Store || !slices.Contains(row.State.Replicas, m.Node)) {
			return nil
		}
		next := edit(&row.Partition)
		next.SetCopy(m, is)
		ok, revision, err := s.putPartition(ctx, next, row.rev, nil)
		if err != nil {
			return err
		}
		if ok {
			return s.waitRevision(ctx, revision)
		}
		if err := s.waitChange(ctx, st); err != nil {
			return err
		}
	}
	return meta.ErrConflict
}

// ForceLeader implements meta.Store. The node is then the only member of the ISR, so all other replicas adopt its log;
// batches that it lacks are given up. A row below forced/ records that.
func (s *store) ForceLeader(ctx context.Context, id meta.PartitionID, node replicate.NodeID) error {
	for range maxAttemptCount {
		st, row, err := s.partition(ctx, id)
		if err != nil {
			return err
		}
		n := st.snap.Nodes[node]
		if n == nil || !slices.Contains(row.State.Replicas, node) {
			return meta.ErrNotFound
		}
		if !n.Live {
			return fmt.Errorf("node %s is not alive, so it cannot lead: %w", n.Name, meta.ErrTooFewNodes)
		}
		m := replicate.Member{Node: node, Store: n.Store}
		next := edit(&row.Partition)
		lead(next, n)
		next.State.ISR, next.State.Forced = []replicate.Member{m}, next.State.Epoch
		if next.CopyOf(m) != meta.CopyWhole {
			next.SetCopy(m, meta.CopyWhole)
		}
		record := put(s.key(partKey(forcedDir, id)), forcedRow{
			Epoch: next.State.Epoch, Node: node, FormerISR: memberRows(row.State.ISR), AtNs: s.opts.Now().UnixNano(),
		})
		ok, revision, err := s.putPartition(ctx, next, row.rev, st.conds(s.opts.Prefix, node), record)
		if err != nil {
			return err
		}
		if ok {
			s.log.Warn("an operator made a node the leader that may lack acknowledged messages", "partition", id, "leader", node,
				"epoch", next.State.Epoch, "former_isr", row.State.ISR)
			return s.waitRevision(ctx, revision)
		}
		if err := s.waitChange(ctx, st); err != nil {
			return err
		}
	}
	return meta.ErrConflict
}
