package world

import (
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/netproto"
)

// Nodes of two feature levels: the cluster begins at level 1, and the binaries of its nodes change whenever they are
// started, forward and back, until an operator raises the cluster. Until that is done nothing of level 2 may be sent or
// stored, and no node that knows level 1 only may be left behind.

// lastTypeOfLevel1 is the last of level 1: what has a higher number belongs to level 2.
const lastTypeOfLevel1 = netproto.TypeUnserved

// startLevels begins at level 1.
func (w *World) startLevels() {
	if !w.has(FeatureLevels) {
		return
	}
	w.store.snap.Level = 1
	w.every(300*ms, func() {
		if w.faults && w.gray.r.IntN(4) == 0 {
			w.raise()
		}
	})
}

// chooseBinary is what an operator starts on a node: any version until the cluster is being raised, then only one that
// knows the level.
func (n *host) chooseBinary() {
	w := n.w
	if !w.has(FeatureLevels) {
		return
	}
	n.binary = node.NewestLevel
	if _, wanted := w.store.snap.Levels(); wanted < node.NewestLevel && w.gray.r.IntN(3) == 0 {
		n.binary = 1
	}
	w.tracef("%s knows level %d", n.name, n.binary)
}

// raise begins to raise the cluster, if all registered nodes know the level.
func (s *store) raise(level int) bool {
	_, wanted := s.snap.Levels()
	if wanted >= level || len(s.snap.Nodes) == 0 {
		return false
	}
	for _, n := range s.snap.Nodes {
		if max(n.Level, 1) < level && s.w.cfg.Break != MutantEarlyLevel {
			return false
		}
	}
	next := s.edit()
	next.WantedLevel = level
	s.w.tracef("store: the cluster is raised to level %d", level)
	s.publish(next)
	return true
}

// tendLevel puts the level in force that all directories have.
func (s *store) tendLevel() {
	level, wanted := s.snap.Levels()
	if wanted <= level {
		return
	}
	for _, n := range s.snap.Nodes {
		if max(n.StoreLevel, 1) < wanted && s.w.cfg.Break != MutantEarlyLevel {
			return
		}
	}
	next := s.edit()
	next.Level = wanted
	s.w.tracef("store: level %d is in force", wanted)
	s.publish(next)
}

// admits says whether a process that knows a level may register.
func (s *store) admits(level int) error {
	if _, wanted := s.snap.Levels(); max(level, 1) < wanted && s.w.cfg.Break != MutantEarlyLevel {
		return meta.ErrNewerLevel
	}
	return nil
}

// checkFrame: a node gets nothing that its version does not know.
func (w *World) checkFrame(from, to *host, t netproto.Type) {
	if w.has(FeatureLevels) && t > lastTypeOfLevel1 && (to.binary < 2 || w.store.snap.FeatureLevel() < 2) {
		w.fail("%s sends %v to %s, which knows level %d; the cluster is at level %d",
			from.name, t, to.name, to.binary, w.store.snap.FeatureLevel())
	}
}

// checkLevels: nobody goes by a level that a node of the cluster does not know.
func (w *World) checkLevels(n *host) {
	if !w.has(FeatureLevels) || n.e.Level() < 2 {
		return
	}
	for _, o := range w.nodes {
		if o.m != nil && o.binary < 2 && o.joined() {
			w.fail("%s goes by level %d, and %s knows level %d", n.name, n.e.Level(), o.name, o.binary)
		}
	}
}

// joined says that the process was taken in by the store.
func (n *host) joined() bool {
	if n.w.agreement != nil {
		return n.e != nil
	}
	return n.client != nil && n.client.joined
}

// checkKinds: a cluster at level 1 has nothing of level 2 in its logs.
func (w *World) checkKinds(id meta.PartitionID, ct *fold.Control) {
	if w.has(FeatureLevels) && ct.Kind.Level() > w.store.snap.FeatureLevel() {
		w.fail("%s holds a control entry of kind %d, and the cluster is at level 1", w.partName(id), ct.Kind)
	}
}
