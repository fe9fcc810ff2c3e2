package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"

	"penstock/cluster/admin"
)

// Every state of docs/reference/states.md is on every surface while it holds, by the word that the page has for it, and
// on none before that; and the page has all states that this test brings about.
func TestStatesPage(t *testing.T) {
	p := startDevAs(t, realNodes, t.TempDir(), "--", "--max-ranges", "4", "--commit-file-bytes", "16MiB",
		"--commit-live-bytes", "33MiB", "--max-segment-bytes", "4MiB", "--buffer-bytes", "4MiB", "--max-batch-bytes", "1MiB")
	w := &stateWorld{t: t, p: p, nodes: p.ready(3), dead: map[string]bool{}}
	w.must("topic", "create", "orders")
	w.must("channel", "create", "orders", "billing")
	w.must("topic", "create", "strict")
	w.must("topic", "set", "strict", "--min-isr", "3")
	rows := readStates(t)
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
			t.Errorf("nothing brings about the state %s of the page", rows[i].state)
		}
	}
}

// bringsAbout begins states. It returns a function that ends them, or nil if the states may last during the next ones.
type bringsAbout struct {
	names []string
	begin func(w *stateWorld) (end func())
}

var channelStates = []bringsAbout{
	{[]string{"paused"}, func(w *stateWorld) func() {
		w.must("channel", "pause", "orders", "billing")
		return func() { w.must("channel", "unpause", "orders", "billing") }
	}},
	{[]string{"topic paused"}, func(w *stateWorld) func() {
		w.must("topic", "pause", "orders")
		return func() { w.must("topic", "unpause", "orders") }
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
		for range 20 {
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
		w.publish("dead", "x")
		stop := w.consume("billing", func(m *nsq.Message) { m.RequeueWithoutBackoff(0) })
		w.publish("orders", "x")
		return func() {
			stop()
			w.must("topic", "delete", "dead")
		}
	}},
	{[]string{"dropping"}, func(w *stateWorld) func() {
		w.must("topic", "set", "orders", "--quota-bytes", "2MiB", "--quota-mode", "drop-oldest")
		body := strings.Repeat("x", 100_000)
		for end := time.Now().Add(30 * time.Second); !w.metric("penstock_channel_dropped_total") && time.Now().Before(end); {
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
	{[]string{"dead", "under replicated", "below min_isr"}, func(w *stateWorld) func() {
		if w.leader("strict") == "n3" { // another leader could not serve it
			w.must("cluster", "transfer-leader", "strict", "0")
			for end := time.Now().Add(20 * time.Second); w.leader("strict") == "n3" && time.Now().Before(end); {
				time.Sleep(50 * time.Millisecond)
			}
		}
		w.kill("n3")
		return nil
	}},
	{[]string{"leaderless", "store silent"}, func(w *stateWorld) func() {
		w.kill("n2")
		return nil
	}},
}

func (w *stateWorld) publish(topic, body string) {
	w.t.Helper()
	reply, err := http.Post("http://"+w.alive()[0].HTTP+"/pub?topic="+topic, "", strings.NewReader(body))
	must(w.t, err)
	must(w.t, reply.Body.Close())
}

// leader returns the node that leads partition 0 of a topic.
func (w *stateWorld) leader(topic string) string {
	w.t.Helper()
	var all admin.Topics
	must(w.t, json.Unmarshal([]byte(w.get("/cluster/topics?topic=" + topic)[0]), &all))
	return all.Topics[0].Partitions[0].Leader
}

func (w *stateWorld) kill(node string) {
	w.t.Helper()
	w.p.signal(w.nodes[node].PID, syscall.SIGKILL)
	w.dead[node] = true
}

// consume starts a consumer of a channel of orders at every node.
func (w *stateWorld) consume(channel string, answer func(*nsq.Message)) (stop func()) {
	w.t.Helper()
	config := nsq.NewConfig()
	config.MaxInFlight = 40
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
