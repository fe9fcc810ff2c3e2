package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"penstock/internal/meta"
)

func TestJudgeProofs(t *testing.T) {
	for name, tc := range map[string]struct {
		known, own, next string
		others, belongs  bool
	}{
		"the first node":                           {"", "a", "a", false, true},
		"nobody proves anything":                   {"", "", "", true, true},
		"the others are of an older version":       {"", "a", "a", true, true},
		"the same":                                 {"a", "a", "a", true, true},
		"another":                                  {"a", "b", "a", true, false},
		"none":                                     {"a", "", "a", true, false},
		"another, and nobody lives":                {"a", "b", "b", false, true},
		"none, and nobody lives":                   {"a", "", "", false, true},
		"the next one stands on a second line":     {"a", "a b", "a b", true, true},
		"the old one stands on a second line":      {"a b", "b a", "b a", true, true},
		"the old one is gone":                      {"a b", "b", "b", true, true},
		"the old one alone, after the new one was": {"b", "a", "b", true, false},
	} {
		next, belongs := judgeProofs(strings.Fields(tc.known), strings.Fields(tc.own), tc.others)
		if strings.Join(next, " ") != tc.next || belongs != tc.belongs {
			t.Errorf("%s: %v, %v", name, next, belongs)
		}
	}
}

func secrets(lines ...string) func(uuid.UUID) []string {
	return func(id uuid.UUID) (all []string) {
		for _, l := range lines {
			all = append(all, l+" of "+id.String())
		}
		return all
	}
}

// A node with another secret finds the same store. It is refused, by name of what to give it, and nothing is written.
func TestOtherSecretIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := quickLeases
		o.Proofs = secrets("a")
		w := newWorldWith(t, 2, o)
		before, _ := w.m.Entries()
		w.opts.Proofs = secrets("b")
		n := w.prepare("n3", uuid.New())
		_, err := n.Join(ctx(t), n.reg)
		if !errors.Is(err, ErrSecret) || !strings.Contains(err.Error(), "--cluster-secret-file") ||
			!strings.Contains(err.Error(), "[n1 n2]") {
			t.Fatal(err)
		}
		after, _ := w.m.Entries()
		for _, e := range after {
			if strings.Contains(string(e.Value), "n3") || strings.HasSuffix(e.Key, proofKey) &&
				!strings.Contains(string(e.Value), "a of ") {
				t.Errorf("%s is %s; there were %d rows", e.Key, e.Value, len(before))
			}
		}
		if s := w.nodes[0].Snapshot(); len(s.Nodes) != 2 {
			t.Errorf("there are %d nodes", len(s.Nodes))
		}

		// While it is replaced, the other secret stands on a second line; then the new one is enough.
		w.nodes[0].s.opts.Proofs = secrets("a", "b")
		if err := w.nodes[0].s.Prove(ctx(t)); err != nil {
			t.Fatal(err)
		}
		w.join(n)
		w.until(n, "three nodes", func(s *meta.Snapshot) bool { return len(s.Nodes) == 3 })
		if slices.Contains(n.s.opts.Proofs(uuid.Nil), "") {
			t.Error("no proof")
		}
	})
}
