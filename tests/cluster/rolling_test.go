//go:build cluster

package cluster

import (
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

// maxGap is the longest time without an acknowledgement while nodes are restarted one after the other.
const maxGap = 500 * time.Millisecond

// B80, B90: every node in turn is drained, stopped, started and filled again, under load: no publish fails, nobody
// waits long.
func TestRollingRestart(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for _, n := range s.c.Nodes {
		ctx := s.within(startTimeout)
		heal := s.fault("rolling restart", n.Name, func() error { return s.c.Drain(ctx, n, true) })
		s.try(s.c.Led(ctx, n.Name))
		s.try(n.Terminate(stopTimeout))
		s.acks(200)
		s.try(n.Restart(ctx))
		heal(func() error { return s.c.Drain(ctx, n, false) })
		s.healthy()
		s.acks(200)
	}
	r := s.finish()
	nothingRefused(t, s.run.Recorder.Events())
	for _, w := range r.Windows {
		if w.Gap > maxGap {
			t.Errorf("restart of %s: nothing was acknowledged for %v, allowed are %v", w.Node, w.Gap, maxGap)
		}
	}
}

// B80: SIGTERM alone hands over, too.
func TestTerminateLeader(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for round := range 3 {
		n := s.leader(uint32(round))
		heal := s.fault("terminate leader", n.Name, func() error { return n.Terminate(stopTimeout) })
		s.acks(200)
		heal(s.restart(n))
		s.healthy()
	}
	s.finish()
	nothingRefused(t, s.run.Recorder.Events())
}

// nothingRefused allows what no server can prevent: a connection that ends, on a node that was told to end, with a
// publish under way, and attempts to reach that node while it is gone.
func nothingRefused(t *testing.T, events []history.Event) {
	t.Helper()
	var down string
	count := 0
	for _, e := range events {
		switch {
		case e.Op == history.Fault:
			down = e.Node
		case e.Op != history.Fail && e.Op != history.Unknown, e.Detail == workload.NoConnection:
		case workload.Ended(e.Detail) && endedOn(events, &e) == down:
		default:
			if count++; count <= 5 {
				t.Errorf("a publish failed: %v", e)
			}
		}
	}
}

// endedOn is the node that a publish went to.
func endedOn(events []history.Event, outcome *history.Event) string {
	for i := range events {
		if e := &events[i]; e.Op == history.Publish && e.Client == outcome.Client && e.Seq == outcome.Seq {
			return e.Node
		}
	}
	return ""
}
