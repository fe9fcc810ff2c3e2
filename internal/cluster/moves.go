package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// MovePartition implements meta.Store. It only writes the move's row. The controller carries the move out, one safe
// step after the other, and if the leader is the replica to go, the leader hands over. A call with to == from cancels a
// move, unless the new replica leads already. A new move can only begin when no other is under way.
func (s *store) MovePartition(ctx context.Context, id meta.PartitionID, from, to replicate.NodeID) error {
	return s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		if !st.visible(id) || st.parts.Get(id) == nil {
			return nil, nil, meta.ErrNotFound
		}
		p := &st.parts.Get(id).Partition
		key, move := s.key(partKey(movesDir, id)), st.moves[id]
		conds := []kv.Cond{
			{Key: key, ModRevision: move.rev},
			{Key: s.key(topicKey(topicsDir, id.Topic)), ModRevision: st.topics[id.Topic]},
			// The controller may just be adding a replica on the target: the move would never end.
			{Key: s.key(partKey(partsDir, id)), ModRevision: st.parts.Get(id).rev},
		}
		target := st.snap.Nodes[to]
		apart, _ := s.lookAround(st)
		switch {
		case !slices.Contains(p.State.Replicas, from), target == nil:
			return nil, nil, meta.ErrNotFound
		case to == from && move.rev == 0, to == move.To && from == move.From && !move.Cancel:
			return nil, nil, nil
		case to == from:
			move.Cancel = true
			return conds, []kv.Op{put(key, move.moveRow)}, nil
		case move.rev != 0:
			return nil, nil, fmt.Errorf("a move of it from node %s to node %s is under way; cancel it first: %w",
				st.snap.NodeName(move.From), st.snap.NodeName(move.To), meta.ErrConflict)
		case slices.Contains(p.State.Replicas, to):
			return nil, nil, fmt.Errorf("node %s holds a replica of it already: nothing was changed: %w",
				st.snap.NodeName(to), meta.ErrExists)
		case !target.Live:
			return nil, nil, fmt.Errorf("node %s is not alive: %w", st.snap.NodeName(to), meta.ErrTooFewNodes)
		case apart[to]:
			return nil, nil, fmt.Errorf("node %s is alive, and this node has no connection to it: %w", st.snap.NodeName(to),
				meta.ErrTooFewNodes)
		case len(p.State.Replicas) >= replicate.MaxReplicaCount:
			return nil, nil,
				fmt.Errorf("cluster: it has %d replicas, and none can be added before one goes: nothing was changed",
					len(p.State.Replicas))
		}
		return conds, []kv.Op{put(key, moveRow{From: from, To: to})}, nil
	})
}

// moves advances each move by one step: the new replica is in the ISR before the old one goes (B89, P23).
func (p *planner) moves() {
	for _, id := range slices.SortedFunc(maps.Keys(p.st.moves), comparePartitions) {
		m := p.st.moves[id]
		if row := p.row(id); row == nil || !p.st.visible(id) {
			p.drop("forget the move of a deleted partition", partKey(movesDir, id), m.rev)
			continue
		}
		if !p.busy[id] {
			p.step(id, m)
		}
	}
}

// phase is what a move does, or what it waits for.
type phase int

const (
	moveOver       phase = iota // one of the two replicas is not wanted or not possible any more, and none was added
	moveAway                    // the new replica's node is dead
	moveAdds                    // the new replica is about to be listed
	moveLeaderless              // the partition has no leader, from which the new replica would catch up
	moveCopies                  // the new replica catches up
	moveHandsOver               // the leader is the replica to go, and first hands over to the preferred leader
	moveNoHeir                  // the leader is the replica to go, and no other replica can take over
	moveKeeps                   // too few others would be in sync, or whole
	moveRemoves                 // the old replica can go
	moveUndone                  // the new replica can go
	moveKeepsNew                // the move is being undone, and too few others would be in sync, or whole
)

// goesOn says whether the next step of a move will come without anything else.
func (f phase) goesOn() bool {
	return !slices.Contains([]phase{moveAway, moveLeaderless, moveNoHeir, moveKeeps, moveKeepsNew}, f)
}

