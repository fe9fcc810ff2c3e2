package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"penstock/internal/lock"
	"penstock/internal/meta"
	"penstock/replicate"
)

// A hand-over makes another member of the ISR the leader, because the present one asks for that. Whatever asks, heirOf
// decides: nobody gets a leadership who would give it back at once, and a node gives one partition away only so often.

const (
	// maxHandOverCount is how often a node gives a partition away within handOverSpan. People and restarts do not come
	// near it. Beyond it the node goes on leading, or the controller elects another one if it goes.
	maxHandOverCount = 10
	handOverSpan     = 10 * time.Second
)

// HandOver implements meta.Store.
func (s *store) HandOver(ctx context.Context, id meta.PartitionID, from *replicate.State, to replicate.NodeID) error {
	for range maxAttemptCount {
		st, row, err := s.partition(ctx, id)
		if err != nil {
			return err
		}
		if row.State.Version < from.Version { // the watch is behind the caller
			if row, err = s.readPartition(ctx, id); err != nil {
				return err
			}
		}
		if !sameLeadership(&row.State, from) {
			return meta.ErrConflict
		}
		now := s.opts.Now()
		heir, err := heirOf(st, &row.Partition, to, s.handed.since(id, now.Add(-handOverSpan)))
		if err != nil {
			return err
		}
		next := edit(&row.Partition)
		lead(next, st.snap.Nodes[heir])
		releaseHung(st.snap, next, from.Leader)
		ok, revision, err := s.putPartition(ctx, next, row.rev, st.conds(s.opts.Prefix, heir))
		if err != nil {
			return err
		}
		if ok {
			s.handed.note(id, now)
			return s.waitRevision(ctx, revision)
		}
		if err := s.waitChange(ctx, st); err != nil {
			return err
		}
	}
	return meta.ErrConflict
}

// heirOf decides who takes a partition over from its leader: the node that an operator has ordered if that is possible,
// otherwise to if it is not 0, otherwise the best one. The caller names a node that may have what the leader lacks, or
// that reaches the others: also one that drains or whose disk is slow. before is how often the leader's node gave the
// partition away within handOverSpan. It is pure.
func heirOf(st *state, p *meta.Partition, to replicate.NodeID, before int) (replicate.NodeID, error) {
	heirs := heirsOf(st, p)
	if ordered := p.TransferTo(); slices.Contains(heirs, ordered) {
		to = ordered // the caller may not know of the order yet
	}
	switch {
	case to == 0 && len(heirs) == 0:
		return 0, fmt.Errorf("no other member of the ISR is alive, whole and not draining: %w", meta.ErrTooFewNodes)
	case to != 0 && !mayBeNamed(st, p, to):
		return 0, fmt.Errorf("node %s is no other live and whole member of the ISR whose disk works: %w",
			st.snap.NodeName(to), meta.ErrUnsafe)
	case before >= maxHandOverCount:
		return 0, fmt.Errorf("cluster: this node has given it away %d times in %v: it goes on leading until that is over, "+
			"because something asks for it again and again", before, handOverSpan)
	case to == 0:
		return choose(st.snap, p, heirs, st.load.leads), nil
	}
	return to, nil
}

// mayBeNamed says whether a leader may hand the partition over to a node that it names.
func mayBeNamed(st *state, p *meta.Partition, n replicate.NodeID) bool {
	return n != p.State.Leader && slices.Contains(electable(st, p), n) &&
		st.snap.Nodes[n].Rank() < meta.DiskFailed.Rank()
}

// heirsOf returns the nodes to which the leader of a partition may hand it over. If the leader's own disk is not good,
// only a node with a good disk takes over: a cause that all disks share must not send leaderships round. If the
// leader's disk has failed, a slow disk will do as well, because waiting longer would serve nobody. A node that drains
// would give the leadership back: it takes over only from a disk that hangs. A node whose clock differs may take over,
// since delays that are wrong are better than no leader: choose takes it last.
func heirsOf(st *state, p *meta.Partition) []replicate.NodeID {
	leader, worst, drains := p.State.Leader, meta.DiskFailed, false
	if own := st.snap.Nodes[leader]; own != nil && own.Disk != meta.DiskGood {
		worst = meta.DiskGood
		drains = hangs(own)
		if own.Disk == meta.DiskFailed {
			worst = meta.DiskSlow
		}
	}
	return slices.DeleteFunc(electable(st, p), func(n replicate.NodeID) bool {
		is := st.snap.Nodes[n]
		return n == leader || is.Disk.Rank() > worst.Rank() || is.Draining && !drains
	})
}

// handOvers remembers when this process gave partitions away, for handOverSpan. mu guards its fields.
type handOvers struct {
	mu    lock.Mutex[lock.ClusterGiven]
	at    map[meta.PartitionID][]time.Time // oldest first
	swept time.Time                        // when note last looked at all partitions
}

// since returns how often the partition was given away later than at a time.
func (h *handOvers) since(id meta.PartitionID, after time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(later(h.at[id], after))
}

// note notes a hand-over, and forgets those that do not count any more.
func (h *handOvers) note(id meta.PartitionID, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == nil {
		h.at = map[meta.PartitionID][]time.Time{}
	}
	h.at[id] = append(later(h.at[id], now.Add(-handOverSpan)), now)
	if now.Sub(h.swept) < handOverSpan {
		return
	}
	h.swept = now
	for id, at := range h.at {
		if h.at[id] = later(at, now.Add(-handOverSpan)); len(h.at[id]) == 0 {
			delete(h.at, id)
		}
	}
}

func later(at []time.Time, after time.Time) []time.Time {
	i := slices.IndexFunc(at, func(t time.Time) bool { return t.After(after) })
	if i < 0 {
		return nil
	}
	return at[i:]
}
