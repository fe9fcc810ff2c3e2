package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// TransferLeader implements meta.Store. It writes only the order of the replicas and the transfer; the leader itself
// hands over, when nothing is under way (internal/node/handover.go).
func (s *store) TransferLeader(
	ctx context.Context, id meta.PartitionID, to replicate.NodeID,
) (chosen replicate.NodeID, err error) {
	if _, _, err := s.partition(ctx, id); err != nil {
		return 0, err
	}
	var written *meta.Partition
	return chosen, s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		row := st.parts.Get(id)
		if row == nil || !st.visible(id) {
			return nil, nil, meta.ErrNotFound
		}
		if written != nil && row.State.Replicas[0] == chosen &&
			(row.Transfer == written.Transfer || row.State.Leader == chosen) {
			return nil, nil, nil // the attempt without an answer was applied, or somebody has ordered the same
		}
		var refused string
		if chosen, refused = TransferTarget(st.snap, id, to); refused != "" {
			return nil, nil, fmt.Errorf("%s: %w", refused, meta.ErrConflict)
		}
		written = transferred(&row.Partition, chosen)
		key := s.key(partKey(partsDir, id))
		move := kv.Cond{Key: s.key(partKey(movesDir, id)), ModRevision: st.moves[id].rev}
		conds := append(st.conds(s.opts.Prefix, chosen), kv.Cond{Key: key, ModRevision: row.rev}, move)
		return conds, []kv.Op{{Key: key, Value: encodePartition(written)}}, nil
	})
}

// TransferTarget decides which node gets the leadership of a partition that an operator wants on node to; 0: on the
// best other one. If nobody may get it, refused says why. It is pure.
func TransferTarget(
	s *meta.Snapshot, id meta.PartitionID, to replicate.NodeID,
) (chosen replicate.NodeID, refused string) {
	p, t := s.Partitions.Get(id), s.Topics[id.Topic]
	if p == nil || t == nil || len(p.State.Replicas) == 0 {
		return 0, "there is no such partition"
	}
	name := partitionOf(s, id)
	if !led(s, p) {
		return 0, name + " has no live leader that could hand it over"
	}
	if to != 0 {
		settled := p.State.Replicas[0] == to && p.TransferTo() == 0
		switch unfit := unfitToLead(s, p, to); {
		case unfit != "":
			return 0, fmt.Sprintf("%s cannot be given to node %s: %s", name, s.NodeName(to), unfit)
		case to == p.State.Leader && settled:
			return 0, fmt.Sprintf("node %s leads %s already", s.NodeName(to), name)
		}
		return to, ""
	}
	var fit []replicate.NodeID
	var reasons []string
	for _, n := range p.State.Replicas {
		switch unfit := unfitToLead(s, p, n); {
		case n == p.State.Leader:
		case unfit == "":
			fit = append(fit, n)
		default:
			reasons = append(reasons, fmt.Sprintf("node %s: %s", s.NodeName(n), unfit))
		}
	}
	switch {
	case len(fit) > 0:
		return choose(s, p, fit, loadOf(s).leads), ""
	case len(reasons) == 0:
		return 0, name + " has no other replica"
	}
	return 0, fmt.Sprintf("no other replica of %s can lead it (%s)", name, strings.Join(reasons, "; "))
}

// unfitToLead says why an operator may not give the leadership of a partition to a node, or "". A node is fit if
// PreferredLeader prefers it as soon as it is the first replica.
func unfitToLead(s *meta.Snapshot, p *meta.Partition, node replicate.NodeID) string {
	n, m := orNone(s.Nodes[node]), s.Moves[p.ID]
	goes := m.From
	if m.Cancel {
		goes = m.To
	}
	switch {
	case !slices.Contains(p.State.Replicas, node):
		return "it has no replica"
	case !n.Live:
		return "it is not alive"
	case slices.ContainsFunc(p.Contested, func(d replicate.Member) bool { return d.Node == node }):
		return "its copy is contested: it has messages that the leader's log lacks"
	case slices.ContainsFunc(p.Damaged, func(d replicate.Member) bool { return d.Node == node }):
		return "its copy is damaged"
	case slices.ContainsFunc(p.State.Short, func(d replicate.Member) bool { return d.Node == node }):
		return "its copy is short: it has not caught up yet with what it had acknowledged"
	case !inSync(s, p, node):
		return "its replica is not in sync"
	case n.Draining:
		return "it is draining"
	case node == goes:
		return "its replica is being moved away"
	case slices.Contains(Leaving(s, p.ID), node):
		return "its replica will be removed, because the topic wants fewer"
	case n.ClockDiffers:
		return "its clock differs from those of the other nodes: set it, and restart the node"
	case n.Rank() != 0 && node != p.State.Leader:
		return fmt.Sprintf("its disk is %s", n.Disk)
	}
	return ""
}

// transferred returns the row in which the leadership of p is to go to node to. That node becomes the first replica, so
// it remains the preferred leader, and the order of the others stays.
func transferred(p *meta.Partition, to replicate.NodeID) *meta.Partition {
	next := edit(p)
	next.State.Replicas = append([]replicate.NodeID{to},
		slices.DeleteFunc(next.State.Replicas, func(n replicate.NodeID) bool { return n == to })...)
	next.Transfer = meta.Transfer{To: to, Epoch: p.State.Epoch}
	if to == p.State.Leader {
		next.Transfer = meta.Transfer{} // it keeps what it has
	}
	return next
}

// partitionOf names a partition in a sentence.
func partitionOf(s *meta.Snapshot, id meta.PartitionID) string {
	topic := id.Topic.String()
	if t := s.Topics[id.Topic]; t != nil {
		topic = t.Name
	}
	return fmt.Sprintf("partition %d of topic %s", id.Partition, topic)
}
