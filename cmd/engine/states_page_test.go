package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"penstock/internal/cluster/admin"
	"penstock/segment/aio"
	"penstock/tests/support/patience"
)

// Every state of docs/reference/states.md is on every surface while it holds, by the word that the page has for it, and
// on none before that; and the page has all states that this test brings about.
func TestStatesPage(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir(), "--", "--max-ranges", "4", "--commit-file-bytes", "16MiB",
		"--commit-live-bytes", "33MiB", "--max-segment-bytes", "4MiB", "--buffer-bytes", "4MiB", "--max-batch-bytes", "1MiB")
	w := &stateWorld{t: t, p: p, nodes: p.ready(3), dead: map[string]bool{}}
	w.must("topic", "create", "orders")
	w.must("channel", "create", "orders", "billing")
	w.must("topic", "create", "strict")
	if w.partition("strict").Replicas[0] == "n3" { // which will be killed: another topic takes its turn
		w.must("topic", "delete", "strict")
		w.must("topic", "create", "filler")
		w.must("topic", "create", "strict")
	}
	w.must("topic", "set", "strict", "--min-isr", "3")
	rows := readStates(t)
	for i := range rows {
		if rows[i].shows["metric"] == "penstock_disk_transient" && !lasts(t, t.TempDir()) {
			rows[i].state = "" // it holds all the time on this machine
		}
		if slices.Contains(ownStates, rows[i].state) {
			checkAlert(t, &rows[i])
			w.eventually(&rows[i], false)
			rows[i].state = ""
		}
	}
	for _, s := range slices.Concat(channelStates, nodeStates) {
		var own []*stateRow
		for _, name := range s.names {
			i := slices.IndexFunc(rows, func(r stateRow) bool { return r.state == name })
			if i < 0 {
				t.Fatalf("the page has no state %s", name)
			}
			own = append(own, &rows[i])
			checkAlert(t, &rows[i])
			w.eventually(&rows[i], false)
		}
		end := s.begin(w)
		for _, row := range own {
			w.eventually(row, true)
			row.state = ""
		}
		if end != nil {
			end()
		}
	}
	for i := range rows {
		if rows[i].state != "" {
			if _, ok := statesOfFacts[rows[i].state]; !ok {
				t.Errorf("nothing brings about the state %s of the page", rows[i].state)
			}
		}
	}
}

// ownStates are the states that need other disks, or a single node: tests of their own bring them about.
var ownStates = []string{"disk transient", "no inodes", "read only", "made with fewer replicas"}

// lasts says whether a directory is on a disk, and not in memory or in the own layer of a container.
func lasts(t *testing.T, dir string) bool {
	t.Helper()
	d, err := aio.OpenDisk(filepath.Join(dir, "look"), aio.DiskOptions{Mode: aio.ModePwrite})
	must(t, err)
	i := d.Info()
	must(t, d.Close())
	return i.Transience() == ""
}

// rowOf returns the row of a state of the page.
func rowOf(t *testing.T, state string) *stateRow {
	t.Helper()
	rows := readStates(t)
	i := slices.IndexFunc(rows, func(r stateRow) bool { return r.state == state })
	if i < 0 {
		t.Fatalf("the page has no state %s", state)
	}
	return &rows[i]
}

// inMemory returns a new directory in memory.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "penstock")
	if err != nil || lasts(t, dir) {
		t.Skipf("/dev/shm is not in memory here: %v", err)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// A data directory in memory is told once at the start, with what is lost when, and by health. One on a disk is not.
func TestTransientDiskIsTold(t *testing.T) {
	const warning = "everything in it, also what was answered OK, is lost when the machine restarts"
	p := startNode(t, filepath.Join(inMemory(t), "data"))
	if n := strings.Count(p.log.String(), warning); n != 1 {
		t.Errorf("it is told %d times at the start:\n%s", n, p.log)
	}
	o := execute(t, "cluster", "health", "--http", p.http)
	if o.code != 0 || !strings.HasPrefix(o.stdout, "healthy: the node serves; the data directory is in memory (tmpfs): ") {
		t.Errorf("%+v", o)
	}
	if disk := t.TempDir(); lasts(t, disk) {
		if p := startNode(t, filepath.Join(disk, "data")); strings.Contains(p.log.String(), "is lost when") {
			t.Errorf("a disk is called transient:\n%s", p.log)
		}
	}
}

// The surfaces of the page show it.
func TestTransientDiskIsOnEverySurface(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, filepath.Join(inMemory(t), "cluster"))
	w := &stateWorld{t: t, p: p, nodes: p.ready(3), dead: map[string]bool{}}
	w.must("topic", "create", "orders")
	w.eventually(rowOf(t, "disk transient"), true)
}

