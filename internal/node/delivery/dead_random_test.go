package delivery_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"penstock/batch"
	"penstock/internal/node/delivery"
	"penstock/tests/support/seedtest"
)

// letterWorld is topics whose channels send what always fails to each other.
type letterWorld struct {
	t       *testing.T
	rng     *rand.Rand
	targets map[string][]string // the dead-letter topics of each topic's channels
	raced   bool                // two settings were changed at once, each without seeing the other
}

// configure lets a channel of a topic send its dead letters somewhere.
func (w *letterWorld) configure(from, to string) {
	seen := w.targets
	if w.rng.IntN(40) == 0 {
		seen, w.raced = nil, true
	}
	if delivery.DeadLetterCycle(from, to, func(t string) []string { return seen[t] }) == nil {
		w.targets[from] = append(w.targets[from], to)
	}
}

// fail follows a message that no channel of any topic ever finishes. path are the topics that it was in.
func (w *letterWorld) fail(path []string, hops []byte) {
	for _, to := range w.targets[path[len(path)-1]] {
		n, ok := delivery.DeadHops(hops)
		if !ok {
			continue // it is set aside
		}
		if len(path) > delivery.MaxDeadHops {
			w.t.Fatalf("a message became a dead letter %d times: %v", len(path), path)
		}
		if slices.Contains(path, to) && !w.raced {
			w.t.Fatalf("a dead letter comes back to %s: %v", to, path)
		}
		w.fail(append(slices.Clip(path), to), []byte(strconv.Itoa(n)))
	}
}

// Channels get dead-letter topics at random, and messages fail in all of them: each ends.
func TestDeadLettersRandom(t *testing.T) {
	for seed := range seedtest.Each(t, 300, 100) {
		w := &letterWorld{t: t, rng: rand.New(rand.NewPCG(seed, 31)), targets: map[string][]string{}}
		name := func() string { return fmt.Sprint("t", w.rng.IntN(6)) }
		for range 12 {
			from, to := name(), name()
			if len(w.targets[from]) < 2 {
				w.configure(from, to)
			}
			w.fail([]string{name()}, nil)
		}
	}
}

// redriver is one call of Redrive: it takes the claim, lists letters, publishes them and confirms them.
type redriver struct {
	by     string
	next   []batch.ID
	listed []batch.ID
	sent   int // of listed
	ended  bool
}

type redriveWorld struct {
	t         *testing.T
	rng       *rand.Rand
	now       int64
	claim     delivery.Claim
	letters   [][]batch.ID // that wait, by partition of the dead-letter topic
	stuck     map[batch.ID]bool
	published map[batch.ID]int
	made      int
}

func (w *redriveWorld) add() {
	n := w.rng.IntN(len(w.letters))
	id := batch.MakeID(uint32(n), batch.MsgID(w.made))
	w.made++
	w.letters[n] = append(w.letters[n], id)
	if w.rng.IntN(6) == 0 {
		w.stuck[id] = true // nobody can publish it
	}
}

// step lets a redrive do the next thing.
func (w *redriveWorld) step(r *redriver) {
	if r.sent < len(r.listed) {
		id := r.listed[r.sent]
		if r.sent++; !w.stuck[id] {
			w.published[id]++
			n := id.Partition()
			w.letters[n] = slices.DeleteFunc(w.letters[n], func(o batch.ID) bool { return o == id })
		}
		r.next = delivery.GoOnAfter(r.next, id)
		return
	}
	if !w.claim.Take(r.by, w.now) {
		r.ended = true
		return
	}
	r.listed, r.sent = r.listed[:0], 0
	for n, all := range w.letters {
		for _, id := range all {
			if len(r.listed) < 3 && (n >= len(r.next) || id >= r.next[n]) {
				r.listed = append(r.listed, id)
			}
		}
	}
	if r.ended = len(r.listed) == 0; r.ended {
		w.claim.Give(r.by)
	}
}

