package route

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// creditScript plays lines against a credit, and reports what the credit tells each leader. Time is in ms.
//
//	ready N        the client sets RDY N           heard I N    leader I answers its newest message: N in flight
//	legs N         there are N leaders             finished I   a message of leader I was finished
//	at N           the time is N; divide           gone I       leader I is gone
//	came I         a message of leader I came
func creditScript(t *testing.T, lines string) string {
	t.Helper()
	var c Credit
	var out []string
	var now int64
	divide := func() {
		for _, i := range c.Divide(now * 1e6) {
			out = append(out, fmt.Sprintf("%d:%d", i, c.legs[i].asked))
		}
		out = append(out, "/")
	}
	for line := range strings.SplitSeq(strings.TrimSpace(lines), ",") {
		var word string
		var a, b int
		if n, _ := fmt.Sscan(line, &word, &a, &b); n < 2 {
			t.Fatalf("line %q", line)
		}
		switch word {
		case "ready":
			c.Ready = a
			divide()
		case "legs":
			for len(c.legs) < a {
				c.legs = append(c.legs, &CreditLeg{})
			}
			divide()
		case "at":
			now = int64(a)
			divide()
		case "heard":
			if c.Answered(a, c.legs[a].seq, b) && c.Finished(a) {
				out = append(out, fmt.Sprintf("%d?", a))
			}
			divide()
		case "finished":
			if c.Finished(a) {
				out = append(out, fmt.Sprintf("%d?", a))
			}
		case "came":
			c.legs[a].Came()
		case "gone":
			c.legs = append(c.legs[:a], c.legs[a+1:]...)
			divide()
		default:
			t.Fatalf("line %q", line)
		}
	}
	return strings.Join(out, " ")
}

func TestCreditTables(t *testing.T) {
	for _, x := range []struct{ name, script, want string }{
		{"one leader gets all", "legs 1, ready 10, ready 3, heard 0 7, finished 0", "/ 0:10 / 0:3 / / 0?"},
		{"shares", "legs 3, ready 10", "/ 0:4 1:3 2:3 /"},
		{"ready before there are leaders", "ready 5, legs 2", "/ 0:3 1:2 /"},
		{"zero stops all", "legs 2, ready 4, ready 0", "/ 0:2 1:2 / 0:0 1:0 /"},
		{
			"a second leader waits until the first has given back",
			"ready 4, legs 1, legs 2, heard 0 4, finished 0, heard 0 3, heard 0 2",
			"/ 0:4 / 0:2 / / 0? 1:1 / 1:2 /",
		},
		{
			"what an old question found says nothing",
			"ready 4, legs 1, legs 2, finished 0, heard 0 4, heard 0 3",
			"/ 0:4 / 0:2 / 0? / 1:1 /",
		},
		{"a leader that is gone has nothing", "legs 2, ready 4, gone 0", "/ 0:2 1:2 / 0:4 /"},
		{"turns", "legs 2, ready 1, at 39, at 40, heard 0 0, at 79, at 80, heard 1 0", "/ 0:1 / / 0:0 / 1:1 / / 1:0 / 0:1 /"},
		{
			"a turn ends when its message is finished",
			"legs 2, ready 1, at 40, heard 0 1, at 50, finished 0, heard 0 0",
			"/ 0:1 / 0:0 / / / 0? 1:1 /",
		},
		{
			"three leaders, two credits",
			"legs 3, ready 2, came 0, at 40, heard 1 0, at 79, at 80, heard 2 0",
			"/ 0:1 1:1 / 1:0 / 2:1 / / 2:0 / 1:1 /",
		},
		{
			"a leader that had nothing gets a short turn while another one has something",
			"legs 2, ready 1, came 0, at 40, heard 0 0, at 80, heard 1 0, came 0, at 119, at 120, heard 0 0, at 121, at 122",
			"/ 0:1 / 0:0 / 1:1 / 1:0 / 0:1 / / 0:0 / 1:1 / / 1:0 /",
		},
		{
			"its turn is whole again with its first message",
			"legs 2, ready 1, came 0, at 40, heard 0 0, at 80, heard 1 0, came 0, at 120, heard 0 0, came 1, at 159, at 160",
			"/ 0:1 / 0:0 / 1:1 / 1:0 / 0:1 / 0:0 / 1:1 / / 1:0 /",
		},
		{
			"so it is if the message comes after the short turn",
			"legs 2, ready 1, came 0, at 40, heard 0 0, at 80, heard 1 0, came 0, at 120, heard 0 0, at 122, came 1, " +
				"heard 1 0, at 162, heard 0 0, at 164, at 202",
			"/ 0:1 / 0:0 / 1:1 / 1:0 / 0:1 / 0:0 / 1:1 / 1:0 / 0:1 / 0:0 / 1:1 / / 1:0 /",
		},
		{
			"turns are whole if no leader has anything",
			"legs 2, ready 1, at 40, heard 0 0, at 80, heard 1 0, at 82, at 119, at 120",
			"/ 0:1 / 0:0 / 1:1 / 1:0 / 0:1 / / / 0:0 /",
		},
		{"raised while one waits", "legs 2, ready 1, ready 2", "/ 0:1 / 1:1 /"},
	} {
		if got := creditScript(t, x.script); got != x.want {
			t.Errorf("%s:\n%s\ngot  %s\nwant %s", x.name, x.script, got, x.want)
		}
	}
}

