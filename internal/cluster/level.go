package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// levelRow is the cluster's feature level. A cluster without the row is at level 1.
type levelRow struct {
	Level  int `json:"level"`
	Wanted int `json:"wanted,omitzero"` // the level to which it is being raised: nodes raise their directories
}

// knows returns the highest feature level that a node's version knows, and the level of its data directory. A version
// from before there were levels states neither; both are 1.
func knows(n *meta.Node) (level, store int) { return max(n.Level, 1), max(n.StoreLevel, 1) }

// levelCond returns the condition that the level's row is the one in st.
func (s *store) levelCond(st *state) kv.Cond {
	return kv.Cond{Key: s.key(levelKey), ModRevision: st.levelRev}
}

// enterLevel lets the directory of a registering node know that this process replaces row (nil: none), and raises the
// directory to the level of the cluster, or founds the cluster at the level in r.Founding. It returns the conditions
// and writes that the registration needs for that.
func (s *store) enterLevel(
	st *state, r *meta.Registration, n, row *meta.Node,
) (conds []kv.Cond, ops []kv.Op, err error) {
	level, need := st.snap.Levels()
	if founding := max(r.Founding, 1); st.snap.Cluster == uuid.Nil && st.levelRev == 0 && founding > 1 {
		need = founding
		ops = append(ops, put(s.key(levelKey), levelRow{Level: founding}))
	}
	conds = append(conds, s.levelCond(st))
	known, stored := knows(n)
	if known < need {
		return nil, nil, fmt.Errorf("cluster: it is at feature level %d (%d once it is raised), and this version of node "+
			"%q knows level %d: nothing was changed, start the newer version: %w",
			level, need, n.Name, known, meta.ErrNewerLevel)
	}
	if r.Enter != nil {
		if err := r.Enter(row); err != nil {
			return nil, nil, err
		}
	}
	if stored < need && r.Raise != nil {
		if err := r.Raise(need); err != nil {
			return nil, nil, err
		}
		n.StoreLevel = need
	}
	return conds, ops, nil
}

// everyNode returns the conditions that the registered nodes are those of st, with the same rows.
func (s *store) everyNode(st *state) []kv.Cond {
	conds := []kv.Cond{{Key: s.key(lastIDKey), ModRevision: st.lastIDRev}}
	for id, n := range st.nodes {
		if n.rev != 0 {
			conds = append(conds, kv.Cond{Key: s.key(nodeKey(nodesDir, id)), ModRevision: n.rev})
		}
	}
	return conds
}

// lacking returns the names of the nodes for which enough is false.
func lacking(st *state, enough func(level, store int) bool) []string {
	var names []string
	for _, n := range st.nodes {
		if n.rev != 0 && !enough(knows(n.row)) {
			names = append(names, n.row.Name)
		}
	}
	slices.Sort(names)
	return names
}

// RaiseLevel implements meta.Store.
func (s *store) RaiseLevel(ctx context.Context, level int) error {
	return s.change(ctx, func(st *state) ([]kv.Cond, []kv.Op, error) {
		now, wanted := st.snap.Levels()
		switch {
		case level == wanted:
			return nil, nil, nil
		case level < wanted:
			return nil, nil, fmt.Errorf("the cluster is at feature level %d and is raised to %d: it cannot go back to %d: %w",
				now, wanted, level, meta.ErrLevel)
		}
		if names := lacking(st, func(known, _ int) bool { return known >= level }); len(names) > 0 {
			return nil, nil, fmt.Errorf("feature level %d is not known to all nodes: start the newer version on %s, or remove "+
				"what is gone for ever: %w",
				level, strings.Join(names, ", "), meta.ErrLevel)
		}
		return append(s.everyNode(st), s.levelCond(st)), []kv.Op{put(s.key(levelKey), levelRow{Level: now, Wanted: level})},
			nil
	})
}

// Raised implements meta.Store.
func (s *store) Raised(ctx context.Context, level int) error {
	s.mu.Lock()
	s.node.StoreLevel = level
	own := s.node
	s.mu.Unlock()
	return s.editNode(ctx, own.ID, own.Boot, func(row *meta.Node) { row.Level, row.StoreLevel = own.Level, level })
}

// tendLevel does two things. As the controller, it puts the wanted level in force when all directories have it. On any
// node, it turns away nodes that do not know the level in force, because versions from before there were levels do not
// look at it when they register.
func (s *store) tendLevel(ctx context.Context, st *state, controls bool) error {
	level, wanted := st.snap.Levels()
	if controls && wanted > level && len(lacking(st, func(_, store int) bool { return store >= wanted })) == 0 {
		ok, revision, err := s.txn(ctx, append(s.everyNode(st), s.levelCond(st)), []kv.Op{
			put(s.key(levelKey), levelRow{Level: wanted}),
		})
		if ok {
			s.log.Info("the feature level of the cluster was raised", "from", level, "to", wanted)
			return s.waitRevision(ctx, revision)
		}
		return err
	}
	for id, n := range st.nodes {
		if known, _ := knows(orNone(n.row)); n.rev == 0 || known >= level || n.row.Boot == uuid.Nil {
			continue
		}
		if err := s.turnAway(ctx, st, id); err != nil {
			return err
		}
	}
	return nil
}

func orNone(n *meta.Node) *meta.Node {
	if n == nil {
		return new(meta.Node)
	}
	return n
}

// turnAway takes the registration away from a process: that process finds another boot in its row and stops serving.
func (s *store) turnAway(ctx context.Context, st *state, id replicate.NodeID) error {
	row, key := *st.nodes[id].row, s.key(nodeKey(nodesDir, id))
	row.Boot = uuid.Nil
	ok, revision, err := s.txn(ctx, []kv.Cond{{Key: key, ModRevision: st.nodes[id].rev}, s.levelCond(st)}, []kv.Op{
		put(key, row),
	})
	if !ok || err != nil {
		return err
	}
	s.log.Error("a node registered whose version does not know the cluster's feature level: it was turned away and "+
		"serves nothing; stop it and start the newer version there",
		"name", row.Name, "version", row.Version, "level", st.snap.FeatureLevel())
	return s.waitRevision(ctx, revision)
}
