package channel

import (
	"testing"

	"penstock/engine/base"
)

// A channel has the troubles that were noted; one that has ended has none.
func TestTroubles(t *testing.T) {
	c, _ := newTestChannel(t, 1)
	note := func(full, aside int) {
		t.Helper()
		c.mu.Lock()
		c.note(func(t *Troubles) { t.FullPartitions, t.AsideCount = full, aside })
		got := c.Troubles() // it does not wait for who looks at the channel
		c.mu.Unlock()
		if got.FullPartitions != full || got.AsideCount != aside {
			t.Errorf("%+v, want %d full partitions and %d letters", got, full, aside)
		}
	}
	note(0, 0)
	note(2, 3)
	note(0, 3)
	note(0, 1)
	c.Shut(base.ErrDeleted)
	if c.Troubles() != (Troubles{}) {
		t.Errorf("a channel that ended has %+v", c.Troubles())
	}
}
