package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gonsq "github.com/nsqio/go-nsq"

	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/cluster/trust"
	"penstock/tests/support/patience"
)

// members are three nodes of a cluster, each a process that the test starts and kills.
type members struct {
	t     *testing.T
	dir   string
	nodes []*devcluster.Node
	data  []string // the data directory of each
	runs  []*process
}

func newMembers(t *testing.T) *members {
	t.Helper()
	m := &members{t: t, dir: t.TempDir(), runs: make([]*process, 3)}
	o := &devcluster.Options{Nodes: 3, BasePort: freeBasePort(t), DataPath: m.dir}
	var err error
	m.nodes, err = devcluster.Plan(o)
	must(t, err)
	must(t, trust.EnsureSecret(o.SecretFile))
	for _, n := range m.nodes {
		m.data = append(m.data, filepath.Join(m.dir, n.Node))
	}
	return m
}

// start starts nodes, numbered from 0, and waits until all of them are ready.
func (m *members) start(which ...int) {
	m.t.Helper()
	for _, i := range which {
		args := slices.Concat(m.nodes[i].Args, []string{"--backup-path", "/"})
		args[2] = m.data[i] // behind serve --data-path
		m.runs[i] = launch(m.t, "", binary(m.t), args)
	}
	for _, i := range which {
		m.runs[i].ready()
	}
}

func (m *members) end(sig syscall.Signal, which ...int) {
	m.t.Helper()
	for _, i := range which {
		m.runs[i].end(sig)
		m.runs[i] = nil
	}
}

func (m *members) http(i int) string { return m.nodes[i].HTTP }

// create makes a topic with 4 partitions and a channel through node 0.
func (m *members) create() {
	m.t.Helper()
	for _, args := range [][]string{
		{"topic", "create", "orders", "--partitions", "4"}, {"channel", "create", "orders", "c"},
	} {
		if o := execute(m.t, append(args, "--http-address", m.http(0))...); o.code != 0 {
			m.t.Fatalf("%+v", o)
		}
	}
}

// publish publishes name-0 to name-99 through node i, and returns when all are answered OK. A message that was on its
// way to a leader when the leader was killed is answered 503, "unknown". It is published again: consume allows
// duplicates.
func (m *members) publish(i int, name string) {
	m.t.Helper()
	deadline := time.Now().Add(patience.Or(90 * time.Second))
	for n := range 100 {
		for {
			code, text := m.tryPublish(i, fmt.Sprintf("%s-%d", name, n))
			if code == http.StatusOK {
				break
			}
			if code != http.StatusServiceUnavailable || time.Now().After(deadline) {
				m.t.Fatalf("%s %d: %d %s", name, n, code, text)
			}
		}
	}
}

func (m *members) tryPublish(i int, body string) (int, string) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+m.http(i)+"/pub?topic=orders",
		strings.NewReader(body))
	must(m.t, err)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// healthy waits until node i says that all is well: every replica is in sync.
func (m *members) healthy(i int) {
	m.t.Helper()
	if o := execute(m.t, "cluster", "health", "--wait", "25s", "--http-address", m.http(i)); o.code != 0 {
		m.t.Fatalf("node %d: %s%s\n%s", i, o.stdout, o.stderr, m.runs[i].log)
	}
}

// consume takes messages at all running nodes until it has all 100 of each name, and fails if they do not come.
func (m *members) consume(names ...string) {
	m.t.Helper()
	missing := map[string]bool{}
	for _, name := range names {
		for n := range 100 {
			missing[fmt.Sprintf("%s-%d", name, n)] = true
		}
	}
	var mu sync.Mutex
	done := make(chan struct{})
	all := sync.OnceFunc(func() { close(done) })
	config := gonsq.NewConfig()
	config.MaxInFlight = 50
	// A node that leads nothing of the topic any more closes the connection; 60 s later would be too late here.
	config.LookupdPollInterval = 200 * time.Millisecond
	c, err := gonsq.NewConsumer("orders", "c", config)
	must(m.t, err)
	c.SetLogger(nil, 0)
	c.AddHandler(gonsq.HandlerFunc(func(msg *gonsq.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if delete(missing, string(msg.Body)); len(missing) == 0 {
			all()
		}
		return nil
	}))
	for i, p := range m.runs {
		if p != nil {
			must(m.t, c.ConnectToNSQD(m.nodes[i].NSQ))
		}
	}
	select {
	case <-done:
	case <-time.After(patience.Or(90 * time.Second)):
		mu.Lock()
		m.t.Errorf("%d messages that were answered OK do not come: %v", len(missing), missing)
		mu.Unlock()
		for _, p := range m.runs {
			if p != nil {
				m.t.Logf("%s", p.log)
			}
		}
	}
	c.Stop()
	<-c.StopChan
}

