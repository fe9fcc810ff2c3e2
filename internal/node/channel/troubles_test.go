package channel

import (
	"testing"

	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
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
	c.Shut(errs.ErrDeleted)
	if c.Troubles() != (Troubles{}) {
		t.Errorf("a channel that ended has %+v", c.Troubles())
	}
}

// A channel is starved when messages wait and somebody consumes, but nothing is in flight and nothing was delivered for
// starvedAfter; and not before somebody has looked that long.
func TestStarvation(t *testing.T) {
	waits := delivery.ChannelStats{Depth: 1, ClientCount: 1, DeliverCount: 7}
	for name, tc := range map[string]struct {
		change func(m *delivery.ChannelStats)
		want   bool
	}{
		"nothing is delivered":  {func(*delivery.ChannelStats) {}, true},
		"nothing waits":         {func(m *delivery.ChannelStats) { m.Depth = 0 }, false},
		"nobody consumes":       {func(m *delivery.ChannelStats) { m.ClientCount = 0 }, false},
		"a consumer is at work": {func(m *delivery.ChannelStats) { m.InFlightCount = 1 }, false},
		"it is paused":          {func(m *delivery.ChannelStats) { m.Paused = true }, false},
		"it skips":              {func(m *delivery.ChannelStats) { m.Skipped = true }, false},
		"one was delivered":     {func(m *delivery.ChannelStats) { m.DeliverCount++ }, false},
	} {
		var s starvation
		last := waits
		tc.change(&last)
		for at := starvedAfter; at < 2*starvedAfter; at += starvedAfter / 4 {
			if s.look(&waits, at) {
				t.Errorf("%s: it is starved after %v", name, at-starvedAfter)
			}
		}
		if got := s.look(&last, 2*starvedAfter); got != tc.want {
			t.Errorf("%s: starved %v, want %v", name, got, tc.want)
		}
		if s.look(&last, 4*starvedAfter) {
			t.Errorf("%s: nobody has looked for a while, and it is starved", name)
		}
	}
}
