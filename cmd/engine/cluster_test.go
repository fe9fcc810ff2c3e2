package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
	"penstock/tests/support/clitest"
	"penstock/tests/support/patience"
)

// clusterNode answers like a node and records the requests that it gets.
type clusterNode struct {
	*httptest.Server
	address string

	mu     sync.Mutex
	asked  []string
	refuse int // status of the answer to a change; 0: the change succeeds
	status func(asked int) admin.Status
}

// The answers are the golden files of package admin's own tests.
const adminAnswers = "../../internal/cluster/admin/testdata/"

func startClusterNode(t *testing.T) *clusterNode {
	t.Helper()
	n := new(clusterNode)
	n.Server = httptest.NewServer(n)
	n.address = strings.TrimPrefix(n.URL, "http://")
	t.Cleanup(n.Close)
	return n
}

func (n *clusterNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	n.asked = append(n.asked, strings.TrimSpace(r.Method+" "+r.URL.String()+" "+string(body)))
	switch {
	case r.Method == http.MethodGet && n.status != nil:
		_ = json.NewEncoder(w).Encode(n.status(len(n.asked)))
	case r.Method == http.MethodGet:
		http.ServeFile(w, r, adminAnswers+filepath.Base(r.URL.Path)+".json")
	case n.refuse != 0:
		w.WriteHeader(n.refuse)
		fmt.Fprint(w, `{"message":"the moon is full"}`)
	default:
		fmt.Fprint(w, `{"message":"it is done"}`)
	}
}

// answers sets the status that is served from now on, depending on the number of requests so far.
func (n *clusterNode) answers(status func(asked int) admin.Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked, n.status = nil, status
}

func (n *clusterNode) requests() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.asked, "\n")
}