// MoveState says in words what the move of a partition does or waits for, and whether it goes on without anything else.
// There must be one.
func MoveState(s *meta.Snapshot, id meta.PartitionID) (words string, goesOn bool) {
	p, m := s.Partitions.Get(id), s.Moves[id]
	if p == nil {
		return "ends", true
	}
	is, from, to := phaseOf(s, p, m), s.NodeName(m.From), s.NodeName(m.To)
	switch is {
	case moveAway:
		words = fmt.Sprintf("waits for node %s, which is dead: if that lasts, it is undone", to)
	case moveAdds:
		words = "begins"
	case moveLeaderless:
		words = "waits: no replica leads the partition"
	case moveCopies:
		words = fmt.Sprintf("node %s fetches what it lacks", to)
	case moveHandsOver:
		words = fmt.Sprintf("node %s hands its leadership over", from)
	case moveNoHeir:
		words = fmt.Sprintf("waits: node %s leads, and no other replica that is in sync can take over", from)
	case moveKeeps:
		words = fmt.Sprintf("waits: without node %s too few replicas would be in sync and whole", from)
	case moveKeepsNew:
		words = fmt.Sprintf("is being undone and waits: without node %s too few replicas would be in sync and whole", to)
	case moveUndone:
		words = "is being undone"
	case moveOver, moveRemoves:
		words = "ends"
	}
	return words, is.goesOn()
}

// phaseOf decides what is next in a move. It is pure: the controller acts by it, and operators are told of it.
func phaseOf(s *meta.Snapshot, p *meta.Partition, m meta.Move) phase {
	replicas, to := p.State.Replicas, s.Nodes[m.To]
	hasFrom, hasTo := slices.Contains(replicas, m.From), slices.Contains(replicas, m.To)
	full := len(replicas) >= replicate.MaxReplicaCount
	switch {
	case !hasFrom, to == nil, !hasTo && (m.Cancel || to.Draining || full):
		return moveOver
	case m.Cancel && p.State.Leader != m.To && without(s, p, m.To) == nil:
		return moveKeepsNew
	case m.Cancel && p.State.Leader != m.To:
		return moveUndone
	case !to.Live:
		return moveAway
	case !hasTo:
		return moveAdds
	case !inSync(s, p, m.To) && !led(s, p):
		return moveLeaderless
	case !inSync(s, p, m.To):
		return moveCopies
	case p.State.Leader == m.From && slices.Contains([]replicate.NodeID{0, m.From}, PreferredLeader(s, p.ID)):
		return moveNoHeir
	case p.State.Leader == m.From:
		return moveHandsOver
	case without(s, p, m.From) == nil:
		return moveKeeps
	}
	return moveRemoves
}

// goesOn is phase.goesOn, for a controller that may have no connection to the target.
func (p *planner) goesOn(m moveEntry, is phase) bool {
	return is.goesOn() && (is != moveAdds || !p.sees.apart[m.To])
}

// hopeless says whether the controller gives a move up: because its target is lost, or because its target is draining
// and not in sync yet, or because the controller chose a target to which it has no connection now. A draining target
// that is in sync keeps the replica, until a move of its own takes it away.
func (p *planner) hopeless(m moveEntry, is phase) bool {
	if m.Cancel {
		return false // it is given up already, or the new replica leads
	}
	switch is {
	case moveAway:
		return p.sees.lost[m.To] || p.st.snap.Nodes[m.To].Draining
	case moveAdds:
		return m.Drain && p.sees.apart[m.To]
	case moveLeaderless, moveCopies, moveHandsOver, moveNoHeir:
		return p.st.snap.Nodes[m.To].Draining
	}
	return false
}

