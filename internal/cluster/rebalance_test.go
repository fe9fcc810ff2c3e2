package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/replicate"
)

// badness is what proposals make smaller, the first number first.
func (l *layout) badness() [4]int {
	var b [4]int
	b[0] = len(l.held[l.gone])
	for id := range l.replicas {
		for _, n := range l.racks(id) {
			b[1] += n * n
		}
	}
	for _, held := range l.held {
		b[2] += len(held) * len(held)
	}
	for _, n := range l.leads {
		b[3] += n * n
	}
	return b
}

// randomCluster is a snapshot with nodes in some racks and partitions on any of them.
func randomCluster(rng *rand.Rand) (s *meta.Snapshot, gone replicate.NodeID) {
	s = &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{}}
	nodes, racks := 1+rng.IntN(8), 1+rng.IntN(4)
	for i := range nodes {
		id := replicate.NodeID(i + 1)
		s.Nodes[id] = &meta.Node{
			ID: id, Live: rng.IntN(8) > 0, Rack: fmt.Sprint(rng.IntN(racks)), Draining: rng.IntN(12) == 0,
		}
		if !s.Nodes[id].Live && rng.IntN(2) == 0 {
			gone = id
		}
	}
	used := 1 + rng.IntN(nodes) // the others have just joined
	for topic := range 1 + rng.IntN(4) {
		replicas := 1 + rng.IntN(min(used, 4))
		for part := range rng.IntN(12) {
			id := meta.PartitionID{Partition: uint32(part)}
			id.Topic[0] = byte(topic)
			p := &meta.Partition{ID: id}
			for _, n := range rng.Perm(used)[:replicas] {
				p.State.Replicas = append(p.State.Replicas, replicate.NodeID(n+1))
			}
			s.Partitions = s.Partitions.With(id, p)
		}
	}
	return s, gone
}

// Whatever a cluster looks like, proposals end: each makes the layout better, so none comes back. At the end no single
// step makes it better: a partition is as evenly in the racks as the nodes allow, two nodes of a rack differ by one
// replica at most, and nothing is on a node that is gone if another node could have it. No step puts two replicas on a
// node, and a layout that is even already is left alone.
func TestRebalancingEnds(t *testing.T) {
	for seed := range uint64(2000) {
		s, gone := randomCluster(rand.New(rand.NewPCG(seed, 1)))
		l := layoutOf(s, gone)
		steps := Rebalancing(s, gone)
		if len(steps) == MaxProposalCount {
			t.Fatalf("seed %d: %d steps", seed, len(steps))
		}
		before := l.badness()
		for i := range steps {
			size := len(l.replicas[steps[i].ID])
			l.apply(&steps[i])
			after := l.badness()
			if slices.Compare(after[:], before[:]) >= 0 {
				t.Fatalf("seed %d: %+v takes %v to %v", seed, steps[i], before, after)
			}
			if now := slices.Clone(l.replicas[steps[i].ID]); len(slices.Compact(slices.Sorted(slices.Values(now)))) != size {
				t.Fatalf("seed %d: %+v makes %v", seed, steps[i], now)
			}
			before = after
		}
		checkEven(t, seed, l)
		for id, replicas := range l.replicas { // what they have done is what a second look finds to be right
			s.Partitions = s.Partitions.With(id, &meta.Partition{ID: id, State: replicate.State{Replicas: replicas}})
		}
		if again := Rebalancing(s, gone); len(again) != 0 {
			t.Fatalf("seed %d: afterwards it wants %+v", seed, again)
		}
	}
}

func checkEven(t *testing.T, seed uint64, l *layout) {
	t.Helper()
	takes := map[replicate.NodeID]*meta.Node{}
	for _, n := range l.takers {
		takes[n] = l.nodes[n]
		for _, o := range l.takers {
			if l.rack(n) == l.rack(o) && len(l.held[n]) > len(l.held[o])+1 {
				t.Fatalf("seed %d: nodes %d and %d of a rack hold %d and %d", seed, n, o, len(l.held[n]), len(l.held[o]))
			}
		}
	}
	for id, replicas := range l.replicas {
		inside := !slices.ContainsFunc(replicas, func(n replicate.NodeID) bool { return takes[n] == nil })
		if why := ""; inside {
			if why = unevenly(takes, replicas); why != "" {
				t.Fatalf("seed %d: %v: %s", seed, id.Partition, why)
			}
		}
		if slices.Contains(replicas, l.gone) &&
			slices.ContainsFunc(l.takers, func(n replicate.NodeID) bool { return !slices.Contains(replicas, n) }) {
			t.Fatalf("seed %d: %v is still on node %d, which is gone", seed, replicas, l.gone)
		}
	}
}

