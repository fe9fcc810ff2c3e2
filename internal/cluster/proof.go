package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/replicate"
)

// Nodes of a cluster prove a secret to each other. One that has another secret can still reach an etcd that the cluster
// shares with others: it would be given replicas that it can neither fetch nor serve. So the first node writes what
// follows from its secrets and the cluster's identity into the row proof, and who registers must have one of them.

// ErrSecret says that a node has another secret than the cluster.
var ErrSecret = errors.New("cluster: this node does not have the cluster's secret")

// secretPatience is how many lease times a node waits for the end of the processes that had another secret.
const secretPatience = 2

// proofRow is the row proof: one text for each secret that holds.
type proofRow struct {
	Proofs []string `json:"proofs"`
}

// judgeProofs compares what the row has with what the node has. It returns what the row has to say from now on, and
// whether the node belongs to the cluster. others says whether other nodes live: without them, the node's secrets are
// the cluster's new ones.
func judgeProofs(known, own []string, others bool) (next []string, belongs bool) {
	shares := slices.ContainsFunc(own, func(p string) bool { return slices.Contains(known, p) })
	if shares || !others || len(known) == 0 {
		return own, true
	}
	return known, false
}

// prove returns what to compare and write so that the row proof has this node's secrets; ErrSecret if it has others
// than the cluster. self is 0 for a node that is not registered yet. id is the cluster's.
func (s *store) prove(st *state, id uuid.UUID, self replicate.NodeID) (conds []kv.Cond, ops []kv.Op, err error) {
	if s.opts.Proofs == nil {
		return nil, nil, nil
	}
	own, others := s.opts.Proofs(id), []string(nil)
	for other, n := range st.nodes {
		if other != self && n.rev != 0 && n.liveRev != 0 {
			others = append(others, n.row.Name)
		}
	}
	slices.Sort(others)
	next, belongs := judgeProofs(st.proofs, own, len(others) > 0)
	if !belongs {
		return nil, nil, fmt.Errorf("%w: give it the --cluster-secret-file that the nodes which run have (%v), or stop all "+
			"of them first if the secret is to be another one; nothing was changed", ErrSecret, others)
	}
	if slices.Equal(next, st.proofs) {
		return nil, nil, nil
	}
	key := s.key(proofKey)
	return []kv.Cond{{Key: key, ModRevision: st.proofRev}}, []kv.Op{put(key, proofRow{next})}, nil
}

// Prove writes this node's secrets into the row proof, after they have changed.
func (s *store) Prove(ctx context.Context) error {
	s.mu.Lock()
	self := s.node.ID
	s.mu.Unlock()
	return s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) { return s.prove(st, st.snap.Cluster, self) })
}

// mayHaveSecretSoon says whether a node that was refused for its secret since a time should try again: the processes
// with the other secret may be gone, and their leases end.
func (s *store) mayHaveSecretSoon(err error, since, now time.Time) bool {
	return errors.Is(err, ErrSecret) && now.Sub(since) < secretPatience*s.opts.LeaseTTL
}