func TestClusterTables(t *testing.T) {
	n := startClusterNode(t)
	t.Setenv("PENSTOCK_SERVER", n.address)
	for what, code := range map[string]int{"status": cli.ExitUnhealthy, "topics": 0} {
		o := execute(t, "cluster", what)
		if o.code != code || o.stderr != "" {
			t.Fatalf("%s: %+v", what, o)
		}
		name := filepath.Join("testdata", "cluster_"+what+".txt")
		if *update {
			if err := os.WriteFile(name, []byte(o.stdout), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if o.stdout != string(want) {
			t.Errorf("%s prints\n%swant\n%s", what, o.stdout, want)
		}
		answer, err := os.ReadFile(adminAnswers + what + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if o = execute(t, "cluster", what, "--json"); o.code != code || o.stdout != string(answer) {
			t.Errorf("%s --json prints %s", what, o.stdout)
		}
	}
	execute(t, "cluster", "topics", "a#b")
	if got := n.requests(); !strings.HasSuffix(got, "GET /cluster/topics?topic=a%23b") {
		t.Errorf("asked for %s", got)
	}
}

func TestClusterHealthy(t *testing.T) {
	n := startClusterNode(t)
	n.answers(func(int) admin.Status {
		return admin.Status{
			Node: "n1", TopicCount: 2, PartitionCount: 5, AgeMs: 1500, Healthy: true, Health: "healthy: all is well",
		}
	})
	o := execute(t, "cluster", "status", "--http", n.address)
	for _, want := range []string{
		"node n1 is no live member", "nobody just now", "2 with 5 partitions", "healthy: all is well",
		"1.5s ago, when the metadata store last answered node n1",
	} {
		if o.code != 0 || !strings.Contains(o.stdout, want) {
			t.Errorf("%q is missing in\n%s", want, o.stdout)
		}
	}
}

func TestClusterChanges(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"drain n1", `POST /cluster/drain {"node":"n1","on":true}`},
		{"drain 3 --off", `POST /cluster/drain {"node":"3","on":false}`},
		{"move orders 2 --from n1 --to n4", `POST /cluster/move {"topic":"orders","partition":2,"from":"n1","to":"n4"}`},
		{"move orders 2 --cancel", `POST /cluster/move {"topic":"orders","partition":2,"cancel":true}`},
		{
			"force-leader orders 0 n2 --yes",
			`POST /cluster/force-leader {"topic":"orders","partition":0,"node":"n2","i_accept_data_loss":true}`,
		},
		{
			"force-leader orders 0 n2 --dry-run",
			`POST /cluster/force-leader {"topic":"orders","partition":0,"node":"n2","i_accept_data_loss":false,"dry_run":true}`,
		},
		{"transfer-leader orders 2", `POST /cluster/transfer-leader {"topic":"orders","partition":2}`},
		{"transfer-leader orders 0 --to n2", `POST /cluster/transfer-leader {"topic":"orders","partition":0,"to":"n2"}`},
		{"remove-node n3", `POST /cluster/remove-node {"node":"n3"}`},
		{"upgrade", `POST /cluster/upgrade {"level":0}`},
		{"rebalance", `POST /cluster/rebalance {"action":"start"}`},
		{"rebalance --pause", `POST /cluster/rebalance {"action":"pause"}`},
		{"rebalance --cancel", `POST /cluster/rebalance {"action":"cancel"}`},
		{"rebalance --resume", `POST /cluster/rebalance {"action":"resume"}`},
		{"set-replicas orders 2", `POST /cluster/set-replicas {"topic":"orders","replicas":2}`},
		{"expand orders 8", `POST /cluster/expand {"topic":"orders","partitions":8}`},
	} {
		n := startClusterNode(t)
		args := append([]string{"cluster", "--http", n.address}, strings.Fields(tc.args)...)
		if o := execute(t, args...); o.code != 0 || o.stdout != "it is done\n" || n.requests() != tc.want {
			t.Errorf("%s: %+v, asked for %s", tc.args, o, n.requests())
		}
		var done admin.Done
		if o := execute(t, append(args, "--json")...); o.code != 0 || json.Unmarshal([]byte(o.stdout), &done) != nil ||
			done.Message != "it is done" {
			t.Errorf("%s --json: %+v", tc.args, o)
		}
		n.mu.Lock()
		n.refuse = http.StatusConflict
		n.mu.Unlock()
		execute(t, args...).check(t, cli.ExitOther, "the moon is full (node at "+n.address+")")
	}
}

func TestClusterUsage(t *testing.T) {
	n := startClusterNode(t)
	for _, tc := range []struct{ args, want string }{
		{"drian n1", "unknown command"},
		{"status now", "unknown command"},
		{"drain", "accepts 1 arg"},
		{"transfer-leader orders", "accepts 2 arg"},
		{"transfer-leader orders x", `"x" is not the number of a partition`},
		{"drain n1 --off --wait 1s", "exclude each other"},
		{"move orders 0 --from n1", `not set: a move needs both`},
		{"move orders 0 --from n1 --cancel", `takes no --from and no --to`},
		{"move orders first --from n1 --to n2", `"first" is not the number of a partition`},
		{"move orders -- -1", `"-1" is not the number of a partition`},
		{"force-leader orders 0", "accepts 3 arg"},
		{"force-leader orders 0 n1", "say --yes where nobody can answer; nothing was changed"}, // stdin is no terminal
		{"set-replicas orders none", `"none" is no number of replicas: it must be 1 or more`},
		{"set-replicas orders 0", `"0" is no number of replicas`},
		{"expand orders many", `"many" is not a number of partitions`},
		{"topics --http-adress x", "the nearest one is --http-address"},
	} {
		args := append([]string{"cluster", "--http", n.address}, strings.Fields(tc.args)...)
		execute(t, args...).check(t, cli.ExitUsage, tc.want)
	}
	if got := n.requests(); got != "" {
		t.Errorf("a wrong command asked for %s", got)
	}
	execute(t, "cluster", "status", "--http", "a b").check(t, cli.ExitUsage, "is neither a URL")
}

// The server at the address may be something other than a node, or there may be none.
func TestClusterWrongAddress(t *testing.T) {
	alone := startNode(t, t.TempDir())
	execute(t, "cluster", "drain", "n1", "--http", alone.http).check(t, cli.ExitOther, "is not part of a cluster")

	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusTeapot)
		}
		fmt.Fprint(w, "<html>")
	}))
	address := strings.TrimPrefix(web.URL, "http://")
	execute(t, "cluster", "status", "--http", address).check(t, cli.ExitOther,
		"answers something else than a node does")
	execute(t, "cluster", "drain", "n1", "--http", address).check(t, cli.ExitOther, "answers with status 418")
	web.Close()
	execute(t, "cluster", "status", "--http", address).check(t, cli.ExitOther, "does not answer: say another one with "+
		"--http")
}