// bringsAbout begins states. It returns a function that ends them, or nil if the states may last during the next ones.
type bringsAbout struct {
	names []string
	begin func(w *stateWorld) (end func())
}

var channelStates = []bringsAbout{
	{[]string{"starved"}, func(w *stateWorld) func() {
		stop := w.consumeReady("billing", 0, func(*nsq.Message) {})
		w.store("orders", "x")
		return func() {
			stop()
			w.must("channel", "empty", "orders", "billing")
		}
	}},
	{[]string{"over quota"}, func(w *stateWorld) func() {
		w.must("topic", "set", "orders", "--quota-count", "1", "--quota-mode", "reject")
		for !w.refuses("orders", "x") {
		}
		return func() {
			w.must("topic", "set", "orders", "--quota-count", "0")
			w.must("channel", "empty", "orders", "billing")
		}
	}},
	{[]string{"paused"}, func(w *stateWorld) func() {
		w.must("channel", "pause", "orders", "billing")
		return func() { w.must("channel", "unpause", "orders", "billing") }
	}},
	{[]string{"topic paused"}, func(w *stateWorld) func() {
		w.must("topic", "pause", "orders")
		return func() { w.must("topic", "unpause", "orders") }
	}},
	{[]string{"delays refused"}, func(w *stateWorld) func() {
		w.must("topic", "create", "later", "--partitions", "1")
		w.must("channel", "create", "later", "all")
		for range 3 {
			w.publish("later&defer=600000", "x")
			w.publish("later", "x")
		}
		return func() { w.must("topic", "delete", "later") }
	}},
	{[]string{"skipping"}, func(w *stateWorld) func() {
		w.must("channel", "skip", "orders", "billing")
		return func() { w.must("channel", "unskip", "orders", "billing") }
	}},
	{[]string{"full"}, func(w *stateWorld) func() {
		held := make(chan *nsq.Message, 100)
		index := 0
		stop := w.consume("billing", func(m *nsq.Message) {
			if index++; index%2 == 0 || index > 10 {
				m.Finish()
				return
			}
			held <- m
		})
		// It is full once the confirmations have arrived and a message waits beyond them: on a busy machine, many are
		// delivered before that.
		end := time.Now().Add(patience.Or(90 * time.Second))
		for !w.metric("penstock_channel_full_partitions") && time.Now().Before(end) {
			w.publish("orders", "x")
		}
		return func() {
			for range 5 {
				(<-held).Finish()
			}
			stop()
		}
	}},
	{[]string{"dead letters aside"}, func(w *stateWorld) func() {
		w.must("topic", "create", "dead")
		w.must("channel", "create", "dead", "unread")
		w.must("topic", "set", "dead", "--quota-count", "1", "--quota-mode", "reject")
		w.must("channel", "set", "orders", "billing", "--max-attempts", "1", "--dead-letter", "dead")
		w.store("dead", "x")
		stop := w.consume("billing", func(m *nsq.Message) { m.RequeueWithoutBackoff(0) })
		w.store("orders", "x")
		return func() {
			stop()
			w.must("topic", "delete", "dead")
		}
	}},
	{[]string{"dropping"}, func(w *stateWorld) func() {
		w.must("topic", "set", "orders", "--quota-bytes", "2MiB", "--quota-mode", "drop-oldest")
		body := strings.Repeat("x", 100_000)
		end := time.Now().Add(patience.Or(90 * time.Second))
		for !w.metric("penstock_channel_dropped_total") && time.Now().Before(end) {
			w.publish("orders", body)
		}
		return func() {
			w.must("channel", "delete", "orders", "billing")
		}
	}},
}

var nodeStates = []bringsAbout{
	{[]string{"draining"}, func(w *stateWorld) func() {
		w.must("cluster", "drain", "n1")
		return func() { w.must("cluster", "drain", "n1", "--off") }
	}},
	{[]string{"store full"}, func(w *stateWorld) func() {
		w.alarm(etcdserverpb.AlarmRequest_ACTIVATE)
		return func() { w.alarm(etcdserverpb.AlarmRequest_DEACTIVATE) }
	}},
	{[]string{"dead", "under replicated", "below min_isr"}, func(w *stateWorld) func() {
		w.must("channel", "create", "orders", "owes")
		w.must("channel", "set", "orders", "owes", "--max-attempts", "1", "--dead-letter", "strict")
		w.awaitPreferred("strict")
		w.kill("n3")
		// An outbox that is stuck for another reason is the same state: the dead-letter topic has too few replicas.
		stop := w.consume("owes", func(m *nsq.Message) { m.RequeueWithoutBackoff(0) })
		w.store("orders", "x")
		w.eventually(rowOf(w.t, "dead letters aside"), true)
		stop()
		return nil
	}},
	{[]string{"leaderless", "store silent"}, func(w *stateWorld) func() {
		w.kill("n2")
		return nil
	}},
}

