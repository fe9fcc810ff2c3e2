package world

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/uuid"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/replicate"
)

// A node dies for good while replicas are on their way to it, and others are on their way elsewhere. Whatever operators
// have begun has to end all the same, and no leadership goes round, also if all nodes are drained. This comes when the
// faults have ended and everything is whole: then nothing else can be the reason.

// firstCorpseSeed is the first seed that may draw FeatureCorpse: those below are histories that were written down
// before there was that feature.
const firstCorpseSeed = 8_000_000

const (
	movePatience = 1000 * ms   // cluster's option
	corpseTime   = 15_000 * ms // how long the node stays dead
	mostMoveTime = 8000 * ms   // how long one move may go on meanwhile
	mostEpochs   = 30          // how often a partition may get another leader meanwhile
)

// corpse is the end of a world with FeatureCorpse.
type corpse struct {
	r      *rand.Rand
	drains bool // nobody ends the drains
	since  map[meta.PartitionID]int64
	moves  map[meta.PartitionID]move  // as of the last look
	grows  map[meta.PartitionID]int64 // since when a partition lacks a replica that it could get
}

// drawCorpse chooses FeatureCorpse, for worlds with FeaturePlacement.
func (w *World) drawCorpse() {
	r := rand.New(rand.NewPCG(w.Seed, 0x6a09e667f3bcc909))
	if w.Seed >= firstCorpseSeed && w.has(FeaturePlacement) && !w.has(FeatureForget) && r.IntN(2) == 0 {
		w.features |= FeatureCorpse
	}
}

// strand lets a node die for good for a while. It says whether nothing went wrong.
func (w *World) strand() bool {
	if !w.has(FeatureCorpse) {
		return true
	}
	if !w.heals() {
		return false
	}
	c := &w.corpse
	c.r = rand.New(rand.NewPCG(w.Seed, 0xbb67ae8584caa73b))
	c.since, c.moves, c.grows = map[meta.PartitionID]int64{}, map[meta.PartitionID]move{}, map[meta.PartitionID]int64{}
	if c.r.IntN(3) == 0 && !w.forceAndDelete() {
		return false
	}
	n := w.nodes[c.r.IntN(len(w.nodes))]
	w.beginOperations(n.replica())
	w.runTo(w.now+c.r.Int64N(400*ms), nil)
	w.tracef("%s dies for good", n.name)
	if n.power = false; n.m != nil {
		n.crash()
	}
	w.moveLeadersOf(n.replica())
	if c.r.IntN(2) == 0 {
		w.after(3000*ms, w.growAll) // the node that died is out of the ISRs
	}
	epochs := map[meta.PartitionID]uint64{}
	for id, p := range w.store.snap.Partitions.All() {
		epochs[id] = uint64(p.State.Epoch)
	}
	for at, end := w.now, w.now+corpseTime; at < end && w.Violation == ""; at += 200 * ms {
		w.runTo(at, nil)
		w.lookAtMoves()
		w.lookAtGrowth()
	}
	for id, before := range epochs {
		if p := w.store.snap.Partitions.Get(id); p != nil && uint64(p.State.Epoch) > before+mostEpochs {
			w.fail("%s had %d leaders in %d s: its leadership goes round", w.partName(id), uint64(p.State.Epoch)-before,
				corpseTime/(1000*ms))
		}
	}
	w.Stats.Corpses++
	w.tracef("%s comes back", n.name)
	n.power, c.drains = true, false
	n.boot()
	return w.Violation == ""
}

// beginOperations is what operators do just before a node dies: they move replicas to it, drain others, change replicas
// and rebalance.
func (w *World) beginOperations(dies replicate.NodeID) {
	c, s := &w.corpse, w.store.snap
	for _, id := range s.Partitions.IDs() {
		if held := s.Partitions.Get(id).State.Replicas; !slices.Contains(held, dies) && c.r.IntN(3) > 0 {
			from := held[c.r.IntN(len(held))]
			w.movePartition(fmt.Sprintf("%s is to go from node %d to %d", w.partName(id), from, dies), id, from, dies)
		}
	}
	switch c.r.IntN(4) {
	case 0:
		c.drains = true
		for _, id := range sortedNodes(s) {
			w.drainNode(id, true)
		}
	case 1:
		c.drains = true
		ids := sortedNodes(s)
		w.drainNode(ids[c.r.IntN(len(ids))], true)
	case 2:
		w.growAll()
	case 3:
		w.rebalance(meta.RebalanceStart)
	}
}

// forceAndDelete lets an operator force the leaders that there are anyway, in a cluster in which all is whole, and then
// delete the topic. It is made anew. checkRows sees what stays behind.
func (w *World) forceAndDelete() bool {
	t := w.topics[w.corpse.r.IntN(len(w.topics))]
	for _, id := range w.store.snap.Partitions.IDs() {
		if p := w.store.snap.Partitions.Get(id); id.Topic == t.id && p.State.Leader != 0 {
			w.forceLeader(fmt.Sprintf("node %d, which leads %s, is forced", p.State.Leader, w.partName(id)), id, p.State.Leader)
		}
	}
	w.runTo(w.now+3000*ms, nil)
	t.doomed = true
	for _, c := range t.channels {
		c.doomed = true
	}
	w.deleteTopic(t)
	return w.Violation == "" && w.heals()
}

