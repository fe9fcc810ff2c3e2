package pull

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/internal/node/message"
)

// clock is the clock of deadlines: one has passed when its time is at most now.
type clock struct{ now *int64 }

func (c clock) Over(at int64) bool { return at <= *c.now }

// script plays a transcript against a queue of 3 items with a timeout of 100 ns. Each line gives what the owner is
// told.
//
//	add ID [UNTIL [PATH]]   a delivery, perhaps with a deadline and on a path: ! a taker must be woken
//	lost PATH        the path has ended
//	take             the id, ? if it must be renewed, pump, wait, or the error; ! another taker must be woken
//	waited           the taker that waits longest looks again
//	settled          a message is finished: pump or -
//	withdraw ID, dropped, drained, end, at TIME
func script(t *testing.T, lines string) string {
	t.Helper()
	q := NewQueue(3, 100)
	var now int64
	var out []string
	var it Item
	for line := range strings.SplitSeq(lines, ", ") {
		var word string
		var a, b, path int64
		_, _ = fmt.Sscan(line, &word, &a, &b, &path)
		said := ""
		switch word {
		case "at":
			now = a
			continue
		case "add":
			d := message.Delivery{ID: message.ID(a), Body: fmt.Append(nil, a)}
			if b != 0 {
				d.Until = message.Deadline{Clock: clock{&now}, At: b}
			}
			if path != 0 {
				d.Until.Origin = path
			}
			if said = "-"; q.Add(&d, now) {
				said = "!"
			}
		case "take":
			r := q.Take(&it, now, (*message.Deadline).Passed)
			switch {
			case r.Err != nil:
				said = r.Err.Error()
			case r.Pump:
				said = "pump"
			case !r.Got:
				said = "wait"
			case fmt.Sprint(uint64(it.ID)) != string(it.Body):
				t.Errorf("message %d has the body %s", uint64(it.ID), it.Body)
			default:
				said = string(it.Body)
			}
			if r.Renew {
				said += "?"
			}
			if r.Wake {
				said += "!"
			}
		case "waited":
			q.Waited()
			continue
		case "settled":
			if said = "-"; q.Settled() {
				said = "pump"
			}
		case "lost":
			q.Lost(a)
			continue
		case "withdraw":
			q.Withdraw(message.ID(a))
			continue
		case "dropped":
			for _, d := range q.Dropped(nil) {
				said += fmt.Sprint("d", uint64(d.ID))
			}
		case "drained":
			said = fmt.Sprint(q.Drained())
		case "end":
			if said = "-"; q.End(errors.New("over")) {
				said = "!"
			}
		default:
			t.Fatalf("line %q", line)
		}
		out = append(out, said)
	}
	return strings.Join(out, " ")
}

func TestQueue(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"first in, first out", "add 1, add 2, take, add 3, take, take, take", "- - 1 - 2 3 wait"},
		{"one waits", "take, add 1, waited, take, add 2", "wait ! 1 -"},
		{
			"two wait, one is woken and wakes the other", "take, take, add 1, add 2, waited, take, waited, take",
			"wait wait ! ! 1! 2",
		},
		{"a taker asks the channel for more before it waits", "settled, take, take", "- pump wait"},
		{"half of what may be in flight is free", "add 1, settled, settled, settled, settled", "- - pump - pump"},
		{"a message is finished while somebody waits", "take, settled", "wait pump"},
		{"the same while there is one to take", "take, add 1, settled", "wait ! -"},
		{"it has waited for half its timeout", "add 1, at 50, take, add 2, at 99, take", "- 1? - 2"},
		{"it has timed out", "add 1, at 60, add 2, at 100, take, take", "- - 2 wait"},
		{
			"full: the one that has waited longest has timed out, and comes again",
			"add 1, add 2, add 3, at 100, add 1, take, take", "- - - - 1 wait",
		},
		{"a deadline passes", "add 1 20, add 2, drained, at 20, take, drained, dropped, dropped", "- - false 2 true d1 "},
		{"a deadline does not pass", "add 1 20, at 19, take, drained, dropped", "- 1 true "},
		{
			"withdrawn", "add 1 20, add 2 20, add 3, withdraw 2, withdraw 3, dropped, drained, take, take, take",
			"- - - d2 false 1 3 wait",
		},
		{"a full queue drops one with a deadline", "add 1 20, add 2, add 3, add 4, dropped, take", "- - - - d1 2"},
		{
			"a leader is lost: the others keep their room",
			"add 1 0 7, add 2 0 8, add 3 0 7, lost 8, add 2 0 7, take, take, take",
			"- - - - 1 3 2",
		},
		{
			"a leader of which some have a deadline",
			"add 1 20 7, add 2 20 8, add 3 0 7, lost 7, drained, dropped, take, drained, take",
			"- - - false  2 true wait",
		},
		{
			"the end", "take, take, add 1 20, end, drained, dropped, take, waited, waited, take, add 2",
			"wait wait ! ! true  over! over -",
		},
	} {
		if got := script(t, c.lines); got != c.want {
			t.Errorf("%s:\n %s, want\n %s", c.name, got, c.want)
		}
	}
}

