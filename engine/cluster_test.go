package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"penstock/cluster"
	"penstock/cluster/kv/memory"
	"penstock/engine"
	"penstock/engine/meta"
)

// trio is three engines in one process on one metadata map, over real TCP and real disks.
type trio struct {
	t     *testing.T
	kv    *memory.Map
	nodes []*member
}

type member struct {
	name string
	dir  string
	e    *engine.Engine
}

func newTrio(t *testing.T, n int) *trio {
	t.Helper()
	tr := &trio{t: t, kv: memory.New(memory.Options{})}
	for i := range n {
		tr.nodes = append(tr.nodes, &member{name: fmt.Sprintf("n%d", i+1), dir: t.TempDir()})
	}
	var wg sync.WaitGroup
	for _, m := range tr.nodes {
		wg.Go(func() { tr.start(m) })
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, m := range tr.nodes {
			if m.e != nil {
				_ = m.e.Close()
			}
		}
		tr.kv.Close()
	})
	return tr
}

func (tr *trio) start(m *member) {
	tr.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tr.t.Error(err)
		return
	}
	log := slog.New(slog.NewTextHandler(testWriter{tr.t, m.name}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	e, err := engine.Open(context.Background(), engine.Options{
		DataPath: m.dir, NodeID: m.name, Logger: log, BufferBytes: 16 << 20, CommitFileBytes: 16 << 20, CommitLiveBytes: 64 << 20,
		Cluster: &engine.ClusterOptions{
			Store: cluster.New(tr.kv.Store(m.name), cluster.Options{Logger: log}), Listener: ln,
			Node: meta.Node{Host: "127.0.0.1"},
		},
	})
	if err != nil {
		tr.t.Error(err)
		return
	}
	m.e = e
}

type testWriter struct {
	t    *testing.T
	name string
}

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(w.name, string(p))
	return len(p), nil
}

func (tr *trio) topic(i int, name string) *engine.Topic {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	topic, err := tr.nodes[i].e.Topic(ctx, name)
	if err != nil {
		tr.t.Fatal(err)
	}
	return topic
}

func (tr *trio) eventually(what string, ok func() bool) {
	tr.t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); {
		if time.Now().After(end) {
			tr.t.Fatalf("after 15 s: not %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// leaderOf returns the index of the node that leads partition 0 of the topic, -1 if nobody does.
func (tr *trio) leaderOf(name string) int {
	for i, m := range tr.nodes {
		if m.e == nil {
			continue
		}
		s := m.e.Snapshot()
		t := s.Names[name]
		if t == nil {
			return -1
		}
		row := s.Partitions[meta.PartitionID{Topic: t.ID, Partition: 0}]
		if row == nil || s.Nodes[row.State.Leader] == nil {
			return -1
		}
		for j, other := range tr.nodes {
			if other.name == s.Nodes[row.State.Leader].Name && other.e != nil {
				return j
			}
		}
		_ = i
		return -1
	}
	return -1
}

// Any node takes messages for any topic, and they come out of the one that leads.
func TestClusterPublish(t *testing.T) {
	tr := newTrio(t, 3)
	tr.eventually("three nodes", func() bool { return len(tr.nodes[0].e.Snapshot().Nodes) == 3 })
	ctx := context.Background()
	topic := tr.topic(0, "orders")
	for i := range tr.nodes {
		tr.eventually("the topic known", func() bool { _, ok := tr.nodes[i].e.LookupTopic("orders"); return ok })
		topic, _ = tr.nodes[i].e.LookupTopic("orders")
		for n := range 100 {
			if _, err := topic.Publish(ctx, fmt.Appendf(nil, "%d-%d", i, n)); err != nil {
				t.Fatalf("node %d, message %d: %v", i, n, err)
			}
		}
	}
	leader := tr.leaderOf("orders")
	topic, _ = tr.nodes[leader].e.LookupTopic("orders")
	got := tr.consume(topic, "c", 300)
	if len(got) != 300 {
		t.Errorf("%d different messages", len(got))
	}
}

// consume reads until it has n different messages.
func (tr *trio) consume(topic *engine.Topic, channel string, n int) map[string]int {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	c, err := topic.Channel(ctx, channel)
	if err != nil {
		tr.t.Fatal(err)
	}
	got := map[string]int{}
	err = c.Consume(ctx, engine.ConsumeOptions{}, func(_ context.Context, m *engine.Message) error {
		got[string(m.Body)]++
		if len(got) == n {
			cancel()
		}
		return nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		tr.t.Fatalf("after %d messages: %v", len(got), err)
	}
	return got
}
