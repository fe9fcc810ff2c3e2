package cluster

import (
	"errors"
	"strings"
	"testing"

	"penstock/internal/meta"
	"penstock/replicate"
)

const threeInSync = `
	node 1
	node 2
	node 3
	part 0 lead 1 of 1 2 3 isr 1 2 3 min 2
	topic 3 min 2`

// An operator may give a leadership to some nodes and not to others; the row says afterwards which one gets it.
func TestTransferTarget(t *testing.T) {
	for _, c := range []struct {
		name  string
		state string
		to    replicate.NodeID
		want  string // the row, or a part of the refusal
	}{
		{"the named replica becomes the first", threeInSync, 3, "lead 1 of 3 1 2 isr 1 2 3 min 2 transfer 3 in 5"},
		{"of several the one that leads least", threeInSync + `
			part 1 lead 2 of 2 1 isr 1 2 min 2
			topic 3 min 2`, 0, "lead 1 of 3 1 2 isr 1 2 3 min 2 transfer 3 in 5"},
		{"no node", threeInSync, 9, "to node 9: it has no replica"},
		{"no replica", threeInSync + `
			node 4`, 4, "to node n4: it has no replica"},
		{"leads already", threeInSync, 1, "node n1 leads partition 0 of topic t already"},
		{"leads, and another one is preferred: it keeps it", `
			node 1
			node 2
			part 0 lead 2 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "lead 2 of 2 1 isr 1 2 min 1"},
		{"preferred, and another one leads: ordered all the same", `
			node 1
			node 2
			part 0 lead 2 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 1, "lead 2 of 1 2 isr 1 2 min 1 transfer 1 in 5"},
		{"a replica that is behind does not matter to the others", `
			node 1
			node 2
			node 3 dead
			part 0 lead 1 of 1 2 3 isr 1 2 min 2
			topic 3 min 2`, 2, "lead 1 of 2 1 3 isr 1 2 min 2 transfer 2 in 5"},
		{"dead", `
			node 1
			node 2 dead
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "node n2: it is not alive"},
		{"reported dead", `
			node 1
			node 2 down
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "node n2: it is not alive"},
		{"behind", `
			node 1
			node 2
			part 0 lead 1 of 1 2 isr 1 min 1
			topic 2 min 1`, 2, "node n2: its replica is not in sync"},
		{"with another disk than the one in the ISR", `
			node 1
			node 2 wiped
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "node n2: its replica is not in sync"},
		{"damaged", `
			node 1
			node 2
			part 0 lead 1 of 1 2 isr 1 2 min 1 damaged 2
			topic 2 min 1`, 2, "node n2: its copy is damaged"},
		{"draining", `
			node 1
			node 2 draining
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "node n2: it is draining"},
		{"away from a draining node", `
			node 1 draining
			node 2
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 0, "lead 1 of 2 1 isr 1 2 min 1 transfer 2 in 5"},
		{"with a slow disk", `
			node 1
			node 2 slow
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "node n2: its disk is slow"},
		{"with a clock that differs", `
			node 1
			node 2 clock
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "node n2: its clock differs"},
		{"whose own clock differs", `
			node 1 clock
			node 2
			part 0 lead 1 of 2 1 isr 1 2 min 1
			topic 2 min 1`, 1, "node n1: its clock differs"},
		{"nobody else may have it: each reason is named", `
			node 1
			node 2 draining
			node 3
			part 0 lead 1 of 1 2 3 isr 1 2 min 1
			topic 3 min 1`, 0, "(node n2: it is draining; node n3: its replica is not in sync)"},
		{"no other replica", `
			node 1
			part 0 lead 1 of 1 isr 1 min 1
			topic 1 min 1`, 0, "has no other replica"},
		{"the leader is dead: an election decides", `
			node 1 dead
			node 2
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "has no live leader"},
		{"the leader was restarted: likewise", `
			node 1 restarted
			node 2
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1`, 2, "has no live leader"},
		{"a move brings it", `
			node 1
			node 2
			node 3
			part 0 lead 1 of 3 2 1 isr 1 2 3 min 2
			topic 2 min 2
			move 0 1 3`, 3, "lead 1 of 3 2 1 isr 1 2 3 min 2 transfer 3 in 5"},
		{"a move that brings it has not copied it yet", `
			node 1
			node 2
			node 3
			part 0 lead 1 of 3 2 1 isr 1 2 min 2
			topic 2 min 2
			move 0 1 3`, 3, "node n3: its replica is not in sync"},
		{"a move goes on beside it, and the replica that goes stays last", `
			node 1
			node 2
			node 3
			part 0 lead 1 of 3 2 1 isr 1 2 3 min 2
			topic 2 min 2
			move 0 1 3`, 2, "lead 1 of 2 3 1 isr 1 2 3 min 2 transfer 2 in 5"},
		{"a move takes it away", `
			node 1
			node 2
			node 3
			part 0 lead 1 of 1 2 isr 1 2 min 1
			topic 2 min 1
			move 0 2 3`, 2, "node n2: its replica is being moved away"},
		{"a move that would bring it is being undone", `
			node 1
			node 2
			node 3
			part 0 lead 2 of 3 2 1 isr 1 2 3 min 2
			topic 2 min 2
			move 0 1 3 cancel`, 3, "node n3: its replica is being moved away"},
		{"one that the topic does not want any more", threeInSync + `
			topic 2 min 2`, 3, "node n3: its replica will be removed"},
		{"the later of two orders counts", `
			node 1
			node 2
			node 3
			part 0 lead 1 of 3 1 2 isr 1 2 3 min 2 transfer 3
			topic 3 min 2`, 2, "lead 1 of 2 3 1 isr 1 2 3 min 2 transfer 2 in 5"},
		{"the leader may keep what was ordered away", `
			node 1
			node 2
			node 3
			part 0 lead 1 of 3 1 2 isr 1 2 3 min 2 transfer 3
			topic 3 min 2`, 1, "lead 1 of 1 3 2 isr 1 2 3 min 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := stateFrom(t, c.state)
			id := meta.PartitionID{Topic: theTopic}
			chosen, refused := TransferTarget(st.snap, id, c.to)
			got := refused
			if refused == "" {
				next := transferred(st.snap.Partitions.Get(id), chosen)
				got = strings.TrimPrefix(commandText(&command{next: next}), ": part 0 epoch 5 ")
				if next.State.Version != 10 || c.to != 0 && chosen != c.to {
					t.Errorf("node %d, version %d", chosen, next.State.Version)
				}
				if got != c.want {
					t.Errorf("the row is\n%s, want\n%s", got, c.want)
				}
				st.snap.Partitions = st.snap.Partitions.With(id, next)
				if preferred := PreferredLeader(st.snap, id); preferred != chosen {
					t.Errorf("node %d is given the leadership, and node %d is preferred", chosen, preferred)
				}
			} else if !strings.Contains(refused, c.want) {
				t.Errorf("%s, want %s", refused, c.want)
			}
		})
	}
	none := meta.PartitionID{Topic: theTopic, Partition: 7}
	if _, refused := TransferTarget(stateFrom(t, threeInSync).snap, none, 1); refused == "" {
		t.Error("a partition that is not there")
	}
}

