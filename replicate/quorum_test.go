package replicate

import (
	"testing"

	"penstock/segment"
)

// B2 B12 P6 P8 P12
func TestQuorum(t *testing.T) {
	type marks = []segment.Position
	for _, c := range []struct {
		name          string
		members, also marks
		minISR        int
		epochStart    segment.Position
		was, want     segment.Position
	}{
		{"nobody", nil, nil, 1, 0, 3, 3},
		{"alone", marks{7}, nil, 1, 0, 3, 7},
		{"alone, two demanded", marks{7}, nil, 2, 0, 3, 3},
		{"the slowest decides", marks{9, 5, 7}, nil, 2, 0, 3, 5},
		{"the leader's own disk is the slowest", marks{4, 9, 9}, nil, 2, 0, 3, 4},
		{"a member of which nothing is known", marks{9, 0, 9}, nil, 2, 0, 3, 3},
		{"who may be in the ISR holds back", marks{9, 9}, marks{6}, 2, 0, 3, 6},
		{"and does not help to reach the minimum", marks{9}, marks{9}, 2, 0, 3, 3},
		{"the epoch-start batch is not held by all", marks{9, 8, 9}, nil, 2, 8, 3, 3},
		{"it is, and everything before it with it", marks{9, 9, 9}, nil, 2, 8, 3, 9},
		{"no epoch-start batch yet", marks{9, 9, 9}, nil, 2, unknownPosition, 3, 3},
		{"never back", marks{2, 9}, nil, 2, 0, 3, 3},
	} {
		q := Quorum{MinISR: c.minISR, EpochStart: c.epochStart}
		for _, m := range c.members {
			q.Member(m)
		}
		for _, m := range c.also {
			q.Also(m)
		}
		if got := q.Committed(c.was); got != c.want {
			t.Errorf("%s: committed %d, want %d", c.name, got, c.want)
		}
		if enough := len(c.members) > 0 && len(c.members) >= c.minISR; q.Enough() != enough {
			t.Errorf("%s: enough %v", c.name, q.Enough())
		}
	}
}