// growAll gives each topic one replica more.
func (w *World) growAll() {
	for _, id := range sortedTopics(w.store.snap) {
		w.setReplicas(id, min(w.opt.nodes, w.store.snap.Topics[id].Replicas+1))
	}
}

// moveLeadersOf moves replicas of leaders whose partitions have a replica on a node that is dead.
func (w *World) moveLeadersOf(dead replicate.NodeID) {
	s := w.store.snap
	for _, id := range s.Partitions.IDs() {
		p := s.Partitions.Get(id)
		if !slices.Contains(p.State.Replicas, dead) || p.State.Leader == dead {
			continue
		}
		for _, to := range sortedNodes(s) {
			if !slices.Contains(p.State.Replicas, to) {
				what := fmt.Sprintf("%s is to go from its leader %d to %d", w.partName(id), p.State.Leader, to)
				w.movePartition(what, id, p.State.Leader, to)
				break
			}
		}
	}
}

// lookAtMoves fails if a move goes on for too long. It may if nobody leads or can take over, or if fewer members of the
// ISR are alive than have to be.
func (w *World) lookAtMoves() {
	c, s := &w.corpse, w.store.snap
	for id := range c.since {
		if _, moves := w.store.moves[id]; !moves {
			delete(c.since, id)
			delete(c.moves, id)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(w.store.moves), comparePartitions) {
		m, p := w.store.moves[id], s.Partitions.Get(id)
		live := 0
		if p != nil {
			for _, o := range p.State.ISR {
				if n := s.Nodes[o.Node]; n != nil && n.Live {
					live++
				}
			}
		}
		was, known := c.moves[id]
		leads := p != nil && s.Nodes[p.State.Leader] != nil && s.Nodes[p.State.Leader].Live
		if !known || was.from != m.from || was.to != m.to || !leads || live < max(1, p.State.MinISR) ||
			w.noHeir(p, m) {
			c.since[id], c.moves[id] = w.now, m
			continue
		}
		if w.now-c.since[id] > mostMoveTime {
			w.fail("the move of %s from node %d to %d does not end: %+v, replicas %v, in sync %v, leader %d",
				w.partName(id), m.from, m.to, m, p.State.Replicas, members(p.State.ISR), p.State.Leader)
			return
		}
	}
}

// noHeir says that a move has come to where its leader hands over, and that nobody can take over, not even the new
// replica: then the move waits.
func (w *World) noHeir(p *meta.Partition, m move) bool {
	s := w.store.snap
	to := s.Nodes[m.to]
	return p.State.Leader == m.from && !m.cancel && to != nil && to.Live && !to.Draining &&
		replicate.HasNode(p.State.ISR, m.to) && !slices.ContainsFunc(p.State.ISR, func(o replicate.Member) bool {
		n := s.Nodes[o.Node]
		return o.Node != m.from && n != nil && mayTake(n)
	})
}

// lookAtGrowth fails if a partition does not get a replica that its topic wants, although a node could take it.
func (w *World) lookAtGrowth() {
	c, s := &w.corpse, w.store.snap
	for _, id := range s.Partitions.IDs() {
		p, t := s.Partitions.Get(id), s.Topics[id.Topic]
		_, moves := w.store.moves[id]
		leader := s.Nodes[p.State.Leader]
		taker := slices.ContainsFunc(sortedNodes(s), func(n replicate.NodeID) bool {
			return mayTake(s.Nodes[n]) && !slices.Contains(p.State.Replicas, n)
		})
		comes := slices.ContainsFunc(p.State.Replicas, func(n replicate.NodeID) bool { // one at a time
			return s.Nodes[n] != nil && s.Nodes[n].Live && !replicate.HasNode(p.State.ISR, n)
		})
		if t == nil || moves || comes || !taker || leader == nil || !leader.Live || len(p.State.Replicas) >= t.Replicas {
			delete(c.grows, id)
			continue
		}
		if since, lacks := c.grows[id]; !lacks {
			c.grows[id] = w.now
		} else if w.now-since > mostMoveTime {
			w.fail("%s has the replicas %v, in sync %v, its topic wants %d, a node could take one, and none is added",
				w.partName(id), p.State.Replicas, members(p.State.ISR), t.Replicas)
			return
		}
	}
}

// checkRows: no row of the store speaks of a topic that is deleted, but for the list of deletions.
func (w *World) checkRows() {
	if w.agreement == nil || w.Violation != "" {
		return
	}
	entries, _ := w.agreement.m.Entries()
	for i := range entries {
		key := strings.TrimPrefix(entries[i].Key, cluster.DefaultPrefix)
		kind, rest, _ := strings.Cut(key, "/")
		topic, _, _ := strings.Cut(rest, "/")
		if id, err := uuid.Parse(topic); err == nil && kind != "deleted" && w.store.snap.Topics[id] == nil {
			w.fail("the row %s is of a topic that is deleted", key)
		}
	}
}
