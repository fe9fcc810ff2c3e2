//go:build relay

package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/bench/relay"
	"penstock/internal/load"
	"penstock/tests/cluster/harness"
)

// What is to be reached.
const (
	idleMost      = 1.15 // of the client's and the replication's round trip and a commit
	inFlightLeast = 0.8  // of the rate without delay, or of what the window can reach
)

// Variables of the environment: TEST_ROUNDS is a number, TEST_LOADS a regular expression of the names of loads,
// and TEST_ENGINES a list of engines, separated by commas, that are measured in turn: an old one and a new one. By
// default the engine of this tree is measured.
const roundTripRounds = 5

// roundTrips are what the relay adds.
var roundTrips = []time.Duration{0, 200 * time.Microsecond, time.Millisecond}

// roundTripLoad is a load as flags of `penstock bench pub`.
type roundTripLoad struct {
	name   string
	window int // PUBs in flight; 0: an open loop
	flags  []string
}

var roundTripLoads = []roundTripLoad{
	{"1024 in flight", 1024, []string{"--connections", "1", "--in-flight", "1024"}},
	{"8192 in flight", 8192, []string{"--connections", "1", "--in-flight", "8192"}},
	{"64 × 1", 64, []string{"--connections", "64"}},
	{"5000 msg/s", 0, []string{"--connections", "16", "--in-flight", "64", "--rate", "5000"}},
}

// relayed is a relay as the network of a cluster, whose node 0 is host first.
type relayed struct {
	*relay.Relay
	first int
}

func (r relayed) Namespace(node int) string { return r.Relay.Namespace(r.first + node) }

func (r relayed) Address(node int, _ harness.Plane) string { return r.Relay.Address(r.first + node) }

// relayedCluster is three nodes of one engine on a relay, and what was measured with each of roundTrips. Host 0 is the
// client's.
type relayedCluster struct {
	engine string
	leader *harness.Node
	thin   *thinClient
	probes [2]*relay.Probe // the client's and the replication's way
	seen   []roundTrip
}

// roundTrip is what was measured with one delay, a value per round. Times are in µs.
type roundTrip struct {
	client, replication, idle, ratio, shared, late []float64
	loads                                          []loadSeen
}

type loadSeen struct{ rate, p50, p99 []float64 }

