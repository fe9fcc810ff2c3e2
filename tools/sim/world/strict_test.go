package world

import (
	"math/rand/v2"
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/stepped"
)

// A FIN counts as in time only if no node stood still around it: a leader counts a message's timeout from when it sends
// it, and a node that stands still gets it later, or sends the FIN later. B44.
func TestFinishInTime(t *testing.T) {
	const timeout, fin = 200 * ms, 10_000 * ms
	for _, c := range []struct {
		name      string
		came      int64    // when the message came
		asleep    [2]int64 // until when the two nodes stood still
		freezes   int64    // when one stands still after the FIN; 0: none does
		isCounted bool
	}{
		{"at once", fin - 5*ms, [2]int64{}, 0, true},
		{"late", fin - 150*ms, [2]int64{}, 0, false},
		{"its node stood still before the message came", fin - 5*ms, [2]int64{fin - 5*ms, 0}, 0, false},
		{"its node stood still long before", fin - 5*ms, [2]int64{fin - 2*timeout, 0}, 0, true},
		{"the other node stood still before", fin - 5*ms, [2]int64{0, fin - 100*ms}, 0, false},
		{"the other node stands still", fin - 5*ms, [2]int64{0, fin + 20*ms}, 0, false},
		{"one stands still soon after", fin - 5*ms, [2]int64{}, fin + 1*ms, false},
		{"one stands still much later", fin - 5*ms, [2]int64{}, fin + 2*timeout, true},
	} {
		w := &World{now: fin, rng: rand.New(rand.NewPCG(1, 1))}
		w.opt.msgTimeout, w.opt.leaseTTL = timeout, 900*ms
		for _, until := range c.asleep {
			w.nodes = append(w.nodes, &host{w: w, asleep: until, m: &stepped.Host{}})
		}
		a := &agent{n: w.nodes[0], got: map[node.ID]int64{7: c.came}, taken: map[node.ID]int64{}}
		a.n.agents = []*agent{a}
		a.noteFinish(7)
		if c.freezes != 0 {
			w.now = c.freezes
			w.freeze(w.nodes[1])
		}
		if _, is := a.taken[7]; is != c.isCounted {
			t.Errorf("%s: it counts as in time: %v", c.name, is)
		}
	}
}
