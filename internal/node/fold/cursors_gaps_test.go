package fold

import (
	"math/rand/v2"
	"testing"

	"penstock/segment"
)

// Ids that follow each other make one hole, whichever way they came; a channel has those of the topic and its own.
func TestGaps(t *testing.T) {
	published := func(ids ...segment.MsgID) func(*Cursors) {
		return func(c *Cursors) {
			for _, id := range ids {
				c.Publish(id, 1)
				c.PublishDeferred([]DeferredMessage{{ID: id, DueMs: 1}})
			}
		}
	}
	apply := func(ct Control) func(*Cursors) {
		return func(c *Cursors) {
			if err := c.Apply(&ct, 100); err != nil {
				t.Fatal(err)
			}
		}
	}
	requeued := func(channel string, ids ...segment.MsgID) func(*Cursors) {
		ct := Control{Kind: Deferred, Channel: channel}
		for _, id := range ids {
			ct.Deferrals = append(ct.Deferrals, Deferral{ID: id, DueMs: 1})
		}
		return apply(ct)
	}
	confirmed := func(channel string, from, to segment.MsgID) func(*Cursors) {
		return apply(Control{Kind: Confirmed, Channel: channel, Ranges: []IDRange{{from, to}}})
	}
	type steps = []func(*Cursors)
	for name, tc := range map[string]struct {
		steps      steps
		before, is int // before and after they were counted
	}{
		"none":                     {steps{}, 0, 0},
		"one after the other":      {steps{published(3, 4, 5, 6)}, 1, 1},
		"apart":                    {steps{published(3, 5, 7)}, 3, 3},
		"one becomes two":          {steps{published(3, 4, 5), confirmed("a", 4, 5), confirmed("b", 4, 5)}, 2, 2},
		"one becomes shorter":      {steps{published(3, 4, 5), confirmed("a", 5, 6), confirmed("b", 5, 6)}, 2, 1},
		"confirmed by one alone":   {steps{published(3, 4, 5), confirmed("a", 4, 5)}, 1, 1},
		"the channel with most":    {steps{published(3), requeued("a", 5, 6, 7), requeued("b", 10)}, 4, 2},
		"requeued again":           {steps{requeued("a", 5, 7), requeued("a", 5, 6, 7)}, 3, 1},
		"requeued and confirmed":   {steps{requeued("a", 5, 7, 9), confirmed("a", 6, 8)}, 2, 2},
		"requeued and then reset":  {steps{requeued("a", 5, 7, 9), apply(Control{Kind: ChannelReset, Channel: "a"})}, 0, 0},
		"requeued by what is gone": {steps{requeued("a", 5, 7), apply(Control{Kind: ChannelDeleted, Channel: "a"})}, 0, 0},
	} {
		c := &Cursors{}
		for _, ch := range []string{"a", "b"} {
			apply(Control{Kind: ChannelCreated, Channel: ch})(c)
		}
		for _, step := range tc.steps {
			step(c)
		}
		if got := c.Gaps(); got != tc.before {
			t.Errorf("%s: %d holes, want %d", name, got, tc.before)
		}
		if c.CountGaps(1); c.Gaps() != tc.is {
			t.Errorf("%s: counted %d holes, want %d", name, c.Gaps(), tc.is)
		}
		c, _, err := DecodeCursors(c.Append(nil))
		if err != nil || c.Gaps() != tc.is {
			t.Errorf("%s: decoded %d holes (%v), want %d", name, c.Gaps(), err, tc.is)
		}
	}
}

// Whatever happens, the bound is not below the number of holes.
func TestGapsAreABound(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := &Cursors{}
		apply := func(ct Control) {
			if err := c.Apply(&ct, c.End()); err != nil {
				t.Fatal(err)
			}
		}
		apply(Control{Kind: ChannelCreated, Channel: "a"})
		for range 100 {
			id := segment.MsgID(rng.Uint64N(uint64(c.End()) + 1))
			switch rng.IntN(5) {
			case 0:
				c.Publish(c.End(), uint32(rng.IntN(3)))
			case 1, 2:
				c.PublishDeferred([]DeferredMessage{{ID: c.End(), DueMs: 1}})
				c.Publish(c.End(), 1)
			case 3:
				if id < c.End() {
					apply(Control{Kind: Deferred, Channel: "a", Deferrals: []Deferral{{ID: id, DueMs: 1}}})
				}
			case 4:
				to := min(c.End(), id+segment.MsgID(rng.IntN(4)))
				if id < to {
					apply(Control{Kind: Confirmed, Channel: "a", Ranges: []IDRange{{id, to}}})
				}
			}
			bound := c.Gaps()
			if exact := c.Clone(); bound < holes(exact) {
				t.Fatalf("seed %d: at most %d holes, and there are %d", seed, bound, holes(exact))
			}
			if rng.IntN(20) == 0 {
				if c.CountGaps(1); c.Gaps() > bound {
					t.Fatalf("seed %d: counting raised the bound from %d to %d", seed, bound, c.Gaps())
				}
			}
		}
	}
}

// holes counts the runs of messages that wait in the only channel.
func holes(c *Cursors) (count int) {
	waits := map[segment.MsgID]bool{}
	for _, d := range c.Deferred {
		waits[d.ID] = true
	}
	for _, d := range c.Channel("a").Requeued {
		waits[d.ID] = true
	}
	for id := range waits {
		if id == 0 || !waits[id-1] {
			count++
		}
	}
	return count
}
