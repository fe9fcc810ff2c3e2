package channel

import (
	"testing"

	"penstock/engine/base"
)

// The node knows whether a channel has troubles; one that has ended has none.
func TestTroubles(t *testing.T) {
	c, _ := newTestChannel(t, 1)
	note := func(full, aside int, want bool) {
		t.Helper()
		c.mu.Lock()
		c.note(func(t *Troubles) { t.FullPartitions, t.AsideCount = full, aside })
		c.mu.Unlock()
		if got := c.Troubles(); c.node.HasTroubles() != want || got.FullPartitions != full || got.AsideCount != aside {
			t.Errorf("%+v, the node has troubles: %v", got, c.node.HasTroubles())
		}
	}
	note(0, 0, false)
	note(1, 0, true)
	note(2, 3, true)
	note(0, 3, true)
	note(0, 0, false)
	note(0, 1, true)
	c.Shut(base.ErrDeleted)
	if c.node.HasTroubles() || c.Troubles() != (Troubles{}) {
		t.Errorf("a channel that ended has %+v", c.Troubles())
	}
}
