package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// Rebalance implements meta.Store.
func (s *store) Rebalance(ctx context.Context, order meta.RebalanceOrder) error {
	return s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		row := st.snap.Rebalance
		switch order {
		case meta.RebalanceStart:
			row.Wanted = true
		case meta.RebalancePause:
			row.Paused = true
		case meta.RebalanceResume:
			row.Paused = false
		case meta.RebalanceCancel:
			row.Wanted = false
		default:
			return nil, nil, fmt.Errorf("cluster: %q is no order for a rebalance: nothing was changed", order)
		}
		if was := st.snap.Rebalance; row.Wanted == was.Wanted && row.Paused == was.Paused {
			return nil, nil, nil
		}
		cond, op := s.rebalanceRow(st, &row)
		return []kv.Cond{cond}, []kv.Op{op}, nil
	})
}

func (s *store) rebalanceRow(st *state, row *meta.Rebalance) (kv.Cond, kv.Op) {
	key := s.key(rebalanceKey)
	return kv.Cond{Key: key, ModRevision: st.rebalanceRev}, put(key, row)
}

// rebalance begins the next steps of a rebalance that is wanted, and ends it when nothing is left to do. It takes only
// partitions whose replicas are all in sync, except those on nodes that nothing waits for any more: a move then never
// has fewer copies than before. At most `copies` partitions are copied at the same time, drains and replicas that catch
// up included, and as many leaders are moved in a round.
func (p *planner) rebalance(copies int) {
	s := p.st.snap
	if !s.Rebalance.Wanted || s.Rebalance.Paused {
		return
	}
	l := layoutOf(s, s.GoneNode())
	l.takers = slices.DeleteFunc(l.takers, func(n replicate.NodeID) bool { return p.sees.apart[n] })
	asked := kv.Cond{Key: p.prefix + rebalanceKey, ModRevision: p.st.rebalanceRev} // nothing begins after a pause
	may := func(id meta.PartitionID) bool { return !p.busy[id] && p.mayMove(id, l.gone) }
	begun, orders := false, 0
	for p.moving < copies && orders < copies {
		step, ok := l.next(may)
		if !ok {
			break
		}
		l.apply(&step)
		if begun = true; step.Swap {
			orders++
			next := edit(&p.row(step.ID).Partition)
			next.State.Replicas = l.replicas[step.ID]
			c := p.change("make another replica the preferred leader", next)
			c.conds = append(c.conds, asked)
			continue
		}
		p.beginMove("move a replica to even out the nodes", step.ID, step.From, step.To, asked)
	}
	if begun || len(p.st.moves) > 0 {
		return
	}
	if len(Rebalancing(s, l.gone)) > 0 {
		return // it waits until the partitions are in sync
	}
	row := s.Rebalance
	row.Wanted = false
	p.commands = append(p.commands, command{
		why: "end the rebalance", conds: []kv.Cond{asked}, puts: []kv.Op{put(asked.Key, row)},
	})
}

// mayMove says whether a rebalance may move a replica of a partition now.
func (p *planner) mayMove(id meta.PartitionID, gone replicate.NodeID) bool {
	row, t := p.row(id), p.st.snap.Topics[id.Topic]
	if row == nil || t == nil || p.st.moves[id].rev != 0 || !led(p.st.snap, &row.Partition) || len(row.Damaged) > 0 ||
		len(row.State.Replicas) > t.Replicas || len(row.State.Replicas) >= replicate.MaxReplicaCount {
		return false
	}
	return !slices.ContainsFunc(row.State.Replicas, func(n replicate.NodeID) bool {
		return n != gone && !p.sees.lost[n] && !inSync(p.st.snap, &row.Partition, n)
	})
}

// presence says since when the controller has seen each node as it is now. Only the controller's goroutine uses it.
type presence map[replicate.NodeID]sighting

type sighting struct {
	live  bool
	since time.Time
}

// observe takes note of who is alive now.
func (p presence) observe(s *meta.Snapshot, now time.Time) {
	for id, n := range s.Nodes {
		if old, ok := p[id]; !ok || old.live != n.Live {
			p[id] = sighting{n.Live, now}
		}
	}
	maps.DeleteFunc(p, func(id replicate.NodeID, _ sighting) bool { return s.Nodes[id] == nil })
}

// lost returns the nodes that have been away for so long that nothing waits for them any more: the moves to them are
// undone, and other replicas of their partitions move. They stay replicas of their partitions until they are removed
// or drained.
func (p presence) lost(now time.Time, after time.Duration) map[replicate.NodeID]bool {
	lost := map[replicate.NodeID]bool{}
	for id, is := range p {
		if !is.live && now.Sub(is.since) >= after {
			lost[id] = true
		}
	}
	return lost
}

// membership returns the nodes among which replicas should be spread, and the one that is gone: it has been away for
// longer than after, and no other node is away. If several are away, that is no broken machine but a rack, a network or
// a power supply, and to fill the nodes that remain would do harm. A node that has joined counts after the same time.
func (p presence) membership(
	s *meta.Snapshot, now time.Time, after time.Duration,
) (nodes []replicate.NodeID, gone replicate.NodeID) {
	away := 0
	for id, n := range s.Nodes {
		long := now.Sub(p[id].since) >= after
		switch {
		case n.Live && (long || slices.Contains(s.Rebalance.Nodes, id)):
			nodes = append(nodes, id)
		case n.Live || n.Draining:
		default:
			away++
			if long {
				gone = id
			}
			if slices.Contains(s.Rebalance.Nodes, id) {
				nodes = append(nodes, id)
			}
		}
	}
	if away != 1 {
		gone = 0
	}
	nodes = slices.DeleteFunc(nodes, func(id replicate.NodeID) bool { return id == gone })
	slices.Sort(nodes)
	return nodes, gone
}

// tendRebalance starts a rebalance when the nodes are not those of the last one. The first time it only takes note of
// the nodes: nothing has joined or left yet. A pause holds back this, too.
func (s *store) tendRebalance(ctx context.Context, st *state, seen presence) error {
	now := s.opts.Now()
	seen.observe(st.snap, now)
	if s.changedOpts.Load().RebalanceAfter <= 0 || st.snap.Rebalance.Paused {
		return nil
	}
	row := st.snap.Rebalance
	nodes, gone := seen.membership(st.snap, now, s.changedOpts.Load().RebalanceAfter)
	if row.Nodes == nil && gone != 0 {
		nodes, gone = append(nodes, gone), 0 // it was a member; the next look finds that it is gone
		slices.Sort(nodes)
	}
	if len(nodes) == 0 || slices.Equal(nodes, row.Nodes) && gone == row.Gone {
		return nil
	}
	// A node that comes back before its replicas have moved is not gone any more, which needs no rebalance.
	row.Wanted = row.Wanted || row.Nodes != nil && !slices.Equal(nodes, row.Nodes)
	row.Nodes, row.Gone = nodes, gone
	cond, op := s.rebalanceRow(st, &row)
	conds := []kv.Cond{cond, {Key: s.key(controllerKey), ModRevision: st.controllerRev}}
	ok, revision, err := s.txn(ctx, conds, []kv.Op{op})
	if !ok || err != nil {
		return err
	}
	s.log.Info("the nodes among which replicas are spread have changed", "nodes", nodes, "gone", gone, "rebalance",
		row.Wanted)
	return s.waitRevision(ctx, revision)
}
