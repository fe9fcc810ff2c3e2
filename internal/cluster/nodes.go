package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// ReportDown implements meta.Store. A node that reports the controller takes the controller's place in the same
// transaction, because nobody else would act on the report. After a wrong report the node loses its leaderships, and
// registers as alive again when that is done.
func (s *store) ReportDown(ctx context.Context, node replicate.NodeID, boot uuid.UUID) error {
	return s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		n := st.nodes[node]
		self, ownBoot := s.self()
		switch {
		case n.rev == 0:
			return nil, nil, meta.ErrNotFound
		case n.row.Boot != boot, !n.alive(), node == self:
			return nil, nil, nil // already reported, or another process runs by now
		}
		// All nodes report at once: only the first report is written, or each node would hear of all of them.
		conds := append(st.conds(s.opts.Prefix, node), kv.Cond{Key: s.key(nodeKey(downDir, node)), ModRevision: n.downRev})
		ops := []kv.Op{put(s.key(nodeKey(downDir, node)), processRow{Node: node, Boot: boot})}
		own := st.nodes[self]
		if st.controllerRev != 0 && st.controller == (processRow{Node: node, Boot: boot}) && own.alive() &&
			own.row.Boot == ownBoot {
			conds = append(conds, kv.Cond{Key: s.key(controllerKey), ModRevision: st.controllerRev})
			ops = append(ops, s.controllerOp(self, ownBoot))
		}
		return conds, ops, nil
	})
}

// editNode lets edit change the row of a node. With boot, the row must still be that process's.
func (s *store) editNode(ctx context.Context, id replicate.NodeID, boot uuid.UUID, edit func(*meta.Node)) error {
	return s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		n := st.nodes[id]
		if n.rev == 0 || boot != uuid.Nil && n.row.Boot != boot {
			return nil, nil, meta.ErrNotFound // or another process has registered under this node's name
		}
		row := *n.row
		if edit(&row); row == *n.row {
			return nil, nil, nil
		}
		key := s.key(nodeKey(nodesDir, id))
		return []kv.Cond{{Key: key, ModRevision: n.rev}}, []kv.Op{put(key, row)}, nil
	})
}

// ReportDisk implements meta.Store.
func (s *store) ReportDisk(ctx context.Context, disk meta.DiskState) error {
	self, boot := s.self()
	return s.editNode(ctx, self, boot, func(row *meta.Node) { row.Disk = disk })
}

// ReportData implements meta.Store.
func (s *store) ReportData(ctx context.Context, logged uint64, unknownTopics int, clockDiffers bool) error {
	self, boot := s.self()
	return s.editNode(ctx, self, boot, func(row *meta.Node) {
		row.Logged, row.UnknownTopics, row.ClockDiffers = max(row.Logged, logged), unknownTopics, clockDiffers
	})
}

// Drain implements meta.Store.
func (s *store) Drain(ctx context.Context, node replicate.NodeID, on bool) error {
	return s.editNode(ctx, node, uuid.Nil, func(row *meta.Node) { row.Draining = on })
}

// RemoveNode implements meta.Store. The node must be dead, or it would register again. Its id is not given to any other
// node.
func (s *store) RemoveNode(ctx context.Context, node replicate.NodeID) error {
	return s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		n := st.nodes[node]
		if n.rev == 0 {
			return nil, nil, meta.ErrNotFound
		}
		if n.liveRev != 0 {
			return nil, nil, fmt.Errorf("node %s is alive: stop it first: %w", st.snap.NodeName(node), meta.ErrConflict)
		}
		for id, p := range st.parts.All() {
			if slices.Contains(p.State.Replicas, node) {
				return nil, nil, fmt.Errorf("node %s holds a replica of %s; drain it first: %w",
					st.snap.NodeName(node), partitionOf(st.snap, id), meta.ErrUnsafe)
			}
		}
		for id, m := range st.moves {
			if m.To == node {
				return nil, nil, fmt.Errorf("node %s is about to get a replica of %s; cancel that first: %w",
					st.snap.NodeName(node), partitionOf(st.snap, id), meta.ErrUnsafe)
			}
		}
		key, live := s.key(nodeKey(nodesDir, node)), s.key(nodeKey(liveDir, node))
		return []kv.Cond{{Key: key, ModRevision: n.rev}, {Key: live}},
			[]kv.Op{remove(key), remove(s.key(nodeKey(downDir, node)))}, nil
	})
}

// controllerOp returns the write that makes this node the controller for as long as its lease lives.
func (s *store) controllerOp(self replicate.NodeID, boot uuid.UUID) kv.Op {
	return kv.Op{Key: s.key(controllerKey), Value: encode(processRow{Node: self, Boot: boot}), Lease: s.leaseID()}
}

// vacant says whether there is no acting controller: nobody has the controller's row, or a process that a newer process
// of its node has replaced. The lease of the replaced process may live on for a while, and it does nothing.
func vacant(st *state) bool {
	n := st.nodes[st.controller.Node]
	return st.controllerRev == 0 || n.rev == 0 || n.row.Boot != st.controller.Boot
}

// campaign tries to become the controller while there is none. A process that was reported gone may, too: it runs, and
// nobody but a controller takes the report back. Those who reported it may all be dead by now.
func (s *store) campaign(ctx context.Context, st *state) error {
	self, boot := s.self()
	if n := st.nodes[self]; n.rev == 0 || n.row.Boot != boot || n.liveRev == 0 || n.live != boot {
		return nil
	}
	conds := append(st.conds(s.opts.Prefix, self), kv.Cond{Key: s.key(controllerKey), ModRevision: st.controllerRev})
	_, _, err := s.txn(ctx, conds, []kv.Op{s.controllerOp(self, boot)})
	if errors.Is(err, kv.ErrLeaseGone) {
		return nil // keepLease gets a new lease
	}
	return err
}
