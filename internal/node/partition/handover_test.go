package partition

import (
	"context"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node/machine"
	"penstock/replicate"
	"penstock/segment"
)

// handOverStore answers HandOver with its errors, one after the other. The last error is repeated.
type handOverStore struct {
	meta.Store
	answers []error
	calls   int
}

func (s *handOverStore) HandOver(context.Context, meta.PartitionID, *replicate.State, replicate.NodeID) error {
	err := s.answers[min(s.calls, len(s.answers)-1)]
	s.calls++
	return err
}

// Snapshot says that node 2 is live.
func (s *handOverStore) Snapshot() *meta.Snapshot {
	return &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{2: {ID: 2, Live: true}}}
}

// leadingReplica returns a bareReplica that leads. The ISR has one other member.
func leadingReplica(t *testing.T, s meta.Store) *Replica {
	r := bareReplica()
	r.node.Rows = s
	r.generation, r.pt.machine = 1, machine.NewPartition(segment.State{}, segment.Sizes{})
	r.state = replicate.State{
		Epoch: 2, Version: 7, Leader: 1, Boot: r.node.Self.Boot, MinISR: 1, Replicas: []replicate.NodeID{1, 2},
		ISR: []replicate.Member{r.node.member(), {Node: 2}},
	}
	r.follow(replicate.NewFollower(replicate.Config{}, r.node.member(), r.node.Self.Boot, replicate.Log{Generation: 1}))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changeRole(); r.leader == nil {
		t.Fatal("it does not lead")
	}
	r.pending.Opened = true
	r.pt.StayReady() // there is no committer that push could tell
	return r
}

// A leader that the store has replaced takes no puts until it hears of its successor, however late that is: the batches
// of such puts would be cut. After an attempt that failed for another reason, it takes puts again.
func TestHandedOverLeaderStaysQuiet(t *testing.T) {
	for name, c := range map[string]struct {
		answers []error
		quiet   bool
	}{
		"handed over":         {[]error{nil, meta.ErrConflict}, true},
		"a conflict":          {[]error{meta.ErrConflict}, true},
		"nobody can have it":  {[]error{meta.ErrTooFewNodes}, false},
		"the store is silent": {[]error{meta.ErrUnavailable}, false},
	} {
		store := &handOverStore{answers: c.answers}
		r := leadingReplica(t, store)
		r.writesPaused = true
		for range 3 {
			if !r.node.TryHandOver(t.Context(), r.pt, 0) {
				break
			}
		}
		if r.writesPaused != c.quiet {
			t.Errorf("%s: writes wait %v", name, r.writesPaused)
		}
		if c.answers[0] != nil {
			continue
		}
		if r.resumeWrites(); !r.writesPaused || store.calls != 1 {
			t.Errorf("%s: writes wait %v, the store was asked %d times", name, r.writesPaused, store.calls)
		}
		r.state.Version++ // a newer row, by which this node may lead again
		if r.resumeWrites(); r.writesPaused {
			t.Errorf("%s: writes wait for ever", name)
		}
	}
}

// Whoever hands a partition over waits for news of it: while its writes are paused, each step is such news, for example
// that the last pending batch is committed.
func TestStepsOfAHandOverAreNews(t *testing.T) {
	r := leadingReplica(t, &handOverStore{})
	for _, paused := range []bool{false, true} {
		r.writesPaused = paused
		next := r.node.above.News().Next()
		r.run(func() {})
		raised := false
		select {
		case <-next:
			raised = true
		default:
		}
		if raised != paused {
			t.Errorf("writes paused %v: news %v", paused, raised)
		}
	}
}
