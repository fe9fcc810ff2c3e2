//go:build cluster

package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/internal/failpoint"
	"penstock/tests/cluster/harness"
)

const (
	failpointRounds = 6 // unless TEST_FAILPOINT_ROUNDS says more
	// reachTimeout bounds how long a running node may take to reach a point under load.
	reachTimeout = 2 * time.Minute
)

// often are files so small that the log begins a new one, and gives old ones back, every few seconds of this load.
var often = []string{
	"--commit-file-bytes", "1MiB", "--commit-live-bytes", "4MiB", "--min-segment-bytes", "64KiB", "--max-segment-bytes",
	"256KiB",
	"--max-message-bytes", "64KiB", "--max-batch-bytes", "128KiB",
}

// points are the failpoints that a node can reach, those of rare events with how often they are passed at most before.
func points(single bool) []string {
	return slices.DeleteFunc(slices.Clone(failpoint.Names), func(name string) bool {
		return single && name == "engine/follower-append"
	})
}

// withError are the points at which something can fail that the process outlives.
var withError = []string{"clog/before-write", "segment/before-write", "segment/before-sync"}

// choice is what happens to a node in one round.
func choice(rng *rand.Rand, name string) (action, setting string) {
	most := 300
	if strings.HasPrefix(name, "segment/") {
		most = 10
	}
	if strings.Contains(name, "checkpoint") || strings.Contains(name, "recycle") {
		most = 2
	}
	action = "kill"
	switch n := rng.IntN(4); {
	case n == 0 && slices.Contains(withError, name):
		action = "error"
	case n == 1:
		action = "sleep:300ms"
	}
	return action, fmt.Sprintf("%s=%s=%s@%d", failpoint.Variable, name, action, 1+rng.IntN(most))
}

// failpoints lets one node after the other end, fail or wait at a point of the write path, under load.
func failpoints(t *testing.T, s *scenario, single bool) {
	rounds := failpointRounds
	if text := os.Getenv("TEST_FAILPOINT_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		s.try(err)
		rounds = n
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TEST_FAILPOINT_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		s.try(err)
		seed = n
	}
	t.Logf("%d rounds, seed %d", rounds, seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	names := points(single)
	for round := range rounds {
		if round%len(names) == 0 {
			rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		}
		n := s.c.Nodes[rng.IntN(len(s.c.Nodes))]
		action, setting := choice(rng, names[round%len(names)])
		s.failAt(n, action, setting)
		s.healthy()
		s.acks(100)
	}
	s.finish()
}

// failAt starts a node anew with a failpoint, waits until it is reached under load, and starts the node without.
func (s *scenario) failAt(n *harness.Node, action, setting string) {
	s.t.Helper()
	s.t.Logf("%s: %s", n.Name, setting)
	name, _, _ := strings.Cut(strings.TrimPrefix(setting, failpoint.Variable+"="), "=")
	heal := s.fault(setting, n.Name, n.Kill)
	n.Env = []string{setting}
	before := told(s, n, name)
	reached := func() bool { return told(s, n, name) > before }
	if action == "kill" {
		reached = func() bool { return !n.Running() }
	}
	s.try(n.Start())
	for end := time.Now().Add(reachTimeout); !reached(); s.pass(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%s did not reach %s within %v", n.Name, setting, reachTimeout)
		}
		if action != "kill" && !n.Running() {
			s.t.Fatalf("%s ended by itself with %s:\n%s", n.Name, setting, n.LogTail(4<<10))
		}
	}
	n.Env = nil
	s.try(n.Kill()) // also one that is gone: it is known then
	heal(s.restart(n))
}

// told is how often a node has said that it reached a point.
func told(s *scenario, n *harness.Node, name string) int {
	log, err := os.ReadFile(n.LogPath)
	s.try(err)
	return strings.Count(string(log), "failpoint "+name+": ")
}

func TestFailpointsSingle(t *testing.T) {
	failpoints(t, begin(t, harness.Single, harness.Options{Tags: "failpoint", Serve: often}), true)
}

func TestFailpointsCluster(t *testing.T) {
	failpoints(t, begin(t, three, harness.Options{Tags: "failpoint", Serve: often}), false)
}
