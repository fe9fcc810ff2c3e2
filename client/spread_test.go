package client

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// noPause is a spread's pause for tests.
func noPause(int) time.Duration { return 10 * time.Millisecond }

// transcript takes steps until the spread waits, and writes them down.
func (s *spread) transcript(now time.Time) string {
	var out []string
	for {
		m := s.step(now)
		switch m.do {
		case moveJoin:
			out = append(out, fmt.Sprintf("join %s %d/%d", m.seat.address, m.share.messages, m.share.bytes))
		case moveShare:
			out = append(out, fmt.Sprintf("share %s %d/%d", m.seat.address, m.share.messages, m.share.bytes))
		case moveLeave:
			out = append(out, "leave "+m.seat.address)
		case moveForget:
			out = append(out, "forget "+m.seat.address)
		case moveWait:
			if !m.until.IsZero() {
				out = append(out, fmt.Sprintf("wait %v", m.until.Sub(now)))
			}
			return strings.Join(out, ", ")
		}
	}
}

// A consumer follows the leaders: each step of the table is what happened, and what the consumer then does.
func TestSpread(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &spread{limit: quota{10, 100}, only: -1, pause: noPause}
	link := func(addresses ...string) {
		for _, a := range addresses {
			s.connected(s.seat(a))
		}
	}
	for i, step := range []struct {
		happens func()
		want    string
	}{
		{func() { s.lead([]string{"a", "", "a"}) }, ""},
		{func() { link("a") }, "join a 10/100"},
		{func() { s.lead([]string{"a", "b", "a"}) }, "share a 6/66"},
		{func() { link("b") }, "join b 4/34"},
		// A partition without a leader stays with the node that had it.
		{func() { s.lead([]string{"a", "", "a"}) }, ""},
		{func() { s.lead([]string{"a", "a", "a"}) }, "share a 10/100, leave b, forget b"},
		{func() { s.lead([]string{"a", "c", "b"}) }, "share a 3/33"},
		{func() { link("b", "c") }, "join b 3/33, join c 4/34"},
		{func() { s.ended(s.seat("b"), now, verdictAgain, nil) }, "wait 10ms"},
		{func() { now = now.Add(10 * time.Millisecond) }, "join b 3/33"},
		{func() { s.disconnected(s.seat("c"), nil) }, ""},
		{func() { s.ended(s.seat("c"), now, verdictAgain, nil) }, ""},
		{func() { link("c") }, "join c 4/34"},
		{func() { s.ended(s.seat("a"), now, verdictRefused, ErrRefused) }, "wait 10ms"},
	} {
		step.happens()
		if got := s.transcript(now); got != step.want {
			t.Errorf("step %d: %s; want %s", i, got, step.want)
		}
	}
	if s.refusal() != ErrRefused {
		t.Errorf("%v", s.refusal())
	}
	if s.accepted(s.seat("a")); s.refusal() != nil {
		t.Errorf("%v", s.refusal())
	}
	s.disconnected(s.seat("b"), ErrUnauthorized)
	if s.refusal() != ErrUnauthorized {
		t.Errorf("%v", s.refusal())
	}
	if link("b"); s.refusal() != nil {
		t.Errorf("%v", s.refusal())
	}
}

// One partition needs one node.
func TestSpreadOfOnePartition(t *testing.T) {
	s := &spread{limit: quota{3, 30}, only: 1, pause: noPause}
	s.lead([]string{"a", "b", "c"})
	for _, a := range []string{"b"} {
		s.connected(s.seat(a))
	}
	if got := s.transcript(time.Unix(0, 0)); got != "join b 3/30" {
		t.Error(got)
	}
}

// Few messages for many nodes: each may send one.
func TestSpreadOfFewMessages(t *testing.T) {
	s := &spread{limit: quota{2, 1}, only: -1, pause: noPause}
	s.lead([]string{"a", "b", "c"})
	for _, x := range s.seats {
		if x.share.messages != 1 || x.share.bytes != 1 {
			t.Errorf("%s: %+v", x.address, x.share)
		}
	}
}

// The shares of large limits add up, too, where an int has few bits: here the limit is all that an int can say.
func TestSpreadOfManyBytes(t *testing.T) {
	s := &spread{limit: quota{10, math.MaxInt}, only: -1, pause: noPause}
	s.lead([]string{"a", "b", "c", "c"})
	sum := 0
	for _, x := range s.seats {
		if x.share.bytes < s.limit.bytes/4*x.partitions {
			t.Errorf("%s leads %d of 4 partitions and may send %d bytes", x.address, x.partitions, x.share.bytes)
		}
		sum += x.share.bytes
	}
	if sum != s.limit.bytes {
		t.Errorf("all together may send %d bytes", sum)
	}
}

// Whatever happens in which order, in the end there is one subscription at each leader, and the shares are right.
func TestSpreadRandom(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := &spread{limit: quota{1 + r.IntN(20), 1 + r.IntN(1000)}, only: r.IntN(5) - 4, pause: noPause}
		s.only = max(s.only, -1)
		now := time.Unix(1000, 0)
		nodes := []string{"a", "b", "c", "d"}
		leaders := make([]string, 1+r.IntN(6))
		joined := map[string]quota{}
		steps := func() {
			for n := 0; ; n++ {
				m := s.step(now)
				if m.do == moveWait {
					return
				}
				a := m.seat.address
				_, has := joined[a]
				if n > 100 || has == (m.do == moveJoin) && m.do != moveForget || has && m.do == moveForget {
					t.Fatalf("seed %d: step %d at %s, subscribed %t", seed, m.do, a, has)
				}
				if delete(joined, a); m.do == moveJoin || m.do == moveShare {
					joined[a] = m.share
				}
			}
		}
		for range 60 {
			switch p := r.IntN(len(leaders)); r.IntN(6) {
			case 0:
				leaders[p] = nodes[r.IntN(len(nodes))]
				s.lead(leaders)
			case 1:
				without := slices.Clone(leaders)
				without[p] = ""
				s.lead(without)
			case 2:
				now = now.Add(time.Duration(r.IntN(10)) * time.Millisecond)
			default:
				if len(s.seats) == 0 {
					break
				}
				x := s.seats[r.IntN(len(s.seats))]
				switch r.IntN(5) {
				case 0, 1:
					s.connected(x)
				case 2:
					delete(joined, x.address)
					s.disconnected(x, nil)
				case 3:
					delete(joined, x.address)
					s.ended(x, now, verdictAgain, nil)
				case 4:
					s.accepted(x)
				}
			}
			steps()
		}
		s.lead(leaders)
		for _, x := range s.seats {
			s.connected(x)
		}
		now = now.Add(time.Second)
		steps()
		want, sum := map[string]bool{}, quota{}
		for p, a := range leaders {
			if a != "" && (s.only < 0 || s.only == p) {
				want[a] = true
			}
		}
		for a, share := range joined {
			if !want[a] {
				t.Fatalf("seed %d: subscribed at %s, which does not lead", seed, a)
			}
			sum.messages += share.messages
			sum.bytes += share.bytes
		}
		n := len(want)
		if len(joined) != n || n > 0 && (sum.messages < s.limit.messages || sum.messages > max(s.limit.messages+n-1, n) ||
			s.limit.bytes > 6 && (sum.bytes < s.limit.bytes || sum.bytes > s.limit.bytes+n-1)) {
			t.Fatalf("seed %d: subscribed at %v of %v, %+v", seed, joined, leaders, s.limit)
		}
	}
}
