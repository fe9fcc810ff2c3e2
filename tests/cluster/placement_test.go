//go:build cluster

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

const (
	placedPartitions = 12
	movesAtOnce      = 2
	// patient is how long publishers wait here: a slow disk is no refusal.
	patient = 10 * time.Second
)

// spare is a cluster in which every partition has one replica, so that a fourth node gets its share, and in which
// copying takes a while.
func spare(ctx context.Context, o harness.Options) (*harness.Cluster, error) {
	o.Nodes = 3
	o.Serve = []string{
		"--default-partitions", fmt.Sprint(placedPartitions), "--min-segment-bytes", "64KiB", "--replicas", "1",
		"--rebalance-after", "0s", "--rebalance-moves", fmt.Sprint(movesAtOnce), "--catch-up-bytes-per-second", "64KiB",
	}
	return harness.Dev(ctx, o)
}

// command runs `penstock cluster ARGS --json` against a node, and returns what it prints.
func (s *scenario) command(n *harness.Node, args ...string) string {
	s.t.Helper()
	binary, err := harness.Binary()
	s.try(err)
	args = append(append([]string{"cluster"}, args...), "--json", "--http-address", n.HTTP)
	out, err := exec.CommandContext(s.within(2*time.Minute), binary, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("engine %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// placed returns the replicas of every partition of the topic, the preferred leader first.
func (s *scenario) placed() map[uint32][]string {
	s.t.Helper()
	all, err := s.c.Topics(s.within(startTimeout))
	s.try(err)
	got := map[uint32][]string{}
	for _, t := range all.Topics {
		if t.Name != topic {
			continue
		}
		for _, p := range t.Partitions {
			got[p.Partition] = p.Replicas
		}
	}
	return got
}

// await waits until the status and the placement are as they should be.
func (s *scenario) await(what string, holds func(st *harness.Status, placed map[uint32][]string) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; s.pass(50 * time.Millisecond) {
		st, err := s.c.Status(s.within(startTimeout))
		if err == nil && holds(st, s.placed()) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: that did not happen: %+v, %v, %v", what, st, s.placed(), err)
		}
	}
}

// watchMoves notes how many moves are under way at most, until stop is called.
func (s *scenario) watchMoves() (stop func() (most int)) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var watcher sync.WaitGroup
	most := 0
	watcher.Go(func() {
		for ctx.Err() == nil {
			var st harness.Status
			if harness.Get(ctx, s.c.Nodes[0].HTTP, "/cluster/status", &st) == nil {
				most = max(most, st.Rebalance.Moves)
			}
			s.pass(5 * time.Millisecond)
		}
	})
	return func() int {
		cancel()
		watcher.Wait()
		return most
	}
}

// phase runs one step of the test as a fault: leaderships may change in it, and node, if it is named, ends. It logs how
// long publishers waited.
func (s *scenario) phase(name, node string, do func()) {
	s.t.Helper()
	began := s.run.Recorder.Now()
	heal := s.fault(name, node, func() error { return nil })
	do()
	s.acks(300)
	heal(func() error { return nil })
	all := waits(s.run.Recorder.Events(), began)
	s.t.Logf("%-22s %6d publishes in %5.1f s: p50 %v, p99 %v, longest %v", name, len(all),
		(s.run.Recorder.Now() - began).Seconds(), history.Percentile(all, 50).Round(100*time.Microsecond),
		history.Percentile(all, 99).Round(100*time.Microsecond), slices.Max(all).Round(time.Millisecond))
}

// waits are the times from each publish after from to its OK.
func waits(events []history.Event, from time.Duration) (all []time.Duration) {
	type key struct {
		client string
		seq    uint64
	}
	sent := map[key]time.Duration{}
	for i := range events {
		switch e := &events[i]; {
		case e.At < from:
		case e.Op == history.Publish:
			sent[key{e.Client, e.Seq}] = e.At
		case e.Op == history.OK:
			if at, ok := sent[key{e.Client, e.Seq}]; ok {
				all = append(all, e.At-at)
			}
		}
	}
	return all
}

// Under load a fourth node joins and gets its share by command: what the dry run shows is what happens, no more moves
// than allowed go on at once, a pause holds and is ended. Then the topic gets three replicas, then two, a leadership is
// transferred and stays, and a node is drained and leaves for good. Nothing acknowledged is lost, nothing is refused.
func TestPlacementUnderLoad(t *testing.T) {
	s := prepare(t, spare, harness.Options{})
	s.run.Consume(workload.Consumer{Name: "c-a", Channel: "a"})
	s.try(s.run.ConsumeGoNSQ(workload.Consumer{Name: "c-b", Channel: "b"}))
	for i, n := range s.c.Nodes {
		s.run.Produce(workload.Producer{
			Name: "p-" + n.Name, Addresses: rotated(s.run.Nodes, i), Window: 16, PerSecond: 200, AnswerTimeout: patient,
		})
	}
	for _, n := range s.c.Nodes {
		if !slices.Contains(n.Args, "--cluster-secret-file") {
			t.Fatalf("node %s has no secret: %q", n.Name, n.Args)
		}
	}
	s.acks(3000)
	late, err := s.c.Join(s.within(startTimeout), "n4")
	s.try(err)
	s.run.Names[late.NSQ] = late.Name
	s.healthy()
	stop := s.watchMoves()
	s.phase("rebalance", "", func() { s.rebalanceByCommand(late) })
	if most := stop(); most < 1 || most > movesAtOnce {
		t.Errorf("%d moves went on at once, %d were allowed", most, movesAtOnce)
	}
	for _, want := range []int{3, 2} {
		s.phase(fmt.Sprintf("%d replicas", want), "", func() {
			s.command(late, "set-replicas", topic, fmt.Sprint(want))
			s.await(fmt.Sprint(want, " replicas"), func(_ *harness.Status, placed map[uint32][]string) bool {
				return !slices.ContainsFunc(slices.Collect(maps.Values(placed)), func(r []string) bool { return len(r) != want })
			})
			s.healthy()
		})
	}
	s.phase("transfer", "", s.transfer)
	s.phase("drain and leave", "n3", func() { s.leaveForGood(s.c.Node("n3")) })
	s.healthy()
	s.finish()
	nothingRefused(t, s.run.Recorder.Events())
}

func (s *scenario) rebalanceByCommand(late *harness.Node) {
	s.t.Helper()
	want := s.placed()
	var plan harness.Plan
	s.try(json.Unmarshal([]byte(s.command(late, "rebalance", "--dry-run")), &plan))
	for _, step := range plan.Steps {
		r := slices.Clone(want[step.Partition])
		at := slices.Index(r, step.From)
		if step.Topic != topic || at < 0 || step.Swap {
			s.t.Fatalf("the plan has the step %+v, and the replicas are %v", step, r)
		}
		r[at] = step.To
		want[step.Partition] = r
	}
	if len(plan.Steps) != placedPartitions/4 {
		s.t.Errorf("the plan has %d steps: %+v", len(plan.Steps), plan.Steps)
	}
	s.command(late, "rebalance")
	s.await("a move under way", func(st *harness.Status, _ map[uint32][]string) bool { return st.Rebalance.Moves > 0 })
	s.command(s.c.Nodes[0], "rebalance", "--pause")
	left := 0
	s.await("the end of what was under way", func(st *harness.Status, _ map[uint32][]string) bool {
		left = st.Rebalance.Remaining
		return st.Rebalance.State == "paused" && st.Rebalance.Moves == 0
	})
	if left != len(plan.Steps)-movesAtOnce {
		s.t.Errorf("%d steps remain in the pause", left)
	}
	before := s.placed()
	s.acks(1000)
	if now := s.placed(); fmt.Sprint(now) != fmt.Sprint(before) {
		s.t.Errorf("in the pause %v became %v", before, now)
	}
	s.command(late, "rebalance", "--resume")
	s.await("the end of the rebalance", func(st *harness.Status, _ map[uint32][]string) bool {
		return st.Rebalance.State == "idle" && !st.Rebalance.Wanted && st.Rebalance.Moves == 0
	})
	if now := s.placed(); fmt.Sprint(now) != fmt.Sprint(want) {
		s.t.Errorf("the dry run promised %v, and it is %v", want, now)
	}
}

func (s *scenario) transfer() {
	s.t.Helper()
	var done struct{ Leader string }
	before := s.leader(0)
	s.try(json.Unmarshal([]byte(s.command(s.c.Nodes[0], "transfer-leader", topic, "0", "--wait", "60s")), &done))
	if now := s.leader(0); now.Name != done.Leader || now == before {
		s.t.Errorf("node %s leads, %s was chosen", now.Name, done.Leader)
	}
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); s.acks(100) {
		if now := s.leader(0); now.Name != done.Leader {
			s.t.Fatalf("the leadership went on to node %s", now.Name)
		}
	}
}

// leaveForGood drains a node, stops it when it has nothing any more, and removes it.
func (s *scenario) leaveForGood(n *harness.Node) {
	s.t.Helper()
	s.command(n, "drain", n.Name, "--wait", "60s")
	s.await(n.Name+" has no replicas", func(st *harness.Status, _ map[uint32][]string) bool {
		return !slices.ContainsFunc(st.Nodes, func(o harness.NodeStatus) bool { return o.Name == n.Name && o.Replicas > 0 })
	})
	s.run.Mark(history.Note, 0, "stops", n.Name)
	s.try(n.Terminate(stopTimeout))
	s.command(s.c.Nodes[0], "remove-node", n.Name)
	s.c.Forget(n)
}