// An order ends with its epoch: if the target dies before the hand-over, only the order of the replicas speaks for it
// when it returns.
func TestTransferEndsWithTheEpoch(t *testing.T) {
	id := meta.PartitionID{Topic: theTopic}
	for state, want := range map[string]replicate.NodeID{
		"lead 1 of 3 1 2 isr 1 2 3 min 2 transfer 3":         3,
		"lead 1 of 3 1 2 isr 1 2 3 min 2":                    0,
		"lead 3 of 3 1 2 isr 1 2 3 min 2 transfer 3":         0, // done
		"lead 1 of 1 2 isr 1 2 min 2 transfer 3":             0, // that replica was removed
		"lead 1 of 2 3 1 isr 1 2 3 min 2 transfer 3":         0, // a rebalance prefers another one
		"epoch 6 lead 1 of 3 1 2 isr 1 2 3 min 2 transfer 3": 0, // of the epoch before
	} {
		st := stateFrom(t, "node 1\nnode 2\nnode 3\ntopic 3 min 2\npart 0 "+strings.TrimPrefix(state, "epoch 6 "))
		p := st.snap.Partitions.Get(id)
		if strings.HasPrefix(state, "epoch 6") {
			next := edit(p)
			next.State.Epoch++
			p = next
		}
		if got := p.TransferTo(); got != want {
			t.Errorf("%s: node %d", state, got)
		}
	}
	st := stateFrom(t, threeInSync)
	next := transferred(st.snap.Partitions.Get(id), 3)
	lead(next, st.snap.Nodes[2])
	if next.Transfer != (meta.Transfer{}) {
		t.Errorf("the next leader's row has %+v", next.Transfer)
	}
}

