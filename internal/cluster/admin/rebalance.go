package admin

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"penstock/internal/cluster"
	"penstock/internal/meta"
)

// RebalanceState says what the rebalancing does.
type RebalanceState string

// The states.
const (
	RebalanceIdle    RebalanceState = "idle"
	RebalanceRunning RebalanceState = "running"
	RebalancePaused  RebalanceState = "paused" // nothing new begins; moves that are under way end
)

// Rebalancing is the part of Status about moves. MoveCount counts all moves that are under way, also those of drains
// and of operators. RemainingCount are the steps that a rebalance still has to begin; it is counted only while a
// rebalance is wanted, and not beyond cluster.MaxProposalCount.
type Rebalancing struct {
	State          RebalanceState `json:"state"`
	Wanted         bool           `json:"wanted"` // a rebalance is not complete
	MoveCount      int            `json:"moves"`
	WaitingCount   int            `json:"waiting"` // moves that do not go on without something else
	RemainingCount int            `json:"remaining"`
	Gone           string         `json:"gone"` // a node whose replicas are made elsewhere because it was away for long
}

// Plan is the answer of GET /cluster/rebalance: the moves that are under way, and what a rebalance would do after them,
// in this order and not beyond cluster.MaxProposalCount.
type Plan struct {
	Rebalancing
	Moves []Step `json:"under_way"`
	Steps []Step `json:"steps"`
}

// Step takes a replica from one node to another one. With Swap, both hold a replica, and To becomes the preferred
// leader in place of From: nothing is copied.
type Step struct {
	Topic     string `json:"topic"`
	Partition uint32 `json:"partition"`
	From      string `json:"from"`
	To        string `json:"to"`
	Swap      bool   `json:"swap"`

	// Set only if a move is under way: its owner, and what it does or waits for.
	Owner MoveOwner `json:"owner,omitempty"`
	State string    `json:"state,omitempty"`
}

// MoveOwner is the kind of party that began a move.
type MoveOwner string

// The owners.
const (
	OwnerOperator   MoveOwner = "operator"
	OwnerController MoveOwner = "controller" // for a drain or a rebalance
)

// RebalanceRequest is the body of /cluster/rebalance.
type RebalanceRequest struct {
	Action meta.RebalanceOrder `json:"action"` // start, pause, resume or cancel
}

func rebalancingOf(s *meta.Snapshot) Rebalancing {
	r := Rebalancing{
		State: RebalanceIdle, Wanted: s.Rebalance.Wanted, MoveCount: len(s.Moves), Gone: nodeName(s, s.GoneNode()),
	}
	for id := range s.Moves {
		if _, goesOn := cluster.MoveState(s, id); !goesOn {
			r.WaitingCount++
		}
	}
	switch {
	case s.Rebalance.Paused:
		r.State = RebalancePaused
	case s.Rebalance.Wanted:
		r.State = RebalanceRunning
	}
	if r.Wanted {
		r.RemainingCount = len(cluster.Rebalancing(s, s.GoneNode()))
	}
	return r
}

// rebalance answers GET with a Plan, and POST with a Done.
func (h *handler) rebalance() http.Handler {
	do, show := post(h, h.orderRebalance), only(http.MethodGet, h.plan)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			do.ServeHTTP(w, r)
			return
		}
		show.ServeHTTP(w, r)
	})
}

func (h *handler) plan(*http.Request) (any, error) {
	s, err := h.snapshot()
	if err != nil {
		return nil, err
	}
	p := &Plan{Rebalancing: rebalancingOf(s), Moves: []Step{}, Steps: []Step{}}
	step := func(id meta.PartitionID, m meta.Move, swap bool) Step {
		name := id.Topic.String()
		if t := s.Topics[id.Topic]; t != nil {
			name = t.Name
		}
		return Step{Topic: name, Partition: id.Partition, From: nodeName(s, m.From), To: nodeName(s, m.To), Swap: swap}
	}
	for id, m := range s.Moves {
		move := step(id, m, false)
		move.State, _ = cluster.MoveState(s, id)
		if move.Owner = OwnerOperator; m.Drain {
			move.Owner = OwnerController
		}
		p.Moves = append(p.Moves, move)
	}
	slices.SortFunc(p.Moves, func(a, b Step) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for _, r := range cluster.Rebalancing(s, s.GoneNode()) {
		p.Steps = append(p.Steps, step(r.ID, meta.Move{From: r.From, To: r.To}, r.Swap))
	}
	return p, nil
}

func (h *handler) orderRebalance(ctx context.Context, s *meta.Snapshot, b *RebalanceRequest) (string, error) {
	message := ""
	switch b.Action {
	case meta.RebalanceStart:
		message = "the replicas are being spread evenly over the nodes and racks, a few partitions at a time"
		if s.Rebalance.Paused {
			message = "a rebalance is wanted, and begins when the pause ends"
		}
	case meta.RebalancePause:
		message = "no rebalance begins another move; those that are under way end"
	case meta.RebalanceResume:
		message = "rebalancing goes on"
		if !s.Rebalance.Wanted {
			message = "rebalancing is not paused any more; none is wanted now"
		}
	case meta.RebalanceCancel:
		message = "no rebalance is wanted any more; the moves that are under way end"
	default:
		return "", refuse(http.StatusBadRequest, "action is %q: start, pause, resume or cancel are possible", b.Action)
	}
	return message, h.store.Rebalance(ctx, b.Action)
}
