package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock/replicate"
)

type testLeg struct {
	Leg
	name string
}

// legsScript plays a transcript against the legs of a client with RDY 10. After each line it prints the legs by node (+
// accepted, ? asked), the number of first answers that are awaited, and the RDY of the accepted legs.
//
//	lead N ...  these nodes lead        accept N, remove N  the leader of a leg has said so
//	first       wait for first answers
//	lacks N     the leader of a leg has no such channel; the leg is removed
//
// A leg that is accepted gets no RDY until another leader has answered that it has fewer messages in flight: see
// Credit.
func legsScript(t *testing.T, lines string) string {
	t.Helper()
	var s Legs[*testLeg]
	s.Credit().Ready = 10
	made := 0
	var out []string
	at := func(node replicate.NodeID) *testLeg {
		for _, l := range s.All() {
			if l.Node == node {
				return l
			}
		}
		return &testLeg{Leg: Leg{Node: node}, name: "nobody's"}
	}
	for line := range strings.SplitSeq(lines, ",") {
		words := strings.Fields(line)
		var nodes []replicate.NodeID
		for _, word := range words[1:] {
			var n replicate.NodeID
			if _, err := fmt.Sscan(word, &n); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			nodes = append(nodes, n)
		}
		said := ""
		switch words[0] {
		case "lead":
			leave, join := s.Follow(nodes)
			for _, l := range leave {
				s.Remove(l)
			}
			for _, node := range join {
				made++
				s.Add(&testLeg{Leg: Leg{Node: node}, name: fmt.Sprint(made)})
			}
		case "first":
			s.AwaitFirst()
		case "accept":
			s.Accept(at(nodes[0]))
		case "remove":
			s.Remove(at(nodes[0]))
		case "lacks":
			l := at(nodes[0])
			said = []string{" unclear", " new", " gone"}[s.Lacks(l, nodes[1:])]
			s.Remove(l)
		default:
			t.Fatalf("line %q", line)
		}
		s.Credit().Divide(0)
		var state []string
		for _, l := range s.All() {
			if l.Accepted() {
				state = append(state, fmt.Sprintf("%d+%d", l.Node, l.Asked()))
			} else {
				state = append(state, fmt.Sprintf("%d?", l.Node))
			}
		}
		out = append(out, fmt.Sprintf("%s/%d%s", strings.Join(state, " "), s.Awaited(), said))
	}
	return strings.Join(out, ", ")
}

func TestLegs(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{
			"leaders answer one after the other", "lead 1 2, first, accept 2, accept 1",
			"1? 2?/0, 1? 2?/2, 2+10 1?/1, 2+5 1+0/0",
		},
		{"one refuses", "lead 1 2, first, remove 1, accept 2", "1? 2?/0, 1? 2?/2, 2?/1, 2+10/0"},
		{"an answer comes twice", "lead 1, first, accept 1, accept 1", "1?/0, 1?/1, 1+10/0, 1+10/0"},
		{"an answer comes too late", "lead 1 2, accept 1, lead 1, accept 2", "1? 2?/0, 1+10 2?/0, 1+10/0, 1+10/0"},
		{"a leader goes before it answers", "lead 1, first, lead 2", "1?/0, 1?/1, 2?/0"},
		{
			"a leader changes", "lead 1 2, accept 1, accept 2, lead 2 3, accept 3",
			"1? 2?/0, 1+10 2?/0, 1+5 2+0/0, 2+10 3?/0, 2+5 3+0/0",
		},
		{
			"one of two lacks the channel: it is new there", "lead 1 2, accept 1, lacks 2 1 2",
			"1? 2?/0, 1+10 2?/0, 1+10/0 new",
		},
		{
			"the one that lacks it answers first", "lead 1 2, first, lacks 2 1 2, accept 1, lead 1 2, lacks 2 1 2",
			"1? 2?/0, 1? 2?/2, 1?/1 unclear, 1+10/0, 1+10 2?/0, 1+10/0 new",
		},
		{"all lack it", "lead 1 2, lacks 2 1 2, lacks 1 1 2", "1? 2?/0, 1?/0 unclear, /0 gone"},
		{
			"the one that lacked it leads no more", "lead 1 2, lacks 2 1 2, lead 1 3, lacks 1 1 3, lacks 3 1 3",
			"1? 2?/0, 1?/0 unclear, 1? 3?/0, 3?/0 unclear, /0 gone",
		},
		{
			"it got the channel and lost it", "lead 1 2, lacks 2 1 2, lead 1 2, accept 2, remove 2, lacks 1 1 2",
			"1? 2?/0, 1?/0 unclear, 1? 2?/0, 2+10 1?/0, 1?/0, /0 unclear",
		},
		{"a partition has no leader", "lead 1, lacks 1 1 0", "1?/0, /0 unclear"},
		{"one is removed twice", "lead 1 2, first, remove 1, remove 1", "1? 2?/0, 1? 2?/2, 2?/1, 2?/1"},
	} {
		if got := legsScript(t, c.lines); got != c.want {
			t.Errorf("%s:\n %s, want\n %s", c.name, got, c.want)
		}
	}
}

// For any events in any order, the accepted legs come first, there is one leg per leader, and the credit has exactly
// the accepted legs, with the same indexes.
func TestLegsRandom(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var s Legs[*testLeg]
		var ever []*testLeg
		for range 200 {
			switch rnd.IntN(4) {
			case 0:
				leaders := []replicate.NodeID{1, 2, 3, 4, 5}[:rnd.IntN(6)]
				leave, join := s.Follow(leaders)
				for _, l := range leave {
					s.Remove(l)
				}
				for _, node := range join {
					l := &testLeg{Leg: Leg{Node: node}}
					s.Add(l)
					ever = append(ever, l)
				}
			case 1:
				s.AwaitFirst()
			default:
				if len(ever) == 0 {
					continue
				}
				l := ever[rnd.IntN(len(ever))]
				if asked := s.Has(l) && !l.Accepted(); rnd.IntN(3) == 0 {
					s.Remove(l)
				} else if s.Accept(l) != asked {
					t.Fatalf("seed %d: an answer of %d is taken: %v", seed, l.Node, !asked)
				}
			}
			checkLegs(t, seed, &s)
		}
	}
}

func checkLegs(t *testing.T, seed uint64, s *Legs[*testLeg]) {
	t.Helper()
	awaited := 0
	var nodes []replicate.NodeID
	for i, l := range s.All() {
		if l.first {
			awaited++
		}
		if want := map[bool]int{true: i, false: -1}[l.Accepted()]; s.Credit().Index(&l.CreditLeg) != want {
			t.Fatalf("seed %d: leg %d, accepted %v, has credit %d", seed, i, l.Accepted(), s.Credit().Index(&l.CreditLeg))
		}
		if slices.Contains(nodes, l.Node) {
			t.Fatalf("seed %d: two legs to node %d", seed, l.Node)
		}
		nodes = append(nodes, l.Node)
		if found, at, ok := s.At(l.Node); ok != l.Accepted() || ok && (found != l || at != i) {
			t.Fatalf("seed %d: the leg at node %d is not found", seed, l.Node)
		}
	}
	if awaited != s.Awaited() {
		t.Fatalf("seed %d: %d first answers are awaited, %d are missing", seed, s.Awaited(), awaited)
	}
}