// A fourth node that joins gets its share, and no more is moved for that than the share: 18 replicas on 4 nodes.
func TestRebalancingMovesLittle(t *testing.T) {
	s := &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{}}
	for _, n := range inRacks("", "", "", "") {
		s.Nodes[n.ID] = n
	}
	for i := range 6 {
		id := meta.PartitionID{Topic: theTopic, Partition: uint32(i)}
		first := replicate.NodeID(i % 3)
		s.Partitions = s.Partitions.With(id, &meta.Partition{ID: id, State: replicate.State{
			Replicas: []replicate.NodeID{first + 1, (first+1)%3 + 1, (first+2)%3 + 1},
		}})
	}
	steps := Rebalancing(s, 0)
	leads := 0
	for i, step := range steps {
		if step.Swap || step.To != 4 {
			t.Errorf("step %d is %+v", i, step)
		}
		if s.Partitions.Get(step.ID).State.Replicas[0] == step.From {
			leads++
		}
	}
	if len(steps) != 4 || leads != 1 {
		t.Errorf("%d steps, which move the place of %d leaders: %+v", len(steps), leads, steps)
	}
}

var rebalancePlans = []planCase{
	{"nothing is wanted", `
		node 1
		node 2
		part 0 lead 1 of 1 isr 1 min 1
		part 1 lead 1 of 1 isr 1 min 1
		topic 1 min 1`, ``, 0},
	{"a node without replicas gets one", `
		node 1
		node 2
		part 0 lead 1 of 1 isr 1 min 1
		part 1 lead 1 of 1 isr 1 min 1
		topic 1 min 1
		rebalance wanted`, `move a replica to even out the nodes put /moves/t/000000 {"from":1,"to":2,"drain":true}`, 0},
	{"not while it is paused", `
		node 1
		node 2
		part 0 lead 1 of 1 isr 1 min 1
		part 1 lead 1 of 1 isr 1 min 1
		topic 1 min 1
		rebalance wanted paused`, ``, 0},
	{"what is not in sync does not move, and is waited for", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 isr 1 min 1
		part 1 lead 1 of 1 2 isr 1 min 1
		topic 2 min 1
		rebalance wanted`, ``, 0},
	{"nor what is damaged: another one goes", `
		node 1
		node 2
		node 3
		part 0 lead 1 of 1 2 isr 1 2 min 1 damaged 2
		part 1 lead 1 of 1 2 isr 1 2 min 1
		topic 2 min 1
		rebalance wanted`, `move a replica to even out the nodes put /moves/t/000001 {"from":2,"to":3,"drain":true}`, 0},
	{"leaders are evened out by order alone", `
		node 1
		node 2
		part 0 lead 1 of 1 2 isr 1 2 min 2
		part 1 lead 1 of 1 2 isr 1 2 min 2
		topic 2 min 2
		rebalance wanted`, `make another replica the preferred leader: part 0 epoch 5 lead 1 of 2 1 isr 1 2 min 2`, 0},
	{"a replica goes to the rack that has none", `
		node 1 rack=a
		node 2 rack=a
		node 3 rack=b
		part 0 lead 1 of 1 2 isr 1 2 min 2
		topic 2 min 2
		rebalance wanted`, `move a replica to even out the nodes put /moves/t/000000 {"from":2,"to":3,"drain":true}`, 0},
	{"from a node that is gone, whose replica need not be in sync", `
		node 1
		node 2
		node 3 dead
		part 0 lead 1 of 1 3 isr 1 min 1
		topic 2 min 1
		rebalance wanted gone 3`, `
		move a replica to even out the nodes put /moves/t/000000 {"from":3,"to":2,"drain":true}`, 0},
	{"not from one that is only away", `
		node 1
		node 2
		node 3 dead
		part 0 lead 1 of 1 3 isr 1 min 1
		topic 2 min 1
		rebalance wanted`, `end the rebalance put /rebalance {}`, 0},
	{"a replica on a dead node is waited for", `
		node 1
		node 2 dead
		node 3
		part 0 lead 1 of 1 2 isr 1 min 1
		part 1 lead 1 of 1 2 isr 1 min 1
		topic 2 min 1
		rebalance wanted`, ``, 0},
	{"but not for ever", `
		node 1
		node 2 lost
		node 3
		part 0 lead 1 of 1 2 isr 1 min 1
		part 1 lead 1 of 1 2 isr 1 min 1
		topic 2 min 1
		rebalance wanted`, `move a replica to even out the nodes put /moves/t/000000 {"from":1,"to":3,"drain":true}`, 0},
	{"it ends when nothing is left", `
		node 1
		node 2
		part 0 lead 1 of 1 isr 1 min 1
		part 1 lead 2 of 2 isr 2 min 1
		topic 1 min 1
		rebalance wanted`, `end the rebalance put /rebalance {}`, 0},
	{"but not before the last move has ended", `
		node 1
		node 2
		part 0 lead 1 of 2 1 isr 1 min 1
		part 1 lead 1 of 1 isr 1 min 1
		topic 1 min 1
		move 0 1 2 drain
		rebalance wanted`, ``, 0},
}

func TestPlanRebalance(t *testing.T) {
	runPlans(t, rebalancePlans)
}

// No more partitions are copied at once than allowed; what is catching up counts.
func TestRebalanceIsBounded(t *testing.T) {
	text := `
		node 1
		node 2
		topic 1 min 1
		rebalance wanted`
	for i := range 20 {
		text += fmt.Sprintf("\npart %d lead 1 of 1 isr 1 min 1", i)
	}
	text += "\ntopic 1 min 1"
	for _, most := range []int{1, 3, 50} {
		commands, _ := plan(stateFrom(t, text), "/", time.Unix(0, 0), most, view{})
		if want := min(most, 10); len(commands) != want {
			t.Errorf("%d at once: %d moves", most, len(commands))
		}
	}
	text += "\nmove 7 1 2\nmove 8 1 2"
	if commands, _ := plan(stateFrom(t, text), "/", time.Unix(0, 0), 3, view{}); len(commands) != 3 { // one begins
		t.Errorf("%d commands with two moves under way", len(commands))
	}
}

// Who counts as a member, and who as gone.
func TestMembership(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, c := range []struct {
		name  string
		state string
		nodes []replicate.NodeID // of the last rebalance
		want  string             // after half of the time, and after all of it
	}{
		{"nobody is known at first", "node 1\nnode 2", nil, "[] 0, [1 2] 0"},
		{"members stay", "node 1\nnode 2", []replicate.NodeID{1, 2}, "[1 2] 0, [1 2] 0"},
		{"one joins", "node 1\nnode 2\nnode 3", []replicate.NodeID{1, 2}, "[1 2] 0, [1 2 3] 0"},
		{"one is away", "node 1\nnode 2\nnode 3 dead", []replicate.NodeID{1, 2, 3}, "[1 2 3] 0, [1 2] 3"},
		{"two are away", "node 1\nnode 2 dead\nnode 3 dead", []replicate.NodeID{1, 2, 3}, "[1 2 3] 0, [1 2 3] 0"},
		{"a drained one is dead", "node 1\nnode 2\nnode 3 dead draining", []replicate.NodeID{1, 2, 3}, "[1 2] 0, [1 2] 0"},
		{"one was removed", "node 1\nnode 2", []replicate.NodeID{1, 2, 3}, "[1 2] 0, [1 2] 0"},
	} {
		s := stateFrom(t, c.state).snap
		s.Rebalance.Nodes = c.nodes
		seen := presence{}
		seen.observe(s, start)
		var got []string
		for _, age := range []time.Duration{30 * time.Second, time.Minute} {
			seen.observe(s, start.Add(age))
			nodes, gone := seen.membership(s, start.Add(age), time.Minute)
			got = append(got, fmt.Sprintf("%v %d", nodes, gone))
		}
		if text := got[0] + ", " + got[1]; text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}