// creditWorld simulates leaders that hear and answer late.
type creditWorld struct {
	t       *testing.T
	seed    uint64
	rnd     *rand.Rand
	c       Credit
	leaders []*creditLeader
	now     int64
	bounds  int // together, before the last step
}

type creditLeader struct {
	ready, inFlight int
	asks, answers   []creditWord
}

type creditWord struct {
	seq uint32
	n   int
}

func (w *creditWorld) tell(told []int) {
	for _, i := range told {
		w.leaders[i].asks = append(w.leaders[i].asks, creditWord{w.c.legs[i].seq, w.c.legs[i].asked})
	}
}

func (w *creditWorld) step() {
	i := w.rnd.IntN(len(w.leaders))
	l := w.leaders[i]
	switch w.rnd.IntN(6) {
	case 0, 1:
		if l.inFlight < l.ready {
			l.inFlight++
			w.c.legs[i].Came()
		}
	case 2:
		if l.inFlight > 0 {
			l.inFlight--
			if w.c.Finished(i) {
				w.tell([]int{i})
			}
		}
	case 3:
		if len(l.asks) > 0 {
			l.ready = l.asks[0].n
			l.answers = append(l.answers, creditWord{l.asks[0].seq, l.inFlight})
			l.asks = l.asks[1:]
		}
	case 4:
		if len(l.answers) > 0 {
			a := l.answers[0]
			l.answers = l.answers[1:]
			if w.c.Answered(i, a.seq, a.n) && w.c.Finished(i) {
				w.tell([]int{i})
			}
			w.tell(w.c.Divide(w.now))
		}
	case 5:
		w.now += w.rnd.Int64N(20e6)
		w.tell(w.c.Divide(w.now))
	}
	w.check()
}

func (w *creditWorld) check() {
	sum := 0
	for i, l := range w.leaders {
		if l.inFlight > w.c.legs[i].bound {
			w.t.Fatalf("seed %d: leader %d has %d in flight, %d were thought to be the most",
				w.seed, i, l.inFlight, w.c.legs[i].bound)
		}
		sum += w.c.legs[i].bound
	}
	if sum > max(w.c.Ready, w.bounds) {
		w.t.Fatalf("seed %d: %d can be in flight, it was %d before and RDY is %d", w.seed, sum, w.bounds, w.c.Ready)
	}
	w.bounds = sum
}

// Whatever the leaders have in flight, and however late they hear and answer, the possible number of messages in flight
// never exceeds RDY, and every leader gets its turn.
func TestCreditNeverExceeds(t *testing.T) {
	for seed := range uint64(300) {
		w := &creditWorld{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1))}
		for range 1 + w.rnd.IntN(5) {
			w.c.legs = append(w.c.legs, &CreditLeg{})
			w.leaders = append(w.leaders, &creditLeader{})
		}
		for range 5 {
			w.c.Ready = w.rnd.IntN(8)
			w.tell(w.c.Divide(w.now))
			for range 300 {
				w.step()
			}
		}
		had := make([]bool, len(w.leaders))
		for range 5000 {
			w.step()
			for i, l := range w.leaders {
				had[i] = had[i] || l.ready > 0
			}
		}
		total := 0
		for i, l := range w.c.legs {
			if total += l.asked; !had[i] && w.c.Ready > 0 {
				t.Fatalf("seed %d: leader %d never had a credit, RDY is %d", seed, i, w.c.Ready)
			}
		}
		if total > w.c.Ready {
			t.Fatalf("seed %d: leaders were told %d in all, RDY is %d", seed, total, w.c.Ready)
		}
	}
}