// Redrives begin at any moment, several at a time, crash and go on, while letters come and the dead-letter topic gets
// partitions: each letter is published again once, and none is left but those that cannot be published.
func TestRedriveRandom(t *testing.T) {
	for seed := range seedtest.Each(t, 500, 100) {
		w := &redriveWorld{
			t: t, rng: rand.New(rand.NewPCG(seed, 37)), now: 1e18, letters: make([][]batch.ID, 1+int(seed%3)),
			stuck: map[batch.ID]bool{}, published: map[batch.ID]int{},
		}
		var all []*redriver
		for step := range 200 {
			w.now += w.rng.Int64N(delivery.ClaimNs / 100)
			switch w.rng.IntN(16) {
			case 0:
				all = append(all, &redriver{by: fmt.Sprint("redrive ", step)})
			case 1, 2, 3:
				w.add()
			case 4:
				if len(w.letters) < 5 {
					w.letters = append(w.letters, nil)
				}
			case 5: // a node dies with its redrive
				if len(all) > 0 && w.rng.IntN(6) == 0 {
					all = all[1:]
				}
			default:
				for _, r := range all { // a redrive that lives renews its claim in time
					w.step(r)
				}
				all = slices.DeleteFunc(all, func(r *redriver) bool { return r.ended })
			}
		}
		w.now += delivery.ClaimNs
		last := &redriver{by: "the last one"}
		for range 2*w.made + 20 {
			if !last.ended {
				w.step(last)
			}
		}
		if !last.ended {
			t.Fatalf("seed %d: the last redrive does not end: it goes on after %v, %v wait", seed, last.next, w.letters)
		}
		w.check(seed)
	}
}

func (w *redriveWorld) check(seed uint64) {
	for id, n := range w.published {
		if n > 1 {
			w.t.Fatalf("seed %d: letter %v was published %d times", seed, id, n)
		}
	}
	for n, left := range w.letters {
		for _, id := range left {
			if !w.stuck[id] {
				w.t.Fatalf("seed %d: letter %v of partition %d waits for ever", seed, id, n)
			}
		}
	}
}

// mover moves dead letters to their topic, some at a time, as the goroutine of a channel does.
type mover struct {
	aside  delivery.Aside
	outbox []batch.ID
	came   map[batch.ID]int64
	bad    map[batch.ID]bool
	closed bool // the dead-letter topic takes none
	now    int64
}

const (
	mostMoved = 8
	slowest   = 2e9 // how long a letter may wait that can be moved, ns
)

// round tries some letters, and says whether there is more to do at once.
func (m *mover) round() bool {
	if len(m.outbox) == 0 {
		m.aside.Clear()
		return false
	}
	var try []batch.ID
	for _, id := range m.outbox {
		if len(try) < mostMoved && !m.aside.Waits(id, m.now) {
			try = append(try, id)
		}
	}
	m.aside.FailAll("")
	if m.closed {
		m.aside.FailAll("no such topic")
		return false
	}
	for _, id := range try {
		if m.bad[id] {
			m.aside.Fail(id, "too large", m.now)
			continue
		}
		m.aside.Forget(id)
		m.outbox = slices.DeleteFunc(m.outbox, func(o batch.ID) bool { return o == id })
	}
	return len(try) > 0
}

// Dead letters come, some of which can never be moved, and the dead-letter topic takes none for a while: all others are
// moved soon, and those that wait are counted with a reason.
func TestAsideRandom(t *testing.T) {
	for seed := range seedtest.Each(t, 200, 50) {
		rng := rand.New(rand.NewPCG(seed, 41))
		m := &mover{came: map[batch.ID]int64{}, bad: map[batch.ID]bool{}, now: 1e18}
		open := m.now // since then the topic takes letters
		for step := range 400 {
			m.now += 25e6
			for range rng.IntN(3) {
				id := batch.MakeID(0, batch.MsgID(4*step+len(m.outbox)%4))
				if _, known := m.came[id]; !known {
					m.came[id], m.bad[id] = m.now, rng.IntN(8) == 0
					m.outbox = append(m.outbox, id)
				}
			}
			if rng.IntN(60) == 0 {
				m.closed, open = !m.closed, m.now
			}
			more := true // some may not have been tried yet
			for i := 0; i < 4 && more; i++ {
				more = m.round()
			}
			bad := 0
			for _, id := range m.outbox {
				if m.bad[id] {
					bad++
				} else if since := max(m.came[id], open); !m.closed && m.now-since > slowest {
					t.Fatalf("seed %d, step %d: letter %v waits for %d ms, behind %d that cannot be moved",
						seed, step, id, (m.now-since)/1e6, bad)
				}
			}
			switch n, why := m.aside.Count(len(m.outbox)); {
			case m.closed && (n != len(m.outbox) || n > 0 && why == ""):
				t.Fatalf("seed %d, step %d: of %d letters that nobody takes %d are counted, %q", seed, step, len(m.outbox), n, why)
			case !m.closed && !more && bad > 0 && (n == 0 || why == ""):
				t.Fatalf("seed %d, step %d: %d letters cannot be moved, %d are counted, %q", seed, step, bad, n, why)
			}
		}
	}
}
