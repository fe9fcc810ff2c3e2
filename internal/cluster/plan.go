package cluster

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// command is one step of the controller, applied in one transaction only if nothing that it is based on has changed.
type command struct {
	why    string
	next   *meta.Partition    // the new row of a partition
	rev    int64              // revision of its present row
	chosen []replicate.NodeID // nodes that must still be the same live processes
	conds  []kv.Cond          // other rows that must not have changed
	puts   []kv.Op
	drops  []kv.Cond // rows to delete, if they are unchanged
}

// view is what the controller's node sees of the others, besides the rows.
type view struct {
	lost  map[replicate.NodeID]bool // nodes that nothing waits for any more: see presence.lost
	apart map[replicate.NodeID]bool // living nodes to which it has no connection: see unreached. They get no replicas
}

// planner decides what the controller has to do in a state. It is pure: the same state and time give the same commands.
type planner struct {
	st     *state
	prefix string
	now    time.Time
	load   load
	parts  []meta.PartitionID // sorted
	// busy has the partitions for which this round has planned something already.
	busy     map[meta.PartitionID]bool
	sees     view
	losing   map[replicate.NodeID]bool // nodes whose partitions are about to get another leader
	moving   int                       // partitions that are being copied
	takers   []*meta.Node              // the result of candidates
	commands []command
	stuck    []meta.PartitionID // partitions that have no usable leader and nobody to elect
}

// plan returns the commands in order of urgency, at most one for each partition, and the partitions that nobody can
// lead. Whatever follows from a command is planned after the command has taken effect.
// copies is how many partitions a rebalance copies at the same time.
func plan(st *state, prefix string, now time.Time, copies int, sees view) ([]command, []meta.PartitionID) {
	p := &planner{
		st: st, prefix: prefix, now: now, sees: sees, load: st.load.clone(), busy: map[meta.PartitionID]bool{},
		losing: map[replicate.NodeID]bool{},
		parts:  st.snap.Partitions.IDs(),
		takers: reached(candidates(st.snap), sees.apart),
	}
	p.elections()
	p.moving = p.copies()
	p.cleanISRs()
	p.moves()
	p.drains()
	p.growth()
	p.shrink()
	p.rebalance(copies)
	p.reports()
	p.garbage()
	return p.commands, p.stuck
}

// copies counts the partitions at which something is being copied, by a move that goes on or because a replica is
// behind. A move that waits for something else does not count. A partition that has just been given a leader does.
func (p *planner) copies() int {
	count := 0
	for _, id := range p.parts {
		row := &p.row(id).Partition
		catchesUp := func(n replicate.NodeID) bool { return p.catchesUp(row, n) }
		behind := (led(p.st.snap, row) || p.busy[id]) && slices.ContainsFunc(row.State.Replicas, catchesUp)
		if m := p.st.moves[id]; behind || m.rev != 0 && p.goesOn(m, phaseOf(p.st.snap, row, meta.Move(m.moveRow))) {
			count++
		}
	}
	return count
}

// catchesUp says whether node has a replica that is outside the ISR and can come into it.
func (p *planner) catchesUp(row *meta.Partition, node replicate.NodeID) bool {
	n := p.st.snap.Nodes[node]
	return n != nil && n.Live && !hangs(n) &&
		!replicate.HasNode(row.State.ISR, node) && !replicate.HasNode(row.Contested, node)
}

func (p *planner) row(id meta.PartitionID) *partEntry { return p.st.parts.Get(id) }

// change plans the next row of a partition. The row is written only if the present one is unchanged and the chosen
// nodes are still the same live processes. If somebody leaves the ISR, those that stay are chosen, too: a process that
// has ended since may have come back with another disk. Nothing else is planned for the partition in this round.
func (p *planner) change(why string, next *meta.Partition, chosen ...replicate.NodeID) *command {
	p.busy[next.ID] = true
	row := p.row(next.ID)
	if len(next.State.ISR) < len(row.State.ISR) {
		for _, m := range next.State.ISR {
			if !slices.Contains(chosen, m.Node) {
				chosen = append(chosen, m.Node)
			}
		}
	}
	p.commands = append(p.commands, command{why: why, next: next, rev: row.rev, chosen: chosen})
	return &p.commands[len(p.commands)-1]
}

// beginMove plans a move of the controller's own, if none has begun and conds hold.
func (p *planner) beginMove(why string, id meta.PartitionID, from, to replicate.NodeID, conds ...kv.Cond) {
	p.moving++
	p.busy[id] = true
	key := p.prefix + partKey(movesDir, id)
	p.commands = append(p.commands, command{
		why: why, chosen: []replicate.NodeID{to}, conds: append(conds, kv.Cond{Key: key}),
		puts: []kv.Op{put(key, moveRow{From: from, To: to, Drain: true})},
	})
}

// drop plans the deletion of a row, if it is unchanged since rev.
func (p *planner) drop(why, key string, rev int64) {
	p.commands = append(p.commands, command{why: why, drops: []kv.Cond{{Key: p.prefix + key, ModRevision: rev}}})
}

