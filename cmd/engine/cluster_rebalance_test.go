package main

import (
	"bytes"
	"strings"
	"testing"

	"penstock/internal/cluster/admin"
)

func TestRebalanceWaits(t *testing.T) {
	n := startClusterNode(t)
	t.Setenv("PENSTOCK_SERVER", n.address)
	n.answers(func(asked int) admin.Status { // the order comes first
		r := admin.Rebalancing{State: admin.RebalanceRunning, Wanted: true, MoveCount: 2, RemainingCount: 5}
		if asked >= 3 {
			r = admin.Rebalancing{State: admin.RebalanceIdle}
		}
		return admin.Status{Rebalance: r}
	})
	got := execute(t, "cluster", "rebalance", "--wait", "20s")
	if got.code != 0 || got.stderr != "running, 2 moves under way, 5 steps remain\nnothing is left to move\n" {
		t.Errorf("exit code %d, it prints\n%s", got.code, got.stderr)
	}
	if asked := n.requests(); strings.Count(asked, "GET /cluster/status") != 2 {
		t.Errorf("it asked\n%s", asked)
	}
	n.answers(func(int) admin.Status { return admin.Status{Rebalance: admin.Rebalancing{Wanted: true}} })
	execute(t, "cluster", "rebalance", "--wait", "10ms").check(t, exitOther, "it goes on; see penstock cluster status")
	n.answers(func(int) admin.Status {
		return admin.Status{Rebalance: admin.Rebalancing{State: admin.RebalancePaused, Wanted: true, RemainingCount: 2}}
	})
	got = execute(t, "cluster", "rebalance", "--wait", "1ns") // it is over before the node has answered
	if got.code != exitOther || !strings.Contains(got.stderr, "is not complete after 1ns and stands still: paused, 2 "+
		"steps remain; penstock cluster rebalance --resume ends the pause") {
		t.Errorf("exit code %d, in a pause it prints\n%s", got.code, got.stderr)
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
	must(t, printStatus(&out, &admin.Status{Rebalance: admin.Rebalancing{State: admin.RebalancePaused, Gone: "n9"}}))
	must(t, printStatus(&out, &admin.Status{Rebalance: admin.Rebalancing{State: "idle", MoveCount: 3, WaitingCount: 2}}))
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