// backup backs node i up, restore makes its next data directory of a backup.
func (m *members) backup(i int) string {
	m.t.Helper()
	to := filepath.Join(m.t.TempDir(), "backup")
	o := execute(m.t, "backup", to, "--http-address", m.http(i))
	if o.code != 0 || strings.Contains(o.stdout, "not in it") {
		m.t.Fatalf("%+v", o)
	}
	return to
}

func (m *members) restore(i int, from string, more ...string) {
	m.t.Helper()
	m.data[i] = filepath.Join(m.t.TempDir(), "restored")
	if o := execute(m.t, append([]string{"restore", from, "--data-path", m.data[i]}, more...)...); o.code != 0 {
		m.t.Fatalf("%+v", o)
	}
}

// One node is restored from a backup of which the others have had more since, into the living cluster, and then once
// more while all nodes are down: then it may be the first to be elected. It cuts nobody. Nothing is lost.
func TestRestoreOneMember(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	m.start(0, 1, 2)
	m.create()
	m.publish(0, "before")
	from := m.backup(0)
	m.publish(0, "after")
	m.end(syscall.SIGKILL, 0)
	m.publish(1, "without")
	m.restore(0, from)
	m.start(0)
	m.healthy(0)
	m.end(syscall.SIGKILL, 1) // what the restored node has counts from now on
	m.publish(0, "restored")
	m.consume("before", "after", "without", "restored")
	m.start(1)
	m.healthy(1)

	from = m.backup(0)
	m.publish(0, "later")
	m.end(syscall.SIGKILL, 0, 1, 2)
	m.restore(0, from)
	m.start(0, 1, 2)
	m.publish(1, "last")
	m.consume("later", "last")
	m.healthy(2)
}

// All nodes are lost and restored from backups of different moments, with the newest metadata of them. The partitions
// wait for all nodes, the longest copy wins, and everything is there that was answered OK before the last backup.
func TestRestoreWholeCluster(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	m.start(0, 1, 2)
	m.create()
	m.publish(0, "first")
	from := []string{m.backup(0), "", ""}
	m.end(syscall.SIGTERM, 0) // other nodes lead, in later epochs
	m.publish(1, "second")
	from[1] = m.backup(1)
	m.start(0)
	m.healthy(0)
	if o := execute(t, "topic", "set", "orders", "--quota-count", "100000", "--http-address", m.http(1)); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	m.publish(2, "third")
	from[2] = m.backup(2)
	m.publish(2, "lost")
	m.end(syscall.SIGKILL, 0, 1, 2)

	for i := range from {
		m.restore(i, from[i])
	}
	m.rebuild(0, 1, 2)
	m.start(0, 1)
	if code, text := m.tryPublish(0, "early"); code == http.StatusOK {
		t.Errorf("a partition goes on although a node that may have more is not there: %s", text)
	}
	m.start(2)
	m.consume("first", "second", "third")
	m.publish(0, "fourth")
	m.healthy(0)
	m.end(syscall.SIGKILL, 2)
	m.consume("fourth")
	if o := execute(t, "topic", "settings", "orders", "--http-address", m.http(0)); !strings.Contains(o.stdout, "100000") {
		t.Errorf("the settings are lost: %s", o.stdout)
	}
}

// Two of three nodes are lost for good. What the third has is everything that was answered OK. It begins the cluster
// anew, and the lost nodes come back empty.
func TestLostMajorityIsRestored(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	m.start(0, 1, 2)
	m.create()
	early := m.backup(1)
	m.publish(0, "some")
	m.healthy(0)
	m.end(syscall.SIGKILL, 1, 2)
	if code, _ := m.tryPublish(0, "early"); code == http.StatusOK {
		t.Error("one node of three takes messages")
	}
	m.end(syscall.SIGTERM, 0)
	if out := m.rebuild(0); !strings.Contains(out, "not named: n2, n3, where replicas are") {
		t.Errorf("%s", out)
	}
	m.data[1], m.data[2] = filepath.Join(t.TempDir(), "n2"), filepath.Join(t.TempDir(), "n3")
	m.start(0, 1, 2)
	m.publish(1, "more")
	m.consume("some", "more")
	m.healthy(0)

	// A backup of a lost node turns up. The restored cluster did not count on it, so it must not come in.
	m.end(syscall.SIGTERM, 1)
	m.restore(1, early)
	p := launch(t, "", binary(t), append([]string{"serve", "--data-path", m.data[1]}, m.nodes[1].Args[3:]...))
	p.waitLog(t, "were rebuilt without the data directory of node n2")
	if err := <-p.exited; err == nil {
		t.Error("it ends well")
	}
}