// Whatever is added, taken and withdrawn in whatever order: the queue gives out each delivery once, in order, with its
// own bytes, and has at most as many as may be in flight.
func TestQueueRandom(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		most := 1 + rnd.IntN(20)
		q := NewQueue(most, 1<<40)
		var now int64
		var want []message.ID
		var items [3]Item
		next := message.ID(1)
		for range 500 {
			switch rnd.IntN(5) {
			case 0, 1:
				d := message.Delivery{ID: next, Body: fmt.Append(nil, "body ", uint64(next))}
				for i := range rnd.IntN(3) {
					d.Headers = append(d.Headers, message.Header{Key: fmt.Append(nil, "k", i), Value: d.Body})
				}
				if rnd.IntN(3) == 0 {
					d.Until = message.Deadline{Clock: clock{&now}, At: 1}
				}
				d.Until.Origin = next % 3
				q.Add(&d, now)
				if want = append(want, next); len(want) > most {
					want = want[1:]
				}
				next++
			case 2, 3:
				it := &items[rnd.IntN(3)]
				switch r := q.Take(it, now, (*message.Deadline).Passed); {
				case !r.Got && !r.Pump:
					q.Waited()
					fallthrough
				case !r.Got:
					if len(want) != 0 {
						t.Fatalf("seed %d: nothing is there, %d were added", seed, len(want))
					}
				case it.ID != want[0] || string(it.Body) != fmt.Sprint("body ", uint64(it.ID)):
					t.Fatalf("seed %d: message %d %q, want %d", seed, uint64(it.ID), it.Body, uint64(want[0]))
				default:
					for i, h := range it.Headers {
						if string(h.Key) != fmt.Sprint("k", i) || string(h.Value) != string(it.Body) {
							t.Fatalf("seed %d: message %d has the header %s=%s", seed, uint64(it.ID), h.Key, h.Value)
						}
					}
					want = want[1:]
				}
			case 4:
				if len(want) > 0 {
					id := want[rnd.IntN(len(want))]
					q.Dropped(nil) // of full queues
					if q.Withdraw(id); len(q.Dropped(nil)) == 1 {
						want = slices.DeleteFunc(want, func(o message.ID) bool { return o == id })
					}
				}
			}
			if rnd.IntN(50) == 0 {
				path := message.ID(rnd.IntN(3))
				q.Lost(path)
				want = slices.DeleteFunc(want, func(o message.ID) bool { return o%3 == path })
			}
			if q.n != len(want) || q.n > most {
				t.Fatalf("seed %d: %d are in the queue, want %d", seed, q.n, len(want))
			}
		}
	}
}

// Large bodies do not stay in memory once they are taken.
func TestQueueGivesUpLargeMemory(t *testing.T) {
	q := NewQueue(4, 100)
	var it Item
	for range 10 {
		q.Add(&message.Delivery{ID: 1, Body: make([]byte, 4*maxKeptBytes)}, 0)
		q.Take(&it, 0, (*message.Deadline).Passed)
	}
	q.Add(&message.Delivery{ID: 2, Body: []byte("small")}, 0)
	q.Take(&it, 0, (*message.Deadline).Passed)
	for i := range q.ring {
		if cap(q.ring[i].Body) > maxKeptBytes {
			t.Errorf("an item that waits for its next use has %d bytes", cap(q.ring[i].Body))
		}
	}
}