// TransferLeader writes the order; the leader's hand-over follows the order that is newest in the store, whatever the
// leader has heard of.
func TestTransferLeader(t *testing.T) {
	w := newWorld(t, 3)
	a, b := w.nodes[0], w.nodes[1]
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 1, Replicas: 3})
	id := part(topic, 0)
	row := func() *meta.Partition { return a.Snapshot().Partitions.Get(id) }
	old := *row()
	leader, second, third := old.State.Replicas[0], old.State.Replicas[1], old.State.Replicas[2]
	order := func(n *testNode, to, want replicate.NodeID) {
		t.Helper()
		got, err := n.TransferLeader(ctx(t), id, to)
		if err != nil || got != want {
			t.Fatalf("to %d: node %d, %v", to, got, err)
		}
		w.until(a, "the order", func(s *meta.Snapshot) bool { return s.Partitions.Get(id).State.Replicas[0] == want })
	}
	order(a, second, second)
	order(b, third, third) // two orders cross: the later one counts
	if to := row().TransferTo(); to != third {
		t.Fatalf("ordered is node %d", to)
	}
	before := row().State
	if err := w.byID(leader).HandOver(ctx(t), id, &before, second); err != nil {
		t.Fatal(err)
	}
	w.until(a, "the new leader", func(s *meta.Snapshot) bool {
		p := s.Partitions.Get(id)
		return p.State.Leader == third && p.Transfer == meta.Transfer{} && p.State.Epoch == old.State.Epoch+1
	})
	if _, err := a.TransferLeader(ctx(t), id, third); !errors.Is(err, meta.ErrConflict) ||
		!strings.Contains(err.Error(), "leads partition 0 of topic x already") {
		t.Errorf("to the leader: %v", err)
	}
	if _, err := a.TransferLeader(ctx(t), part(topic, 5), second); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("of no partition: %v", err)
	}

	// The target dies in between: the next replica takes over, and the order ends.
	order(a, second, second)
	w.kill(w.byID(second))
	if err := w.alive(second).ReportDown(ctx(t), second, w.byID(second).node.Boot); err != nil {
		t.Fatal(err)
	}
	from := w.alive(second)
	w.until(from, "the death", func(s *meta.Snapshot) bool { return !s.Nodes[second].Live })
	before = from.row(id)
	if err := w.byID(third).HandOver(ctx(t), id, &before, 0); err != nil {
		t.Fatal(err)
	}
	w.until(from, "the next leader", func(s *meta.Snapshot) bool {
		p := s.Partitions.Get(id)
		return p.State.Leader == leader && p.Transfer == meta.Transfer{}
	})
	if _, err := from.TransferLeader(ctx(t), id, second); err == nil || !strings.Contains(err.Error(), "it is not alive") {
		t.Errorf("to a dead node: %v", err)
	}
	if n := PreferredLeader(from.Snapshot(), id); n != leader {
		t.Errorf("preferred is node %d while node %d is dead", n, second)
	}
}
