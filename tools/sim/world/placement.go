package world

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Placement: operators change how many replicas topics have, rebalance, pause that, and give leaderships to other
// nodes, in clusters of several racks. placementcheck.go judges what comes of it.

// placement is what only worlds with FeaturePlacement have.
type placement struct {
	r      *rand.Rand
	every  int64    // an operator does something about so often
	racks  []string // of the nodes
	copies int      // rebalance-moves
	after  int64    // rebalance-after; 0: the cluster never rebalances by itself

	// open counts the changes of a topic's replicas, and the ends of pauses, that may still come about: they were asked
	// for, and nobody knows what came of it. wanted is what a topic's replicas were set to when nothing else was open.
	// sized and resumed count how often that was asked for at all.
	open, sized      map[uuid.UUID]int
	resumes, resumed int
	wanted           map[uuid.UUID]int
	paused           bool                       // by the last answer; nobody has asked for the end of the pause
	drained          map[replicate.NodeID]int64 // when a drain ended
	evening          map[meta.PartitionID]bool  // moves that a rebalance has begun; false: nothing is copied
}

// firstPlacementSeed is the first seed that may draw FeaturePlacement: those below are histories that were written down
// before there was that feature.
const firstPlacementSeed = 5_000_000

// drawPlacement chooses FeaturePlacement. The feature needs the real agreement. It does not go together with two
// others: bits that rot in the only copy of a partition are lost, and copying takes longer than FeatureBound allows.
func (w *World) drawPlacement() {
	r := rand.New(rand.NewPCG(w.Seed, 0x632be59bd9b4e019))
	if w.Seed >= firstPlacementSeed && !w.has(FeatureBound|FeatureRot) && r.IntN(4) == 0 {
		w.features |= FeaturePlacement | FeatureCluster
	}
}

// preparePlacement chooses a cluster in which it matters where replicas lie.
func (w *World) preparePlacement() {
	if !w.has(FeaturePlacement) {
		return
	}
	p, o := &w.placing, &w.opt
	p.r = rand.New(rand.NewPCG(w.Seed, 0x8cb92ba72f3d8dd7))
	p.open, p.sized, p.wanted = map[uuid.UUID]int{}, map[uuid.UUID]int{}, map[uuid.UUID]int{}
	p.drained, p.evening = map[replicate.NodeID]int64{}, map[meta.PartitionID]bool{}
	if w.cfg.Nodes == 0 {
		o.nodes = 4 + p.r.IntN(2)
	}
	o.replicas = 1 + p.r.IntN(min(3, o.nodes))
	o.min = 1 + p.r.IntN(min(2, o.replicas))
	o.partitions = 2 + p.r.IntN(4)
	o.wipe = 0 // of a topic with one replica a disk is all there is
	o.chaos += p.r.Int64N(3000 * ms)
	p.every, p.copies = 80*ms+p.r.Int64N(400*ms), 1+p.r.IntN(3)
	if p.r.IntN(2) == 0 {
		p.after = 300*ms + p.r.Int64N(2000*ms)
	}
	count := 1 + p.r.IntN(3) // racks; 1: no node names one
	for range o.nodes {
		rack := ""
		if count > 1 {
			rack = string(rune('a' + p.r.IntN(count)))
		}
		p.racks = append(p.racks, rack)
	}
	w.extra.lateNode = w.extra.lateNode || !w.has(FeatureNodes) && p.r.IntN(2) == 0
}

func (w *World) startPlacement() {
	if w.has(FeaturePlacement) {
		w.every(w.placing.every, func() {
			if w.faults {
				w.place()
			}
		})
	}
}

// rack is where a node says that it stands.
func (n *host) rack() string {
	racks := n.w.placing.racks
	if n.w.cfg.Break == MutantWrongRack && len(racks) > 0 {
		return racks[(n.index+1)%len(racks)]
	}
	if len(racks) == 0 {
		return ""
	}
	return racks[n.index]
}

// place is what an operator does about placement now and then.
func (w *World) place() {
	p := &w.placing
	switch p.r.IntN(8) {
	case 0, 1:
		if ids := sortedTopics(w.store.snap); len(ids) > 0 {
			w.setReplicas(ids[p.r.IntN(len(ids))], w.opt.min+p.r.IntN(w.opt.nodes-w.opt.min+1))
		}
	case 2:
		w.rebalance(meta.RebalanceStart)
	case 3:
		w.rebalance(meta.RebalancePause)
	case 4:
		w.rebalance(meta.RebalanceResume)
	default:
		ids := w.store.snap.Partitions.IDs()
		if len(ids) == 0 {
			return
		}
		to := append(sortedNodes(w.store.snap), 0)
		w.transferLeader(ids[p.r.IntN(len(ids))], to[p.r.IntN(len(to))])
	}
}

// setReplicas is what `penstock cluster set-replicas` does.
func (w *World) setReplicas(id uuid.UUID, replicas int) {
	n, p := w.anyNode(), &w.placing
	if n == nil {
		return
	}
	delete(p.wanted, id)
	alone := p.open[id] == 0
	p.open[id]++
	p.sized[id]++
	asked := p.sized[id]
	w.agreement.ask(n, fmt.Sprintf("topic %v is to have %d replicas", id, replicas),
		func(ctx context.Context, s meta.Store) error {
			_, err := s.SetReplicas(ctx, id, replicas)
			if errors.Is(err, meta.ErrUnavailable) || errors.Is(err, meta.ErrConflict) {
				return err // it may have been applied, or still be
			}
			p.open[id]--
			if err == nil {
				w.Stats.Resized++
			}
			if err == nil && alone && p.sized[id] == asked {
				p.wanted[id] = replicas
			}
			return err
		})
}

// rebalance is what `penstock cluster rebalance` does.
func (w *World) rebalance(order meta.RebalanceOrder) {
	n, p := w.anyNode(), &w.placing
	if n == nil {
		return
	}
	if order == meta.RebalanceResume {
		p.paused = false
		p.resumes++
		p.resumed++
	}
	before, open := p.resumed, p.resumes // a resume that is open now may be applied after a pause that is asked for now
	w.agreement.ask(n, fmt.Sprintf("a rebalance: %s", order), func(ctx context.Context, s meta.Store) error {
		err := s.Rebalance(ctx, order)
		switch {
		case err != nil:
		case order == meta.RebalanceResume:
			p.resumes--
		case order == meta.RebalancePause && open == 0 && p.resumed == before:
			p.paused = true
		}
		return err
	})
}

// transferLeader is what `penstock cluster transfer-leader` does; to is 0 if the best node is wanted.
func (w *World) transferLeader(id meta.PartitionID, to replicate.NodeID) {
	n := w.anyNode()
	if n == nil {
		return
	}
	w.agreement.ask(n, fmt.Sprintf("node %d is to lead %s", to, w.partName(id)),
		func(ctx context.Context, s meta.Store) error {
			_, err := s.TransferLeader(ctx, id, to)
			if err == nil {
				w.Stats.Ordered++
			}
			return err
		})
}

// evenOut is what an operator does when the faults have ended, until the cluster is even.
func (w *World) evenOut() {
	switch s := w.store.snap; {
	case !w.has(FeaturePlacement):
		return
	case s.Rebalance.Paused:
		w.rebalance(meta.RebalanceResume)
	case !s.Rebalance.Wanted && w.uneven() != "":
		w.rebalance(meta.RebalanceStart)
	}
	w.after(500*ms, w.evenOut)
}