// alarm raises etcd's alarm of a full database, or takes it back, for a member that is none: its own a member takes
// back by itself.
func (w *stateWorld) alarm(action etcdserverpb.AlarmRequest_AlarmAction) {
	w.t.Helper()
	args := w.nodes["n1"].Args
	value := func(flag string) string { return args[slices.Index(args, flag)+1] }
	tls := filepath.Join(value("--data-path"), "etcd", "tls")
	info := transport.TLSInfo{
		TrustedCAFile: filepath.Join(tls, "authority.pem"), CertFile: filepath.Join(tls, "node.pem"),
		KeyFile: filepath.Join(tls, "node.pem"),
	}
	config, err := info.ClientConfig()
	must(w.t, err)
	alarmAt(w.t, clientv3.Config{Endpoints: []string{"https://" + value("--etcd-client-address")}, TLS: config}, action)
}

// alarmAt is alarm for an etcd.
func alarmAt(t *testing.T, etcd clientv3.Config, action etcdserverpb.AlarmRequest_AlarmAction) {
	t.Helper()
	c, err := clientv3.New(etcd)
	must(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = etcdserverpb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx,
		&etcdserverpb.AlarmRequest{Action: action, MemberID: 7, Alarm: etcdserverpb.AlarmType_NOSPACE})
	must(t, err)
}

func (w *stateWorld) publish(topic, body string) { w.refuses(topic, body) }

// store publishes a message, again if a busy node has refused it.
func (w *stateWorld) store(topic, body string) {
	w.t.Helper()
	for end := time.Now().Add(patience.Or(90 * time.Second)); w.refuses(topic, body); {
		if time.Now().After(end) {
			w.t.Fatalf("topic %s takes no message", topic)
		}
	}
}

// refuses publishes a message, and says whether it was refused.
func (w *stateWorld) refuses(topic, body string) bool {
	w.t.Helper()
	reply, err := http.Post("http://"+w.alive()[0].HTTP+"/pub?topic="+topic, "", strings.NewReader(body))
	must(w.t, err)
	must(w.t, reply.Body.Close())
	return reply.StatusCode != http.StatusOK
}

// partition returns partition 0 of a topic.
func (w *stateWorld) partition(topic string) admin.Partition {
	w.t.Helper()
	var all admin.Topics
	must(w.t, json.Unmarshal([]byte(w.get("/cluster/topics?topic=" + topic)[0]), &all))
	return all.Topics[0].Partitions[0]
}

// awaitPreferred waits until the preferred leader leads and serves partition 0 of a topic: its leadership moves no
// more, and the start of its epoch is committed, for which it needs min_isr replicas.
func (w *stateWorld) awaitPreferred(topic string) {
	w.t.Helper()
	for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		switch p := w.partition(topic); {
		case p.Leader == p.Replicas[0] && !w.shows("penstock topic list", "not served"):
			return
		case time.Now().After(end) || p.Replicas[0] == "n3":
			w.t.Fatalf("%s leads topic %s for long, and not %s", p.Leader, topic, p.Replicas[0])
		}
	}
}

func (w *stateWorld) kill(node string) {
	w.t.Helper()
	w.p.signal(w.nodes[node].PID, syscall.SIGKILL)
	w.dead[node] = true
}

// consume starts a consumer of a channel of orders at every node.
func (w *stateWorld) consume(channel string, answer func(*nsq.Message)) (stop func()) {
	return w.consumeReady(channel, 40, answer)
}

// consumeReady is consume for consumers that want this many messages at a time.
func (w *stateWorld) consumeReady(channel string, ready int, answer func(*nsq.Message)) (stop func()) {
	w.t.Helper()
	config := nsq.NewConfig()
	config.MaxInFlight = ready
	consumer, err := nsq.NewConsumer("orders", channel, config)
	must(w.t, err)
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		m.DisableAutoResponse()
		answer(m)
		return nil
	}))
	must(w.t, consumer.ConnectToNSQD(w.alive()[0].NSQ))
	return func() {
		consumer.Stop()
		<-consumer.StopChan
	}
}
