package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

// B17 on one node, with clients that judge everything: kill -9 under load, again and again, loses nothing.
func TestSingleNodeKilled(t *testing.T) {
	s := begin(t, harness.Single, harness.Options{})
	n := s.c.Nodes[0]
	for round := range 4 {
		if round == 2 {
			s.run.Consume(workload.Consumer{Name: "c-late", Channel: "late", Creates: true})
			s.acks(200)
		}
		s.crash("kill", n, func() {})
		s.acks(200)
	}
	r := s.finish()
	if len(r.Windows) != 4 {
		t.Errorf("%d faults were judged", len(r.Windows))
	}
}

// SIGTERM answers what is pending: nothing becomes unknown but what the closing connection cut.
func TestSingleNodeStopped(t *testing.T) {
	s := begin(t, harness.Single, harness.Options{})
	n := s.c.Nodes[0]
	for range 2 {
		heal := s.fault("terminate", n.Name, func() error { return n.Terminate(stopTimeout) })
		heal(s.restart(n))
		s.acks(200)
	}
	s.finish()
}

// A node that comes back with an older disk is what the checker is for: everything between the copy and the kill is
// gone, and what comes next takes its ids.
func TestTheCheckerFindsALostDisk(t *testing.T) {
	s := begin(t, harness.Single, harness.Options{})
	n := s.c.Nodes[0]
	s.crash("kill", n, func() {
		s.try(os.CopyFS(n.DataPath+".old", os.DirFS(n.DataPath)))
	})
	s.acks(500)
	s.crash("older disk", n, func() {
		s.try(n.Wipe())
		s.try(os.CopyFS(n.DataPath, os.DirFS(n.DataPath+".old")))
		s.try(os.Chmod(filepath.Join(n.DataPath, "LOCK"), 0o600))
	})
	s.acks(200)
	s.drain = startTimeout / 30 // what is lost never comes
	r := s.judge()
	for _, want := range []history.Kind{history.DivergentID, history.Stale} {
		if r.Counts[want] == 0 {
			t.Errorf("not found: %s", want)
		}
	}
}

// An empty disk loses what was not consumed. Consumers come only afterwards.
func TestTheCheckerFindsLostMessages(t *testing.T) {
	s := prepare(t, harness.Single, harness.Options{})
	s.run.Produce(workload.Producer{Name: "p", Addresses: s.run.Nodes, Window: 16, PerSecond: 2000})
	s.acks(500)
	n := s.c.Nodes[0]
	s.crash("wipe", n, func() { s.try(n.Wipe()) })
	s.try(s.c.CreateTopic(s.within(startTimeout), topic))
	s.run.Consume(workload.Consumer{Name: "c-a", Channel: "a"})
	s.run.Consume(workload.Consumer{Name: "c-b", Channel: "b"})
	s.acks(200)
	s.drain = startTimeout / 30
	r := s.judge()
	if r.Counts[history.Lost] < 500 {
		t.Errorf("%d losses were found on two channels; 500 messages and more are gone", r.Counts[history.Lost])
	}
}
