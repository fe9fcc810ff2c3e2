package node_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/node"
)

// clockFault is what a node counts as the fault of a clock that differs, in ms; 0: it is none.
func clockFault(all []node.Fault) int64 {
	i := slices.IndexFunc(all, func(f node.Fault) bool { return f.Name == "clock_differs_ms" })
	if i < 0 {
		return 0
	}
	return all[i].Count
}

// wrongClocks starts a cluster of n nodes, of which n1 has a wall clock that is wrong by some time at its start.
func wrongClocks(t *testing.T, n int, by time.Duration) (tc *testCluster, of map[string]*skew) {
	t.Helper()
	of = map[string]*skew{"n1": {}, "n2": {}, "n3": {}}
	tc = prepareTestCluster(t, n, func(o *node.Options) {
		node.SetWallClock(o, of[o.NodeID].now)
		o.Cluster.PreferredLeader, o.Cluster.Replicas = cluster.PreferredLeader, n
	})
	tc.startAll()
	tc.create("t", n)
	tc.leaders("t")
	tc.awaitInSync("t")
	of["n1"].set(by)
	tc.kill(tc.nodes[0])
	tc.start(tc.nodes[0])
	return tc, of
}

// leads says whether the rows name a node as the leader of a partition of t.
func (m *testNode) leads(partitions int) bool {
	for n := range partitions {
		if row := m.row("t", n); row == nil || row.State.Leader == m.e.Node().ID {
			return true
		}
	}
	return false
}

// A node that was started with a wrong clock says so, by how much and of which nodes. It leads nothing although it is
// the first replica of a partition and in sync. What is published with a delay through it is due by a right clock. When
// it is started with a right clock, it leads again.
func TestClusterClockDiffers(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"ahead of": 5 * time.Second, "behind": -5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc, of := wrongClocks(t, 3, by)
			wrong := tc.nodes[0]
			want := "this node's clock is 5.0s " + name + " those of nodes n2, n3"
			tc.eventually("its health says: "+want, func() bool { return strings.Contains(wrong.e.Verdict().Health, want) })
			if clockFault(wrong.e.Warnings()) == 0 {
				t.Error("it is no fault")
			}
			stats := wrong.e.Storage()
			if ms := clockFault(stats.Faults()); ms < 4500 || ms > 5500 {
				t.Errorf("it counts %d ms, it is 5 s wrong", ms)
			}
			for _, m := range tc.nodes {
				tc.eventually("all know that its clock differs", func() bool {
					return m.e.Snapshot().Nodes[wrong.e.Node().ID].ClockDiffers
				})
			}
			tc.eventually("it leads nothing", func() bool { return !wrong.leads(3) })
			tc.awaitInSync("t")
			for _, m := range tc.others(wrong) {
				ms, says := clockFault(m.e.Warnings()), m.e.Verdict().Health
				if ms != 0 || strings.Contains(says, "this node's clock") {
					t.Errorf("%s, whose clock is right, counts %d ms and says:\n%s", m.name, ms, says)
				}
				if row := m.e.Snapshot().Nodes[m.e.Node().ID]; row.ClockDiffers {
					t.Errorf("the clock of %s is right: %+v", m.name, row)
				}
			}
			const wait = time.Hour
			stored := time.Now()
			tc.channel("t", "c")
			for n := range 3 {
				if err := node.PutTo(t.Context(), tc.topic(wrong, "t"), n, &node.Put{
					Messages: [][]byte{[]byte("later")}, Defer: wait,
				}); err != nil {
					t.Fatal(err)
				}
			}
			waiting, err := tc.channelAt(tc.nodes[1], "t", "c").DeferredMessages(t.Context(), 10)
			if err != nil || len(waiting) != 3 {
				t.Fatalf("%+v wait: %v", waiting, err)
			}
			for _, m := range waiting {
				const off = 100 * time.Millisecond // by which right clocks may differ
				if m.Due.Before(stored.Add(wait-off)) || m.Due.After(time.Now().Add(wait+off)) {
					t.Errorf("%v is due %v after it should be", m.ID, m.Due.Sub(stored.Add(wait)))
				}
			}
			of["n1"].set(0)
			tc.kill(wrong)
			tc.start(wrong)
			tc.eventually("it leads again", func() bool { return wrong.leads(3) })
			tc.eventually("its clock is right", func() bool {
				return clockFault(wrong.e.Warnings()) == 0 && !wrong.e.Snapshot().Nodes[wrong.e.Node().ID].ClockDiffers
			})
		})
	}
}

// A leader whose clock differs hands over although a replica is away for good: another one is in sync.
func TestClusterClockDiffersOfALeader(t *testing.T) {
	t.Parallel()
	tc, _ := wrongClocks(t, 3, 5*time.Second)
	wrong, other, away := tc.nodes[0], tc.nodes[1], tc.nodes[2]
	tc.eventually("it leads nothing", func() bool {
		return wrong.e.Snapshot().Nodes[wrong.e.Node().ID].ClockDiffers && !wrong.leads(3)
	})
	tc.kill(away)
	for n := range 3 {
		tc.eventually("the other one leads alone", func() bool {
			row := other.row("t", n)
			return row.State.Leader == other.e.Node().ID && len(row.State.ISR) == 2
		})
	}
	first := slices.IndexFunc([]int{0, 1, 2}, func(n int) bool { // it gives way there, and is not taken for stranded
		return other.row("t", n).State.Replicas[0] == wrong.e.Node().ID
	})
	tc.moveLeadership("t", first, wrong)
	tc.eventually("it gives the leadership back", func() bool { return !wrong.leads(3) })
	if row := other.row("t", first); len(row.State.ISR) != 2 {
		t.Errorf("the third one is back: %+v", row.State)
	}
}

// Of two nodes whose clocks differ nobody knows which is wrong: both say so, and go on leading.
func TestClusterClocksOfTwoNodesDiffer(t *testing.T) {
	t.Parallel()
	tc, _ := wrongClocks(t, 2, 5*time.Second)
	for i, words := range []string{"ahead of that of node n2", "behind that of node n1"} {
		m := tc.nodes[i]
		tc.eventually("it says that its clock differs", func() bool { return clockFault(m.e.Warnings()) > 0 })
		if says := m.e.Verdict().Health; !strings.Contains(says, words) || !strings.Contains(says, "nobody can tell") {
			t.Errorf("health of %s does not say %q:\n%s", m.name, words, says)
		}
	}
	tc.eventually("both lead", func() bool { return tc.nodes[0].leads(2) && tc.nodes[1].leads(2) })
	for _, n := range tc.nodes[0].e.Snapshot().Nodes {
		if n.ClockDiffers {
			t.Errorf("nobody knows whether the clock of %s is wrong: %+v", n.Name, n)
		}
	}
}