// step advances a move: it adds the new replica or removes the old one, or cancels the move as an operator would if it
// cannot end. In between it plans nothing, while the new replica gets into the ISR and the old one hands over its
// leadership.
func (p *planner) step(id meta.PartitionID, m moveEntry) {
	row, key := p.row(id), p.prefix+partKey(movesDir, id)
	is := phaseOf(p.st.snap, &row.Partition, meta.Move(m.moveRow))
	begun := slices.Contains(row.State.Replicas, m.To)
	switch {
	case is == moveOver, !begun && p.hopeless(m, is):
		p.busy[id] = true
		p.drop("a move is over", partKey(movesDir, id), m.rev)
	case p.hopeless(m, is):
		p.busy[id] = true
		m.Cancel = true
		p.commands = append(p.commands, command{
			why: "cancel a move that cannot end", conds: []kv.Cond{{Key: key, ModRevision: m.rev}},
			puts: []kv.Op{put(key, m.moveRow)},
		})
	case is == moveKeeps || is == moveKeepsNew:
		p.instead(id, m)
	case is == moveUndone:
		p.undo(id, m)
	case !p.goesOn(m, is): // an operator's move waits
	case is == moveAdds:
		next := edit(&row.Partition)
		next.State.Replicas[slices.Index(row.State.Replicas, m.From)] = m.To
		next.State.Replicas = append(next.State.Replicas, m.From)
		p.load.replicas[m.To]++
		p.change("add the replica that comes", next, m.To)
	case is == moveRemoves:
		c := p.change("remove the replica that goes", without(p.st.snap, &row.Partition, m.From), m.To)
		c.drops = []kv.Cond{{Key: key, ModRevision: m.rev}}
	}
}

// without returns the row without the replica of node. It returns nil if too few members would remain in the ISR, or
// too few whole ones: what was acknowledged may be only on the replica that goes.
func without(s *meta.Snapshot, p *meta.Partition, node replicate.NodeID) *meta.Partition {
	next := edit(p)
	isNode := func(m replicate.Member) bool { return m.Node == node }
	next.State.Replicas = slices.DeleteFunc(next.State.Replicas, func(n replicate.NodeID) bool { return n == node })
	next.State.ISR = slices.DeleteFunc(next.State.ISR, isNode)
	next.State.Short = slices.DeleteFunc(next.State.Short, isNode)
	next.Damaged = slices.DeleteFunc(next.Damaged, isNode)
	next.Contested = slices.DeleteFunc(next.Contested, isNode)
	if len(next.State.ISR) < min(len(p.State.ISR), p.State.MinISR) || len(next.State.ISR) == 0 ||
		whole(s, next) < min(whole(s, p), p.State.MinISR) {
		return nil
	}
	return next
}

// whole counts the members of the ISR that have everything: those that are not reported damaged, that did not forget
// what they had acknowledged, and whose disk was not replaced. It does not matter whether they are alive.
func whole(s *meta.Snapshot, p *meta.Partition) int {
	count := 0
	for _, m := range p.State.ISR {
		n := s.Nodes[m.Node]
		if n != nil && n.Store == m.Store && !slices.Contains(p.Damaged, m) && !slices.Contains(p.State.Short, m) {
			count++
		}
	}
	return count
}

// instead ends a move that cannot take its replica away because too few others are in sync. If another replica is lost,
// that replica is removed instead: outside of the ISR, it has no committed batch that the ISR lacks. Without that, the
// move would wait for the lost replica, and the lost replica could not be replaced before the move has ended.
func (p *planner) instead(id meta.PartitionID, m moveEntry) {
	row := p.row(id)
	for _, n := range row.State.Replicas {
		if !p.sees.lost[n] || n == row.State.Leader || replicate.HasNode(row.State.ISR, n) {
			continue
		}
		if next := without(p.st.snap, &row.Partition, n); next != nil {
			c := p.change("remove a lost replica instead of the one that was to go", next)
			c.drops = []kv.Cond{{Key: p.prefix + partKey(movesDir, id), ModRevision: m.rev}}
			return
		}
	}
}

// undo removes the new replica of a move, which others can do without, and puts the old one back in its place.
func (p *planner) undo(id meta.PartitionID, m moveEntry) {
	row := p.row(id)
	next := without(p.st.snap, &row.Partition, m.To)
	next.State.Replicas = slices.DeleteFunc(slices.Clone(row.State.Replicas), func(n replicate.NodeID) bool {
		return n == m.From
	})
	next.State.Replicas[slices.Index(next.State.Replicas, m.To)] = m.From
	c := p.change("undo a move", next)
	c.drops = []kv.Cond{{Key: p.prefix + partKey(movesDir, id), ModRevision: m.rev}}
}