func TestDrainWaits(t *testing.T) {
	n := startClusterNode(t)
	for _, name := range []string{"n1", "1"} {
		// The first request is the drain; the first status was taken before the drain took effect.
		n.answers(func(asked int) admin.Status {
			return admin.Status{
				Nodes: []admin.Node{
					{ID: 1, Name: "n1", Draining: asked > 2, Leaders: max(0, 5-asked)}, {ID: 2, Name: "n2", Leaders: 7},
				},
			}
		})
		if o := execute(t, "cluster", "drain", name, "--wait", "20s", "--http", n.address); o.code != 0 {
			t.Errorf("%+v", o)
		}
		if got := strings.Count(n.requests(), "GET /cluster/status"); got != 4 {
			t.Errorf("it asked %d times for the status, want 4", got)
		}
	}
	n.answers(func(int) admin.Status {
		return admin.Status{Nodes: []admin.Node{{ID: 1, Name: "n1", Draining: true, Leaders: 5}, {ID: 2, Name: "n2"}}}
	})
	execute(t, "cluster", "drain", "n1", "--wait", "1ns", "--http", n.address).check(t, cli.ExitOther,
		"node n1 still leads 5 partitions after 1ns")
	execute(t, "cluster", "drain", "n2", "--wait", "1ns", "--http", n.address).check(t, cli.ExitOther,
		"node n2 did not begin to drain within 1ns")
}

// On a terminal, force-leader names the replicas that may still hold messages. It continues only if the topic's name is
// typed.
func TestForceLeaderAsks(t *testing.T) {
	for answer, code := range map[string]int{"orders\n": 0, "yes\n": cli.ExitOther, "\x04": cli.ExitOther} {
		n := startClusterNode(t)
		near, far := clitest.OpenTerminal(t)
		cmd := exec.CommandContext(t.Context(), binary(t),
			"cluster", "force-leader", "orders", "3", "n1", "--http", n.address)
		cmd.Stdin = far
		stderr := &logBuffer{more: make(chan struct{}, 1)}
		var stdout bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		const question = "Type the name of the topic to continue: "
		for deadline := time.After(patience.Or(90 * time.Second)); !strings.HasSuffix(stderr.String(), question); {
			select {
			case <-stderr.more:
			case <-deadline:
				t.Fatalf("it does not ask:\n%s", stderr)
			}
		}
		if text := stderr.String(); !strings.Contains(text, "last led by node n3; its in-sync replicas are on n3.") ||
			!strings.Contains(text, "lost FOR EVER") {
			t.Errorf("it asks\n%s", text)
		}
		if _, err := io.WriteString(near, answer); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if text := stderr.String(); !strings.Contains(text, "What is known: it is done.\nPartition 3 of topic orders") {
			t.Errorf("it does not say what is known to be lost:\n%s", text)
		}
		forced := strings.Contains(n.requests(), `"node":"n1","i_accept_data_loss":true}`)
		if got := cmd.ProcessState.ExitCode(); got != code || forced != (code == 0) {
			t.Errorf("answered %q: exit code %d, forced %v:\n%s", answer, got, forced, stderr)
		}
	}
}
