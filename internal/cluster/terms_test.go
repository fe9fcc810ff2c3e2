package cluster

import (
	"testing"

	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/segment"
)

// A row remembers its last leaders, also one of a version that noted none, and not more than a few.
func TestTerms(t *testing.T) {
	p := &meta.Partition{State: replicate.State{Epoch: 4, Leader: 9}}
	for n := replicate.NodeID(1); n <= 3; n++ {
		p = edit(p)
		lead(p, &meta.Node{ID: n})
	}
	for epoch, want := range map[segment.Epoch]replicate.NodeID{3: 0, 4: 9, 5: 1, 6: 2, 7: 3, 8: 0} {
		if got := p.LeaderIn(epoch); got != want {
			t.Errorf("node %d led in epoch %d, want %d", got, epoch, want)
		}
	}
	for n := replicate.NodeID(1); n <= 20; n++ {
		lead(p, &meta.Node{ID: n})
	}
	if len(p.Terms) != meta.MaxTermCount || p.LeaderIn(p.State.Epoch) != 20 || p.LeaderIn(p.State.Epoch-7) != 13 ||
		p.LeaderIn(p.State.Epoch-8) != 0 {
		t.Errorf("%+v", p.Terms)
	}
}
