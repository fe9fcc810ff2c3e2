package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// SetReplicas implements meta.Store. It only writes the topic's row; the rows of the partitions follow it: see
// planner.growth and planner.shrink. A draining node does not count, because it gives its replicas away.
func (s *store) SetReplicas(ctx context.Context, id uuid.UUID, replicas int) (*meta.Topic, error) {
	var want *meta.Topic
	// The watch may not have brought the topic yet.
	if _, _, err := s.topic(ctx, id); err != nil {
		return nil, err
	}
	err := s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		t := st.snap.Topics[id]
		if t == nil {
			return nil, nil, meta.ErrNotFound
		}
		if replicas < 1 || replicas > replicate.MaxReplicaCount {
			return nil, nil, fmt.Errorf("%w: a topic has 1 to %d, not %d", meta.ErrReplicas, replicate.MaxReplicaCount, replicas)
		}
		if takers := takersOf(st.snap); replicas > t.Replicas && replicas > takers {
			return nil, nil, fmt.Errorf("%d replicas, and only %d nodes may hold one each: %w",
				replicas, takers, meta.ErrTooFewNodes)
		}
		var err error
		if want, err = t.WithReplicas(replicas); err != nil || *want == *t {
			return nil, nil, err
		}
		key := s.key(topicKey(topicsDir, id))
		return []kv.Cond{{Key: key, ModRevision: st.topics[id]}}, []kv.Op{put(key, want)}, nil
	})
	if err != nil {
		return nil, err
	}
	return want, nil
}

// takersOf counts the nodes that may hold replicas: all that are not draining. A node that is away counts, because it
// gets its replicas when it comes back.
func takersOf(s *meta.Snapshot) int {
	count := 0
	for _, n := range s.Nodes {
		if !n.Draining {
			count++
		}
	}
	return count
}

// shrink removes the replicas that a partition has beyond the number that its topic wants. It never removes the leader.
// It waits while the leader is to hand over, because then the next leader stays. It acts only when all replicas that
// stay are in sync: so no committed batch ever has fewer copies than the topic wants. min_isr comes down first
// (growth).
func (p *planner) shrink() {
	for _, id := range p.parts {
		row, t := p.row(id), p.st.snap.Topics[id.Topic]
		if p.busy[id] || p.st.moves[id].rev != 0 || t == nil || len(row.State.Replicas) <= t.Replicas ||
			row.State.MinISR > t.MinISR || !led(p.st.snap, &row.Partition) {
			continue
		}
		if to := row.TransferTo(); to != 0 && PreferredLeader(p.st.snap, id) == to {
			continue
		}
		stay := p.staying(&row.Partition, t.Replicas)
		if slices.ContainsFunc(stay, func(n replicate.NodeID) bool { return !inSync(p.st.snap, &row.Partition, n) }) {
			continue
		}
		next := &row.Partition
		for _, n := range row.State.Replicas {
			if next != nil && !slices.Contains(stay, n) {
				next = without(p.st.snap, next, n)
				p.load.replicas[n]--
			}
		}
		if next != nil {
			next.State.Version = row.State.Version + 1
			c := p.change("remove replicas that the topic does not want any more", next)
			c.conds = append(c.conds, kv.Cond{Key: p.prefix + topicKey(topicsDir, id.Topic), ModRevision: p.st.topics[id.Topic]},
				kv.Cond{Key: p.prefix + partKey(movesDir, id)}) // nobody has begun to move it meanwhile
		}
	}
}

// staying returns the replicas that a partition with too many of them keeps: the leader, then those that can serve,
// then those that are not on a draining node or a bad disk, then those in racks of which it keeps the fewest, then the
// first one, which is the preferred leader, then those on nodes with the fewest replicas. It keeps the order of the
// list.
func (p *planner) staying(row *meta.Partition, count int) []replicate.NodeID {
	s := p.st.snap
	var stay []replicate.NodeID
	for len(stay) < count {
		racks := racksOf(s, stay, 0)
		rest := slices.DeleteFunc(slices.Clone(row.State.Replicas), func(n replicate.NodeID) bool {
			return slices.Contains(stay, n)
		})
		stay = append(stay, slices.MinFunc(rest, func(a, b replicate.NodeID) int {
			na, nb := orNone(s.Nodes[a]), orNone(s.Nodes[b])
			return cmp.Or(
				cmpBool(a != row.State.Leader, b != row.State.Leader),
				cmpBool(!inSync(s, row, a), !inSync(s, row, b)),
				cmpBool(na.Draining, nb.Draining),
				cmp.Compare(na.Rank(), nb.Rank()),
				cmp.Compare(racks[na.Rack], racks[nb.Rack]),
				cmpBool(a != row.State.Replicas[0], b != row.State.Replicas[0]),
				cmp.Compare(p.load.replicas[a], p.load.replicas[b]),
			)
		}))
	}
	return slices.DeleteFunc(slices.Clone(row.State.Replicas), func(n replicate.NodeID) bool {
		return !slices.Contains(stay, n)
	})
}
