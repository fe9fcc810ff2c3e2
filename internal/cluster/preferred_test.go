package cluster

import (
	"fmt"
	"testing"

	"penstock/internal/meta"
	"penstock/replicate"
)

const threeMoving = "node 1\nnode 2\nnode 3 slow\npart 0 lead 1 of 3 2 1 isr 1 2 3 min 1\ntopic 3 min 1\n"

func TestPreferredLeader(t *testing.T) {
	for _, c := range []struct {
		name, state string
		want        replicate.NodeID
		leaving     string
	}{
		{"the first", "node 1\nnode 2\npart 0 lead 2 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 1, "[]"},
		{"else who leads", "node 1\nnode 2\nnode 3\npart 0 lead 3 of 1 2 3 isr 2 3 min 1\ntopic 3 min 1", 3, "[]"},
		{"if it may stay", "node 1\nnode 2\nnode 3 draining\npart 0 lead 3 of 1 2 3 isr 2 3 min 1\ntopic 3 min 1", 2, "[]"},
		{"not who is not in sync", "node 1\nnode 2\npart 0 lead 2 of 1 2 isr 2 min 1\ntopic 2 min 1", 2, "[]"},
		{"not who is draining", "node 1 draining\nnode 2\npart 0 lead 1 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 2, "[]"},
		{"not who is damaged", "node 1\nnode 2\npart 0 lead 1 of 1 2 isr 1 2 min 1 damaged 1\ntopic 2 min 1", 2, "[]"},
		{"not whose disk is slow", "node 1 slow\nnode 2\npart 0 lead 2 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 2, "[]"},
		{
			"a leader whose disk is slow stays", "node 1 slow\nnode 2\npart 0 lead 1 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 1,
			"[]",
		},
		{
			"one whose disk hangs decides itself", "node 1 hung\nnode 2\npart 0 lead 1 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 1,
			"[]",
		},
		{
			"not whose clock differs", "node 1 clock\nnode 2\npart 0 lead 2 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 2,
			"[]",
		},
		{
			"a leader whose clock differs goes",
			"node 1 slow\nnode 2 clock\nnode 3\npart 0 lead 2 of 1 2 3 isr 1 2 3 min 1\ntopic 3 min 1", 3, "[]",
		},
		{
			"but not to a slow disk, nor to another clock that differs",
			"node 1 clock\nnode 2 clock\nnode 3 slow\npart 0 lead 1 of 1 2 3 isr 1 2 3 min 1\ntopic 3 min 1", 0, "[]",
		},
		{
			"nor to a replica that is not in sync",
			"node 1 clock\nnode 2\npart 0 lead 1 of 1 2 isr 1 min 1\ntopic 2 min 1", 0, "[]",
		},
		{
			"a clock that differs will do if the leader has to go",
			"node 1 draining\nnode 2 clock\npart 0 lead 1 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 2, "[]",
		},
		{
			"and if the topic wants fewer replicas", "node 1 clock\nnode 2 slow\nnode 3 clock\n" +
				"part 0 lead 3 of 2 1 3 isr 1 2 3 min 2\ntopic 2 min 2", 1, "[3]",
		},
		{
			"no other slow disk than the leader's",
			"node 1 draining\nnode 2 failed\nnode 3\npart 0 lead 1 of 1 2 3 isr 1 2 3 min 1\ntopic 3 min 1", 3, "[]",
		},
		{
			"another slow disk if the leader has to go", "node 1 draining\nnode 2 hung\nnode 3 slow\n" +
				"part 0 lead 1 of 1 2 3 isr 1 2 3 min 1\ntopic 3 min 1", 3, "[]",
		},
		{
			"not who is draining, too",
			"node 1 draining\nnode 2 draining\npart 0 lead 1 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 0, "[]",
		},
		{
			"a slow disk, to which a move goes",
			"node 1\nnode 3 slow\npart 0 lead 1 of 3 1 isr 1 3 min 1\ntopic 1 min 1\nmove 0 1 3", 3, "[1]",
		},
		{"not who was wiped", "node 1 wiped\nnode 2\npart 0 lead 1 of 1 2 isr 1 2 min 1\ntopic 2 min 1", 2, "[]"},
		{"not who is leaving", "node 1\nnode 2\nnode 3\npart 0 lead 1 of 3 2 1 isr 1 min 1\ntopic 2 min 1", 0, "[1]"},
		{
			"who drains takes nobody's place", "node 1 draining\nnode 2 draining\nnode 4\n" +
				"part 0 lead 1 of 2 4 1 isr 1 2 4 min 2\ntopic 1 min 1\nmove 0 1 4", 4, "[1]",
		},
		{"not who a move takes away, although the topic wants as many", threeMoving + "move 0 1 2", 2, "[1]"},
		{"not who comes by a move that is being undone", threeMoving + "move 0 1 2 cancel", 1, "[2]"},
		{"who has come all the same, if it leads already", threeMoving + "move 0 3 1 cancel", 1, "[3]"},
		{"who a move will take away, until the other one is there", threeMoving + "move 0 1 4", 1, "[]"},
		{"nobody", "node 1 dead\npart 0 lead 1 of 1 isr 1 min 1\ntopic 1 min 1", 0, "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := stateFrom(t, c.state).snap
			id := meta.PartitionID{Topic: theTopic}
			if got := PreferredLeader(s, id); got != c.want {
				t.Errorf("node %d, want %d", got, c.want)
			}
			if got := fmt.Sprint(Leaving(s, id)); got != c.leaving {
				t.Errorf("leaving %s, want %s", got, c.leaving)
			}
		})
	}
}
