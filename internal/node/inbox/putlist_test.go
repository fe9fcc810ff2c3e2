package inbox

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/internal/node/errs"
	"penstock/internal/node/message"
)

// sizedPuts returns n puts of 1, 2, 3 … bytes.
func sizedPuts(n int) []*Put {
	ps := make([]*Put, n)
	for i := range ps {
		ps[i] = &Put{}
		ps[i].Bytes, ps[i].Order = i+1, uint64(i+1)
	}
	return ps
}

// mustHold checks that a list holds these puts in this order, and that its ends and its byte count agree.
func mustHold(t *testing.T, l *List, want []*Put) {
	t.Helper()
	var got []*Put
	bytes := int64(0)
	for p := l.head; p != nil; p = p.next {
		if got = append(got, p); len(got) > len(want) {
			break
		}
		bytes += int64(p.Bytes)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the list has %d puts, want %d, or in another order", len(got), len(want))
	}
	if len(want) == 0 && l.tail != nil || len(want) > 0 && l.tail != want[len(want)-1] {
		t.Fatal("the tail is not the last put")
	}
	if l.bytes != bytes || l.Count() != len(want) || l.Empty() != (len(want) == 0) {
		t.Fatalf("%d puts of %d bytes are counted as %d of %d", len(want), bytes, l.Count(), l.bytes)
	}
}

// A list agrees with a slice, for any operations in any order.
func TestPutListAgreesWithASlice(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		free := sizedPuts(20)
		rng.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
		var l, other List
		var in, out []*Put
		for range 200 {
			var fresh *Put
			if len(free) > 0 {
				fresh = free[0]
			}
			switch n := rng.IntN(10); {
			case n < 3 && fresh != nil:
				l.Push(fresh)
				free, in = free[1:], append(in, fresh)
			case n == 3 && fresh != nil:
				l.PushFront(fresh)
				free, in = free[1:], slices.Insert(in, 0, fresh)
			case n == 4 && fresh != nil:
				other.Push(fresh)
				free, out = free[1:], append(out, fresh)
			case n == 5:
				p := l.Pop()
				if len(in) == 0 && p != nil || len(in) > 0 && p != in[0] {
					t.Fatalf("seed %d: pop returned another put than the oldest", seed)
				}
				if p != nil {
					free, in = append(free, p), in[1:]
				}
			case n == 6:
				l.Append(other.Take())
				in, out = append(in, out...), nil
			case n == 7:
				l.Prepend(other.Take())
				in, out = append(out, in...), nil
			case n == 8:
				p := &Put{}
				if i := rng.IntN(20); i < len(in) {
					p = in[i]
				}
				i := slices.Index(in, p)
				if l.remove(p) != (i >= 0) {
					t.Fatalf("seed %d: remove of put %d of the list", seed, i)
				}
				if i >= 0 {
					free, in = append(free, p), slices.Delete(in, i, i+1)
				}
			case n == 9:
				odd := func(p *Put) bool { return p.Bytes%2 == 1 }
				taken := l.TakeIf(odd)
				var chosen, kept []*Put
				for _, p := range in {
					if odd(p) {
						chosen = append(chosen, p)
					} else {
						kept = append(kept, p)
					}
				}
				mustHold(t, &taken, chosen)
				in, free = kept, append(free, chosen...)
			}
			mustHold(t, &l, in)
			mustHold(t, &other, out)
		}
	}
}

// Insert keeps the list sorted by order, wherever the put belongs.
func TestPutListInsert(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		ps := sizedPuts(10)
		rng.Shuffle(len(ps), func(i, j int) { ps[i], ps[j] = ps[j], ps[i] })
		var l List
		var in []*Put
		for _, p := range ps {
			l.Insert(p)
			in = append(in, p)
			slices.SortFunc(in, func(a, b *Put) int { return cmp.Compare(a.Order, b.Order) })
			mustHold(t, &l, in)
		}
	}
}

// A put that leaves a list keeps no link to it: its owner may reuse the put at once.
func TestPutListLeavesNoLinks(t *testing.T) {
	ps := sizedPuts(4)
	var l List
	for _, p := range ps {
		l.Push(p)
	}
	l.Pop()
	l.remove(ps[2])
	l.TakeIf(func(p *Put) bool { return p == ps[1] })
	for i, p := range ps {
		if p.next != nil {
			t.Errorf("put %d has a link", i)
		}
	}
	mustHold(t, &l, ps[3:])
}

// Answer answers all puts of a list. Puts that share a gate are woken together; each of the others gets its own Done.
func TestPutListAnswer(t *testing.T) {
	var box Inbox
	var l List
	var answered []error
	ps := sizedPuts(6)
	gates := []chan struct{}{box.gate(0), box.gate(1)}
	for i, p := range ps {
		p.First, p.Box, p.Waits = message.ID(i+1), &box, i != 0
		p.Done = func(p *Put) { answered = append(answered, p.Err) }
		if i >= 2 {
			p.gateIndex = int8(i / 4)
			p.gate = gates[p.gateIndex]
		}
		l.Push(p)
	}
	crowd := l.TakeIf(func(p *Put) bool { return p.gate != nil })
	if n := l.Answer(nil); n != 1 || len(answered) != 2 || answered[0] != nil || ps[0].First != 1 {
		t.Errorf("%d of two puts were waited for, their answers are %v", n, answered)
	}
	if n := crowd.Answer(errs.ErrDisk); n != 4 || len(answered) != 2 {
		t.Errorf("%d of four puts were waited for, and Done was called %d times", n, len(answered)-2)
	}
	for i, p := range ps[2:] {
		select {
		case <-gates[(i+2)/4]:
		default:
			t.Errorf("put %d is not woken", i+2)
		}
		if !p.answered.Load() || p.Err != errs.ErrDisk || p.First != 0 {
			t.Errorf("put %d is answered %v, %v with id %d", i+2, p.answered.Load(), p.Err, p.First)
		}
	}
	mustHold(t, &l, nil)
	mustHold(t, &crowd, nil)
}
