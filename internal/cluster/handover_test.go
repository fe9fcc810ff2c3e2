package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Who takes a partition over from node 1, whatever asks for it.
func TestHeirOf(t *testing.T) {
	for _, c := range []struct {
		name, state string
		to          replicate.NodeID
		before      int
		want        replicate.NodeID // 0: nobody
	}{
		{
			"whoever leads least",
			"node 1\nnode 2\nnode 3\npart 0 lead 1 of 1 2 3 isr 1 2 3 min 2\npart 1 lead 2 of 2 isr 2 min 1", 0, 0, 3,
		},
		{"who is named", "node 1\nnode 2\nnode 3\npart 0 lead 1 of 1 2 3 isr 1 2 3 min 2", 3, 0, 3},
		{"who was ordered", "node 1\nnode 2\nnode 3\npart 0 lead 1 of 2 1 3 isr 1 2 3 min 2 transfer 2", 3, 0, 2},
		{"not who drains", "node 1\nnode 2 draining\npart 0 lead 1 of 1 2 isr 1 2 min 2", 0, 0, 0},
		{"by name, with what the leader lacks", "node 1\nnode 2 draining\npart 0 lead 1 of 1 2 isr 1 2 min 2", 2, 0, 2},
		{"a slow disk by name", "node 1 slow\nnode 2 slow\npart 0 lead 1 of 1 2 isr 1 2 min 2", 2, 0, 2},
		{"not the leader itself", "node 1\nnode 2\npart 0 lead 1 of 1 2 isr 1 2 min 2", 1, 0, 0},
		{"not who is not in sync", "node 1\nnode 2\nnode 3\npart 0 lead 1 of 1 2 3 isr 1 2 min 2", 3, 0, 0},
		{"nor by an order", "node 1\nnode 2 draining\npart 0 lead 1 of 2 1 isr 1 2 min 2 transfer 2", 0, 0, 0},
		{"both drain", "node 1 draining\nnode 2 draining\npart 0 lead 1 of 1 2 isr 1 2 min 2", 0, 0, 0},
		{"who drains, from a disk that hangs", "node 1 hung\nnode 2 draining\npart 0 lead 1 of 1 2 isr 1 2 min 2", 0, 0, 2},
		{"not from one that is slow", "node 1 slow\nnode 2 draining\npart 0 lead 1 of 1 2 isr 1 2 min 2", 0, 0, 0},
		{
			"a right clock first", "node 1\nnode 2 clock\nnode 3\npart 0 lead 1 of 1 2 3 isr 1 2 3 min 2\n" +
				"part 1 lead 3 of 3 isr 3 min 1", 0, 0, 3,
		},
		{
			"a clock that differs, from a disk that hangs",
			"node 1 hung\nnode 2 clock\npart 0 lead 1 of 1 2 isr 1 2 min 2", 0, 0, 2,
		},
		{"and if all differ", "node 1 clock\nnode 2 clock\npart 0 lead 1 of 1 2 isr 1 2 min 2", 0, 0, 2},
		{"often, but not too often", "node 1\nnode 2\npart 0 lead 1 of 1 2 isr 1 2 min 2", 2, maxHandOverCount - 1, 2},
		{"too often", "node 1\nnode 2\npart 0 lead 1 of 1 2 isr 1 2 min 2", 2, maxHandOverCount, 0},
		{
			"too often, whoever is to have it", "node 1\nnode 2\npart 0 lead 1 of 2 1 isr 1 2 min 2 transfer 2", 0,
			maxHandOverCount, 0,
		},
	} {
		st := stateFrom(t, c.state+"\ntopic 3 min 2")
		got, err := heirOf(st, &st.parts.Get(meta.PartitionID{Topic: theTopic}).Partition, c.to, c.before)
		if got != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%s: node %d, %v; want node %d", c.name, got, err, c.want)
		}
	}
}

// Hand-overs are counted for each partition, and forgotten when they do not count any more.
func TestHandOversAreForgotten(t *testing.T) {
	start, h := time.Unix(1000, 0), new(handOvers)
	a, b := meta.PartitionID{Topic: theTopic}, meta.PartitionID{Topic: uuid.UUID{'o'}}
	h.note(a, start)
	h.note(a, start.Add(time.Second))
	h.note(b, start.Add(2*time.Second))
	if n := h.since(a, start.Add(-1)); n != 2 {
		t.Errorf("%d of 2", n)
	}
	if n := h.since(a, start); n != 1 {
		t.Errorf("%d of 1", n)
	}
	h.note(b, start.Add(2*handOverSpan))
	if n := h.since(b, start); n != 1 || len(h.at) != 1 {
		t.Errorf("%d of b, %d partitions", n, len(h.at))
	}
}

// Two nodes that pass a leadership round, whatever makes them, stop after a bounded number of epochs.
func TestHandOversAreBounded(t *testing.T) {
	w, id, leader := only(t)
	other := w.alive(leader.node.ID)
	begin := leader.row(id).Epoch
	for {
		from, to := leader, other
		st := leader.row(id)
		if st.Leader == other.node.ID {
			from, to = other, leader
		}
		err := from.HandOver(ctx(t), id, &st, to.node.ID)
		if errors.Is(err, meta.ErrConflict) {
			continue // the watch of leader is behind
		}
		if err != nil {
			if !strings.Contains(err.Error(), "again and again") {
				t.Error(err)
			}
			break
		}
		if leader.row(id).Epoch > begin+3*maxHandOverCount {
			t.Fatal("they do not end")
		}
	}
}
