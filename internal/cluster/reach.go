package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// A lease says that a node reaches the metadata store, not that other nodes reach it: it may be cut off from them, or
// listen where nobody comes through, or be let in by none of them. A replica there could neither fetch nor serve. So
// replicas go only to nodes to which the node that decides has a connection: the controller, or the one that is asked
// to make a topic or a move. The controller looks again at its next tick. Store.CreateTopic gives a node that has just
// joined the time of a lease to be connected, and then goes on with the others.

// unreached says since when each living process has no connection to this node. It is in memory only: a process that
// starts begins to observe anew. store.mu guards it.
type unreached map[replicate.NodeID]apartness

type apartness struct {
	boot  uuid.UUID
	since time.Time
}

// observe takes note of who is connected now. self is this node.
func (u unreached) observe(
	s *meta.Snapshot, self replicate.NodeID, now time.Time, reaches func(replicate.NodeID) bool,
) {
	for id, n := range s.Nodes {
		switch old, known := u[id]; {
		case id == self || !n.Live || reaches(id):
			delete(u, id)
		case !known || old.boot != n.Boot:
			u[id] = apartness{n.Boot, now}
		}
	}
	maps.DeleteFunc(u, func(id replicate.NodeID, _ apartness) bool { return s.Nodes[id] == nil })
}

// apart returns the nodes without a connection.
func (u unreached) apart() map[replicate.NodeID]bool {
	apart := make(map[replicate.NodeID]bool, len(u))
	for id := range u {
		apart[id] = true
	}
	return apart
}

// pending says whether a node may be connected soon, as it has not been without a connection for that long.
func (u unreached) pending(now time.Time, patience time.Duration) bool {
	for _, a := range u {
		if now.Sub(a.since) < patience {
			return true
		}
	}
	return false
}

// reached returns those of the nodes that are not apart.
func reached(nodes []*meta.Node, apart map[replicate.NodeID]bool) []*meta.Node {
	return slices.DeleteFunc(nodes, func(n *meta.Node) bool { return apart[n.ID] })
}

// lookAround returns the living nodes to which this node has no connection, and whether one may be connected soon.
func (s *store) lookAround(st *state) (apart map[replicate.NodeID]bool, pending bool) {
	s.mu.Lock()
	reaches, self := s.reaches, s.node.ID
	s.mu.Unlock()
	if reaches == nil {
		return nil, false
	}
	connected := make(map[replicate.NodeID]bool, len(st.snap.Nodes))
	for id := range st.snap.Nodes {
		connected[id] = reaches(id) // it takes locks that come before mu
	}
	now := s.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unreached.observe(st.snap, self, now, func(id replicate.NodeID) bool { return connected[id] })
	return s.unreached.apart(), s.unreached.pending(now, s.opts.LeaseTTL)
}

// takers returns the present state, and the nodes that may be given the replicas of a new topic or partition. It waits
// until those that may be connected soon are.
func (s *store) takers(ctx context.Context) (*state, []*meta.Node, error) {
	for {
		st, err := s.current()
		if err != nil {
			return nil, nil, err
		}
		apart, pending := s.lookAround(st)
		if !pending {
			return st, reached(candidates(st.snap), apart), nil
		}
		if err := s.pause(ctx, conflictPause); err != nil {
			return nil, nil, err
		}
	}
}

// tooFew explains why there are too few nodes for replicas, if some are alive and not connected.
func tooFew(err error, s *meta.Snapshot, nodes []*meta.Node) error {
	var names []string
	for _, n := range candidates(s) {
		if !slices.Contains(nodes, n) {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return err
	}
	return fmt.Errorf("%w; this node has no connection to %v, which are alive: see whether they reach each other, and "+
		"have the cluster's secret or certificates", err, names)
}
