package cluster

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
	"penstock/internal/node"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The nodes fit into a terminal of 80 columns; the state, the disk and what is not whole are always there.
func TestNodesFit(t *testing.T) {
	nodes := []admin.Node{{
		Name: strings.Repeat("n", 40), NSQ: "broker-1.example:4150", HTTP: "broker-1.example:4151", Version: "1.2.3",
		Lookup: "broker-1.example:4161", Disk: "hung", Live: true, Damaged: 3,
	}}
	var narrow, wide bytes.Buffer
	must(t, cli.WriteFitting(&narrow, nodeColumns, nodes, 80))
	must(t, cli.WriteFitting(&wide, nodeColumns, nodes, 0))
	for line := range strings.Lines(narrow.String()) {
		if len([]rune(line)) > 81 {
			t.Errorf("too wide: %s", line)
		}
	}
	for _, word := range []string{"NODE", "STATE", "DISK", "hung", "3 damaged"} {
		if !strings.Contains(narrow.String(), word) || !strings.Contains(wide.String(), "LOOKUP") {
			t.Errorf("no %s:\n%s%s", word, &narrow, &wide)
		}
	}
}

func TestRebalancingIsCounted(t *testing.T) {
	got := rebalancing(&admin.Rebalancing{State: "running", MoveCount: 1, RemainingCount: 1})
	if want := "running, 1 move under way, 1 step remains"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A partition that one rack can take away is shown where an operator looks.
func TestClusterPrintsRacks(t *testing.T) {
	var out bytes.Buffer
	must(t, PrintStatus(&out, &admin.Status{OneRack: 2, Nodes: []admin.Node{{Name: "n1", Rack: "row-7"}}}))
	must(t, PrintTopics(&out, &admin.Topics{Topics: []admin.Topic{{Name: "t", Partitions: []admin.Partition{
		{State: admin.StateUnderReplicated, OneRack: true},
	}}}}))
	for _, want := range []string{"2 with all replicas in one rack", "row-7", "under replicated, one rack"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
}

func TestPrintPlan(t *testing.T) {
	var out bytes.Buffer
	must(t, printPlan(&out, &admin.Plan{
		Moves: []admin.Step{
			{Topic: "t", Partition: 3, From: "n1", To: "n2", Owner: admin.OwnerOperator, State: "node n2 fetches what it lacks"},
		},
		Steps: []admin.Step{{Topic: "u", From: "n1", To: "n4"}, {Topic: "u", Partition: 1, From: "n1", To: "n2", Swap: true}},
	}))
	must(t, printPlan(&out, &admin.Plan{}))
	must(t, PrintStatus(&out, &admin.Status{Rebalance: admin.Rebalancing{State: admin.RebalancePaused, Gone: "n9"}}))
	must(t, PrintStatus(&out, &admin.Status{Rebalance: admin.Rebalancing{State: "idle", MoveCount: 3, WaitingCount: 2}}))
	want := []string{
		"under way: t/3 from n1 to n2, begun by the operator: node n2 fetches what it lacks",
		"u      0          n1    n4  copy", "u      1          n1    n2  lead",
		"idle, 3 moves under way, 2 of them waiting (penstock cluster rebalance --dry-run says for what)",
		"nothing else is to be moved", "paused; node n9 is gone, and its replicas are made elsewhere",
	}
	for _, line := range want {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not in\n%s", line, &out)
		}
	}
}

// Every fault that a node counts is one line of penstock cluster status. A node without faults has no line.
func TestFaultsTable(t *testing.T) {
	all := node.StorageStats{
		Failed: true, DiskFull: true, DiskState: "hung", SkippingSince: "2026-01-31T12:00:00Z", SkippedBefore: true,
	}
	v := reflect.ValueOf(&all).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(3)
		case reflect.Int, reflect.Int64:
			f.SetInt(4000)
		}
	}
	st := &admin.Status{Node: "n1", Joined: true, Healthy: true, Health: "healthy: all is well", Nodes: []admin.Node{
		{ID: 1, Name: "n1", Live: true, Disk: "hung"},
		{ID: 2, Name: "n2", Live: true, Disk: "good"},
		{ID: 3, Name: "n3", Live: true, Disk: "good", NoFaults: "context deadline exceeded"},
		{ID: 4, Name: "n4", Live: true, Disk: "slow"},
	}}
	for _, f := range all.Faults() {
		st.Nodes[0].Faults = append(st.Nodes[0].Faults, admin.Fault(f))
	}
	for _, s := range []node.StorageStats{
		{DiskState: "good", ClockAheadMs: 10}, {DiskState: "slow", ClockAheadMs: -3_600_000},
	} {
		n := &st.Nodes[1]
		if s.DiskState == "slow" {
			n = &st.Nodes[3]
		}
		for _, f := range s.Faults() {
			n.Faults = append(n.Faults, admin.Fault(f))
		}
	}
	var out bytes.Buffer
	if err := PrintStatus(&out, st); err != nil {
		t.Fatal(err)
	}
	const name = "testdata/cluster_faults.txt"
	if *update {
		if err := os.WriteFile(name, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("it prints\n%swant\n%s", out.String(), want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
