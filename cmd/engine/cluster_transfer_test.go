package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
	"penstock/tests/support/patience"
)

// transfer-leader --wait returns when the node leads, and says what happened if it does not get that far.
func TestTransferWaits(t *testing.T) {
	var asked atomic.Int32
	var partition atomic.Pointer[func(asked int32) admin.Partition]
	answer := func(f func(asked int32) admin.Partition) { partition.Store(&f) }
	n := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_ = json.NewEncoder(w).Encode(admin.Done{Message: "it goes to n2", Leader: "n2"})
			return
		}
		p := (*partition.Load())(asked.Add(1))
		_ = json.NewEncoder(w).Encode(admin.Topics{Topics: []admin.Topic{{Partitions: []admin.Partition{p}}}})
	}))
	defer n.Close()
	t.Setenv("PENSTOCK_SERVER", n.URL)
	answer(func(asked int32) admin.Partition {
		return admin.Partition{Leader: []string{"n1", "n2"}[min(1, asked/3)], Replicas: []string{"n2", "n1"}}
	})
	if got := steer(t, "cluster", "transfer-leader", "orders", "0", "--wait", "20s"); asked.Load() != 3 ||
		got != "it goes to n2\nnode n2 leads partition 0 of topic orders\n" {
		t.Errorf("after %d answers it prints %q", asked.Load(), got)
	}
	var done admin.Done
	text := steer(t, "cluster", "transfer-leader", "orders", "0", "--wait", "20s", "--json")
	if err := json.Unmarshal([]byte(text), &done); err != nil || done.Leader != "n2" {
		t.Errorf("%q: %v", text, err)
	}
	answer(func(int32) admin.Partition { return admin.Partition{Leader: "n1", Replicas: []string{"n2", "n1"}} })
	execute(t, "cluster", "transfer-leader", "orders", "0", "--wait", "1ns").check(t, cli.ExitOther,
		"partition 0 of topic orders is led by node n1 after 1ns, not by node n2: the order stays in force")
	answer(func(int32) admin.Partition { return admin.Partition{Leader: "n1", Replicas: []string{"n3", "n2"}} })
	execute(t, "cluster", "transfer-leader", "orders", "0", "--wait", "20s").check(t, cli.ExitOther,
		"another order or a rebalance prefers node n3")
	execute(t, "cluster", "transfer-leader", "orders", "1", "--wait", "20s").check(t, cli.ExitOther, "has been deleted")
}

// A leadership is transferred in a cluster of real processes while every node takes messages: none is refused, and all
// are there once afterwards.
func TestTransferLeaderOnACluster(t *testing.T) {
	t.Parallel()
	nodes := startRealCluster(t)
	at := func(i int, args ...string) string {
		t.Helper()
		return steer(t, append(args, "--http-address", nodes[i%3])...)
	}
	at(0, "topic", "create", "orders")
	placed := func(i int) admin.Partition {
		t.Helper()
		var all admin.Topics
		must(t, json.Unmarshal([]byte(at(i, "cluster", "topics", "orders", "--json")), &all))
		return all.Topics[0].Partitions[0]
	}
	for i := range nodes {
		for end := time.Now().Add(patience.Or(90 * time.Second)); execute(t, "cluster", "topics", "orders", "--http-address",
			nodes[i]).code != 0; {
			if time.Now().After(end) {
				t.Fatalf("node %d does not know the topic", i+1)
			}
		}
	}
	var load sync.WaitGroup
	var accepted atomic.Int64
	stop := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(stop)
		load.Wait()
	})
	defer end()
	for i, node := range nodes {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if code, text := post(node, "/pub?topic=orders", fmt.Sprintf("%d-%d", i, n)); code != 200 {
					t.Errorf("node %d refuses message %d: %d %s", i+1, n, code, text)
					return
				}
				accepted.Add(1)
			}
		})
	}
	for round := range 3 {
		before := placed(round)
		var done admin.Done
		must(t, json.Unmarshal([]byte(at(round, "cluster", "transfer-leader", "orders", "0", "--wait", "20s", "--json")),
			&done))
		if now := placed(round); done.Leader == before.Leader || now.Leader != done.Leader ||
			now.Replicas[0] != done.Leader || !slices.Contains(before.ISR, done.Leader) {
			t.Errorf("%+v leads to %+v", done, now)
		}
	}
	last := placed(0)
	execute(t, "cluster", "transfer-leader", "orders", "0", "--to", last.Leader, "--http-address", nodes[0]).check(t,
		cli.ExitOther, "leads partition 0 of topic orders already: nothing was changed")
	execute(t, "cluster", "transfer-leader", "orders", "0", "--to", "n9", "--http-address", nodes[0]).check(t,
		cli.ExitOther, `there is no node "n9"`)
	o := execute(t, "__complete", "cluster", "transfer-leader", "orders", "0", "--http-address", nodes[0], "--to", "n")
	if got := strings.Join(slices.Sorted(slices.Values(strings.Fields(o.stdout))), " "); got != ":4 n1 n2 n3" {
		t.Errorf("--to is completed by %q", got)
	}
	end()
	for i := range nodes {
		if got := rows(at(i, "topic", "list")); len(got) != 2 ||
			strings.Fields(got[1])[3] != fmt.Sprint(accepted.Load()) {
			t.Errorf("%d messages were accepted; topic list prints %q", accepted.Load(), got)
		}
	}
	t.Logf("%d messages were accepted during three transfers", accepted.Load())
}