// Three nodes and a client, each on a host of its own, with round trips that are not loopback's: one PUB after the
// other, many in flight, many connections, and an open loop. Delays and engines alternate.
func TestRoundTrips(t *testing.T) {
	if err := relay.Missing(); err != nil {
		t.Skipf("this machine cannot have a relay: %v", err)
	}
	engines := strings.Split(os.Getenv("TEST_ENGINES"), ",")
	r, err := relay.New(1+3*len(engines), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	var clusters []*relayedCluster
	for i, engine := range engines {
		clusters = append(clusters, newRelayedCluster(t, r, 1+3*i, engine))
	}
	loads, disks := chosenLoads(t), [3]*rawLoop{newRawLoop(t), newRawLoop(t), newRawLoop(t)}
	commits := make([][2][]float64, len(roundTrips))
	for round := range numberOf(t, "TEST_ROUNDS", roundTripRounds) {
		for i, d := range roundTrips {
			r.SetRoundTrip(d)
			one, three := micros(disks[0].commitTime(t, 300)), micros(commitsAtOnce(t, disks[:], 300))
			commits[i][0], commits[i][1] = append(commits[i][0], one), append(commits[i][1], three)
			for j := range clusters {
				clusters[(round+j)%len(clusters)].measure(t, r, i, loads, one, three)
			}
		}
	}
	for i, d := range roundTrips {
		one, three := median(commits[i][0]), median(commits[i][1])
		t.Logf("round trip %v: a commit takes %.0f µs, three at once %.0f µs", d, one, three)
	}
	r.SetRoundTrip(0)
	bulk, err := clusters[0].probes[1].Bulk(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the relay carries %.0f MB/s in one connection", bulk/1e6)
	for _, c := range clusters {
		c.judge(t, loads)
	}
}

func chosenLoads(t *testing.T) []roundTripLoad {
	t.Helper()
	chosen, err := regexp.Compile(os.Getenv("TEST_LOADS"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(slices.Clone(roundTripLoads), func(l roundTripLoad) bool {
		return !chosen.MatchString(l.name)
	})
}

func newRelayedCluster(t *testing.T, r *relay.Relay, first int, engine string) *relayedCluster {
	t.Helper()
	c, err := harness.Spread(t.Context(), harness.Options{
		Dir: t.TempDir(), Nodes: 3, Network: relayed{r, first}, Binary: engine,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	leader := ledNode(t, c, "t")
	follower := (leader + 1) % 3
	m := &relayedCluster{engine: filepath.Base(engine), leader: c.Nodes[leader], seen: make([]roundTrip, len(roundTrips))}
	m.thin = dialThin(t, m.leader.NSQ, "t")
	for i, pair := range [2][2]int{{0, first + leader}, {first + leader, first + follower}} {
		if m.probes[i], err = r.NewProbe(pair[0], pair[1]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.probes[i].Close() })
	}
	return m
}

// ledNode makes a topic and returns the number of the node that leads it.
func ledNode(t *testing.T, c *harness.Cluster, topic string) int {
	t.Helper()
	if err := c.CreateTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	if err := c.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	n, err := c.Leader(t.Context(), topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Index(c.Nodes, n)
}

func (c *relayedCluster) measure(
	t *testing.T, r *relay.Relay, delay int, loads []roundTripLoad, commit, shared float64,
) {
	t.Helper()
	const pubs = 300
	m := &c.seen[delay]
	var trips [2]float64
	r.Stats()
	for i, p := range c.probes {
		took, err := p.RoundTrip(thinBodyBytes, pubs)
		if err != nil {
			t.Fatal(err)
		}
		trips[i] = micros(took)
	}
	s := r.Stats()
	c.thin.latencies(t, pubs/10)
	p50, _ := c.thin.latencies(t, pubs)
	idle := micros(p50)
	m.client, m.replication = append(m.client, trips[0]), append(m.replication, trips[1])
	m.idle, m.ratio = append(m.idle, idle), append(m.ratio, idle/(trips[0]+trips[1]+commit))
	m.shared = append(m.shared, idle/(trips[0]+trips[1]+shared))
	m.late = append(m.late, micros(s.Late)/float64(max(s.Packets, 1)))
	if m.loads == nil {
		m.loads = make([]loadSeen, len(loads))
	}
	for i := range loads {
		l, seen := pubReport(t, c.leader, loads[i].flags), &m.loads[i]
		seen.rate = append(seen.rate, l.MessagesPerSecond)
		seen.p50 = append(seen.p50, micros(l.Latencies[0].P50))
		seen.p99 = append(seen.p99, micros(l.Latencies[0].P99))
	}
}

// pubReport puts a load on a node, from a process of its own: the relay's thread is in this one.
func pubReport(t *testing.T, n *harness.Node, flags []string) *load.Report {
	t.Helper()
	tool, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"bench", "pub", "--json", "--duration", "1s", "--warm-up", "300ms", "--topic", "t", "--nsq-address", n.NSQ,
		"--http-address", n.HTTP,
	}, flags...)
	out, err := exec.Command(tool, args...).Output()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	report := new(load.Report)
	if err := json.Unmarshal(out, report); err != nil || len(report.Latencies) == 0 {
		t.Fatalf("%s: %v", out, err)
	}
	return report
}

// judge prints the table of an engine and says what falls short. No rate can be above the window by the time that one
// PUB takes at the least: where this is less than the rate without delay, it is what the rate is compared with.
func (c *relayedCluster) judge(t *testing.T, loads []roundTripLoad) {
	t.Helper()
	var text strings.Builder
	for i := range c.seen {
		m := &c.seen[i]
		least := median(m.idle) / median(m.ratio)
		fmt.Fprintf(&text, "\n%s, round trip %v: client %.0f µs, replication %.0f µs; the relay is late by %.1f µs\n",
			c.engine, roundTrips[i], median(m.client), median(m.replication), median(m.late))
		fmt.Fprintf(&text, "  one PUB         p50 %.0f µs, %.2f of the sum (%.2f to %.2f), "+
			"%.2f with three commits at once\n",
			median(m.idle), median(m.ratio), slices.Min(m.ratio), slices.Max(m.ratio), median(m.shared))
		if ratio := median(m.ratio); ratio > idleMost {
			t.Errorf("%s, round trip %v: one PUB takes %.2f of round trips and commit, at most %.2f are wanted",
				c.engine, roundTrips[i], ratio, idleMost)
		}
		for j, l := range loads {
			seen := &m.loads[j]
			rate, without := median(seen.rate), median(c.seen[0].loads[j].rate)
			fmt.Fprintf(&text, "  %-15s %9.0f msg/s, p50 %6.0f µs, p99 %6.0f µs; %.2f of that without delay",
				l.name, rate, median(seen.p50), median(seen.p99), rate/without)
			bound := float64(l.window) / least * 1e6
			if l.window > 0 {
				fmt.Fprintf(&text, "; %.2f of what %d in flight can reach", rate/bound, l.window)
			}
			fmt.Fprintln(&text)
			if want := inFlightLeast * min(without, bound); l.window >= 1024 && rate < want {
				t.Errorf("%s, round trip %v, %s: %.0f msg/s, at least %.0f are wanted",
					c.engine, roundTrips[i], l.name, rate, want)
			}
		}
	}
	t.Log(text.String())
}