// inSync says whether node has a replica that may lead: in the ISR with the disk that the node has now, alive and
// neither damaged nor short.
func inSync(s *meta.Snapshot, p *meta.Partition, node replicate.NodeID) bool {
	n := s.Nodes[node]
	if n == nil || !n.Live {
		return false
	}
	m := replicate.Member{Node: node, Store: n.Store}
	return slices.Contains(p.State.ISR, m) && !slices.Contains(p.Damaged, m) && !slices.Contains(p.State.Short, m)
}

// electable returns the nodes that may lead a partition, in the order of its replicas. No other node ever leads unless
// an operator forces it (P11).
func electable(st *state, p *meta.Partition) []replicate.NodeID {
	var nodes []replicate.NodeID
	for _, n := range p.State.Replicas {
		if inSync(st.snap, p, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// led says whether the partition is led by the process that its row names: that process is alive, in the ISR and whole.
func led(s *meta.Snapshot, p *meta.Partition) bool {
	return inSync(s, p, p.State.Leader) && s.Nodes[p.State.Leader].Boot == p.State.Boot
}

// choose returns the best of the nodes in from: no disk that hangs first, then not draining, because such a node would
// hand over again at once, then the best disk and clock, not leaving, the fewest leaderships, and the first. A node
// whose disk hangs is better than no leader: it can deliver what is committed.
func choose(
	s *meta.Snapshot, p *meta.Partition, from []replicate.NodeID, leads map[replicate.NodeID]int,
) replicate.NodeID {
	if len(from) == 0 {
		return 0
	}
	leaving := Leaving(s, p.ID)
	return slices.MinFunc(from, func(a, b replicate.NodeID) int {
		return cmp.Or(
			cmpBool(hangs(s.Nodes[a]), hangs(s.Nodes[b])),
			cmpBool(s.Nodes[a].Draining, s.Nodes[b].Draining),
			cmp.Compare(s.Nodes[a].Rank(), s.Nodes[b].Rank()),
			cmpBool(slices.Contains(leaving, a), slices.Contains(leaving, b)),
			cmp.Compare(leads[a], leads[b]),
		)
	})
}

// hangs says whether the disk of a node hangs, or has hung for so long that it counts as failed.
func hangs(n *meta.Node) bool { return n.Rank() >= meta.DiskHung.Rank() }

// elections gives another leader, or the new process of the same node, to each partition whose leader is gone,
// restarted or damaged. A leader that cannot be replaced stays in the row: if the same process comes back, it continues
// to lead.
func (p *planner) elections() {
	for _, id := range p.parts {
		row := p.row(id)
		if led(p.st.snap, &row.Partition) {
			continue
		}
		n := choose(p.st.snap, &row.Partition, electable(p.st, &row.Partition), p.load.leads)
		if n == 0 {
			p.stuck = append(p.stuck, id)
			continue
		}
		next := edit(&row.Partition)
		lead(next, p.st.snap.Nodes[n])
		p.load.leads[row.State.Leader]--
		p.load.leads[n]++
		p.losing[row.State.Leader] = true
		p.change("elect", next, n)
	}
}

// cleanISRs removes members whose disk no longer exists, if enough other members remain.
func (p *planner) cleanISRs() {
	for _, id := range p.parts {
		row := p.row(id)
		if p.busy[id] {
			continue
		}
		gone := func(m replicate.Member) bool {
			n := p.st.snap.Nodes[m.Node]
			return n == nil || n.Store != m.Store
		}
		if !slices.ContainsFunc(row.State.ISR, gone) && !slices.ContainsFunc(row.Damaged, gone) {
			continue
		}
		next := edit(&row.Partition)
		next.State.ISR = slices.DeleteFunc(next.State.ISR, gone)
		next.Damaged = slices.DeleteFunc(next.Damaged, gone)
		next.Contested = slices.DeleteFunc(next.Contested, gone)
		removed := len(next.State.ISR) < len(row.State.ISR)
		if removed && (len(next.State.ISR) < row.State.MinISR || !led(p.st.snap, &row.Partition)) {
			next.State.ISR, removed = slices.Clone(row.State.ISR), false
		}
		if removed || len(next.Damaged) < len(row.Damaged) {
			p.change("remove a disk that is gone", next)
		}
	}
}

// spare returns the live node that should take one more replica of the partition, in place of the one on node goes (0:
// in addition): the best disk and clock first, then the rack with the fewest of its replicas, then the fewest replicas
// of all partitions. It returns 0 if no node can. A node whose disk hangs could not catch up, so it is never chosen.
func (p *planner) spare(row *partEntry, goes replicate.NodeID) replicate.NodeID {
	var best replicate.NodeID
	racks := racksOf(p.st.snap, row.State.Replicas, goes)
	for _, n := range p.takers {
		if n.Draining || hangs(n) || slices.Contains(row.State.Replicas, n.ID) {
			continue
		}
		if best == 0 || cmp.Or(
			cmp.Compare(n.Rank(), p.st.snap.Nodes[best].Rank()),
			cmp.Compare(racks[n.Rack], racks[p.st.snap.Nodes[best].Rack]),
			cmp.Compare(p.load.replicas[n.ID], p.load.replicas[best])) < 0 {
			best = n.ID
		}
	}
	return best
}

// drains begins moves away from draining nodes, as long as other nodes can take the replicas (B90). It moves only a few
// partitions at a time, because each move copies a partition.
func (p *planner) drains() {
	for _, id := range p.parts {
		row := p.row(id)
		if p.moving >= MaxDrainMoveCount {
			return
		}
		if p.busy[id] || p.st.moves[id].rev != 0 || len(row.State.Replicas) >= replicate.MaxReplicaCount {
			continue
		}
		for _, from := range row.State.Replicas {
			if n := p.st.snap.Nodes[from]; n == nil || !n.Draining {
				continue
			}
			to := p.spare(row, from)
			if to == 0 {
				continue
			}
			p.load.replicas[from]--
			p.load.replicas[to]++
			p.beginMove("move away from a draining node", id, from, to)
			break
		}
	}
}

// growth adds the replicas that a topic wants and that its partitions do not have yet, for example because the topic
// was imported. It raises min_isr as more replicas are in sync. It lowers min_isr at once, because what is committed
// stays committed.
func (p *planner) growth() {
	for _, id := range p.parts {
		row, t := p.row(id), p.st.snap.Topics[id.Topic]
		if p.busy[id] || p.st.moves[id].rev != 0 || !led(p.st.snap, &row.Partition) {
			continue
		}
		minISR := row.State.MinISR
		if minISR < t.MinISR && len(row.State.ISR) > minISR {
			minISR = min(t.MinISR, len(row.State.ISR))
		}
		if t.MinISR > 0 && minISR > t.MinISR {
			minISR = t.MinISR
		}
		var chosen []replicate.NodeID
		catchingUp := slices.ContainsFunc(row.State.Replicas, func(n replicate.NodeID) bool {
			return p.catchesUp(&row.Partition, n)
		})
		if len(row.State.Replicas) < t.Replicas && !catchingUp && p.moving < MaxDrainMoveCount {
			if to := p.spare(row, 0); to != 0 {
				p.moving++
				p.load.replicas[to]++
				chosen = append(chosen, to)
			}
		}
		if len(chosen) > 0 || minISR != row.State.MinISR {
			next := edit(&row.Partition)
			next.State.Replicas, next.State.MinISR = append(next.State.Replicas, chosen...), minISR
			p.change("towards the replicas that the topic wants", next, chosen...)
		}
	}
}

// reports ends the report of a lost process when every partition that it led, and that another node can lead, has
// another leader. Its live row is deleted too: if the report was wrong, the process writes that row again.
func (p *planner) reports() {
	for _, id := range slices.Sorted(maps.Keys(p.st.nodes)) {
		n := p.st.nodes[id]
		if n.downRev == 0 || p.losing[id] {
			continue
		}
		c := command{
			why:   "end the report of a lost process",
			drops: []kv.Cond{{Key: p.prefix + nodeKey(downDir, id), ModRevision: n.downRev}},
		}
		if n.rev != 0 && n.liveRev != 0 && n.live == n.down {
			c.drops = append(c.drops, kv.Cond{Key: p.prefix + nodeKey(liveDir, id), ModRevision: n.liveRev})
		}
		p.commands = append(p.commands, c)
	}
}

// garbage removes rows that have no meaning any more: partitions of deleted topics and of creations that were not
// completed (B85), records of leaders that were forced in them, tombstones whose time is over, and the oldest deletions
// if there are more than MaxDeletedCount.
func (p *planner) garbage() {
	var orphans []meta.PartitionID
	for id := range p.st.parts.All() {
		if !p.st.visible(id) && p.st.creating[id.Topic] == 0 {
			orphans = append(orphans, id)
		}
	}
	slices.SortFunc(orphans, comparePartitions)
	for _, id := range orphans {
		p.drop("remove a partition that no topic has", partKey(partsDir, id), p.row(id).rev)
	}
	for _, id := range slices.SortedFunc(maps.Keys(p.st.forced), comparePartitions) {
		if p.st.snap.Topics[id.Topic] == nil {
			p.drop("forget a forced leader of a deleted topic", partKey(forcedDir, id), p.st.forced[id])
		}
	}
	for key, rev := range p.st.tombstones {
		if p.now.After(p.st.snap.Tombstones[key].Add(tombstoneKeepAfter)) {
			p.drop("end a tombstone", tombstoneKey(key), rev)
		}
	}
	if over := len(p.st.deleted) - MaxDeletedCount; over > 0 {
		ids := slices.Collect(maps.Keys(p.st.deleted))
		slices.SortFunc(ids, func(a, b uuid.UUID) int { return cmp.Compare(p.st.deleted[a], p.st.deleted[b]) })
		for _, id := range ids[:over] {
			p.drop("forget an old deletion", topicKey(deletedDir, id), p.st.deleted[id])
		}
	}
}
