package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock/internal/meta"
	"penstock/replicate"
)

// inRacks returns live nodes 1, 2, … in these racks.
func inRacks(racks ...string) []*meta.Node {
	var nodes []*meta.Node
	for i, rack := range racks {
		nodes = append(nodes, &meta.Node{ID: replicate.NodeID(i + 1), Live: true, Rack: rack})
	}
	return nodes
}

func TestPlaceInRacks(t *testing.T) {
	slow := inRacks("a", "a", "b")
	slow[2].Disk = meta.DiskHung
	draining := inRacks("a", "a", "b")
	draining[2].Draining = true
	wrong := inRacks("a", "a", "b")
	wrong[2].ClockDiffers = true
	for _, c := range []struct {
		name            string
		nodes           []*meta.Node
		count, replicas int
		want            string
	}{
		{"two racks of two", inRacks("a", "a", "b", "b"), 4, 2, "[[1 3] [2 4] [3 1] [4 2]]"},
		{"three racks", inRacks("a", "a", "b", "b", "c", "c"), 3, 3, "[[1 3 5] [2 4 6] [3 1 5]]"},
		{"more replicas than racks", inRacks("a", "a", "b", "b"), 2, 3, "[[1 3 2] [4 1 2]]"},
		{"a rack with one node", inRacks("a", "a", "a", "b"), 3, 2, "[[1 4] [2 4] [3 4]]"},
		{"all in one rack is as without racks", inRacks("a", "a", "a"), 3, 2, "[[1 2] [3 1] [2 3]]"},
		{"nodes without a rack count as one", inRacks("", "", "b"), 2, 2, "[[1 3] [2 3]]"},
		{"a disk that hangs matters more", slow, 1, 2, "[[1 2]]"},
		{"so does a drain", draining, 1, 2, "[[1 2]]"},
		{"and a clock that differs", wrong, 1, 2, "[[1 2]]"},
	} {
		got, err := place(c.nodes, c.count, c.replicas, newLoad(), newLoad())
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, %v, want %s", c.name, got, err, c.want)
		}
	}
}

// unevenly says how the replicas of a partition could be spread better: a rack has two more of them than another one,
// which has a node left.
func unevenly(s map[replicate.NodeID]*meta.Node, replicas []replicate.NodeID) string {
	counts, free := map[string]int{}, map[string]int{}
	for _, n := range s {
		free[n.Rack]++
	}
	for _, id := range replicas {
		counts[s[id].Rack]++
		free[s[id].Rack]--
	}
	for a := range free {
		for b := range free {
			if counts[a] > counts[b]+1 && free[b] > 0 {
				return fmt.Sprintf("%v has %d in rack %q and %d in rack %q", replicas, counts[a], a, counts[b], b)
			}
		}
	}
	return ""
}

// Whatever the racks are, the replicas of each partition are as evenly in them as the nodes allow, no node is twice in
// a partition, and the leaders of a topic are spread as without racks.
func TestPlaceSpreadsOverRacks(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		nodes, byID := []*meta.Node{}, map[replicate.NodeID]*meta.Node{}
		for i := range 1 + rng.IntN(9) {
			n := &meta.Node{ID: replicate.NodeID(2*i + 1), Live: true, Rack: fmt.Sprint(rng.IntN(4))}
			nodes, byID[n.ID] = append(nodes, n), n
		}
		replicas := 1 + rng.IntN(min(5, len(nodes)))
		got, err := place(nodes, 1+rng.IntN(30), replicas, newLoad(), newLoad())
		if err != nil {
			t.Fatal(err)
		}
		leads := map[replicate.NodeID]int{}
		for _, row := range got {
			seen := map[replicate.NodeID]bool{}
			for _, id := range row {
				seen[id] = true
			}
			if why := unevenly(byID, row); why != "" || len(seen) != replicas {
				t.Fatalf("%v: %s", row, why)
			}
			leads[row[0]]++
		}
		least, most := len(got), 0
		for id := range byID {
			least, most = min(least, leads[id]), max(most, leads[id])
		}
		if most > least+1 {
			t.Fatalf("leaders from %d to %d", least, most)
		}
	}
}

var rackPlans = []planCase{
	{"a replica that is added comes into the rack with the fewest", `
		node 1 rack=a
		node 2 rack=a
		node 3 rack=b
		part 0 lead 1 of 1 isr 1 min 1
		part 1 lead 3 of 3 1 isr 3 1 min 1
		topic 2 min 1`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 3 isr 1 min 1`, 0},
	{"a drained replica is replaced in its rack, not where the others are", `
		node 1 draining rack=a
		node 2 rack=a
		node 3 rack=b
		node 4 rack=b
		part 0 lead 3 of 3 1 isr 1 3 min 2
		part 1 lead 3 of 3 2 isr 2 3 min 2
		topic 2 min 2`, `move away from a draining node put /moves/t/000000 {"from":1,"to":2,"drain":true}`, 0},
	{"a slow disk matters more than a rack", `
		node 1 rack=a
		node 2 rack=a
		node 3 slow rack=b
		part 0 lead 1 of 1 isr 1 min 1
		topic 2 min 1`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 2 isr 1 min 1`, 0},
	{"and so does a clock that differs", `
		node 1 rack=a
		node 2 rack=a
		node 3 clock rack=b
		part 0 lead 1 of 1 isr 1 min 1
		topic 2 min 1`, `towards the replicas that the topic wants: part 0 epoch 5 lead 1 of 1 2 isr 1 min 1`, 0},
}

func TestPlanInRacks(t *testing.T) { runPlans(t, rackPlans) }

func TestInOneRack(t *testing.T) {
	for _, c := range []struct {
		racks    []string
		replicas []replicate.NodeID
		want     bool
	}{
		{[]string{"a", "a", "b"}, []replicate.NodeID{1, 2}, true},
		{[]string{"a", "a", "b"}, []replicate.NodeID{1, 3}, false},
		{[]string{"a", "a", "b"}, []replicate.NodeID{1}, false}, // it has only one replica
		{[]string{"a", "a", "a"}, []replicate.NodeID{1, 2}, false},
		{[]string{"", "", ""}, []replicate.NodeID{1, 2, 3}, false},
		{[]string{"", "", "b"}, []replicate.NodeID{1, 2}, true},
		{nil, nil, false},
	} {
		s := &meta.Snapshot{Nodes: map[replicate.NodeID]*meta.Node{}}
		for _, n := range inRacks(c.racks...) {
			s.Nodes[n.ID] = n
		}
		if got := InOneRack(s, c.replicas); got != c.want {
			t.Errorf("%v on %v: %v", c.replicas, c.racks, got)
		}
	}
}
