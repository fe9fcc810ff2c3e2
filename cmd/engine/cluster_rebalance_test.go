package main

import (
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
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
	execute(t, "cluster", "rebalance", "--wait", "10ms").check(t, cli.ExitOther, "it goes on; see penstock cluster status")
	n.answers(func(int) admin.Status {
		return admin.Status{Rebalance: admin.Rebalancing{State: admin.RebalancePaused, Wanted: true, RemainingCount: 2}}
	})
	got = execute(t, "cluster", "rebalance", "--wait", "1ns") // it is over before the node has answered
	if got.code != cli.ExitOther || !strings.Contains(got.stderr, "is not complete after 1ns and stands still: paused, 2 "+
		"steps remain; penstock cluster rebalance --resume ends the pause") {
		t.Errorf("exit code %d, in a pause it prints\n%s", got.code, got.stderr)
	}
}
