package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/cluster/admin"
	"penstock/internal/cluster/etcd"
	"penstock/internal/meta"
	"penstock/internal/node"
)

// joinCluster makes this process a node of tr, which has the metadata. dev-cluster calls its cluster "dev".
func joinCluster(b *testing.B, tr *trio, name string) *node.Engine {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	kv, err := etcd.Dial(ctx, []string{fmt.Sprintf("127.0.0.1:%d", tr.base+6)}, etcd.Options{Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	store := cluster.New(kv, cluster.Options{Logger: quiet, Prefix: "/penstock/v1/dev/", LeaseTTL: 3 * time.Second})
	e, err := node.Open(ctx, node.Options{
		DataPath: b.TempDir(), IO: os.Getenv("TEST_IO"), Logger: quiet, NodeID: name,
		Cluster: &node.ClusterOptions{Store: store, Listener: ln, Node: meta.Node{Host: "127.0.0.1"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(e.Close(), kv.Close()); err != nil {
			b.Error(err)
		}
	})
	return e
}

// ledBy makes topics until one is led by the node: placement spreads leaders.
func ledBy(b *testing.B, tr *trio, name string) string {
	b.Helper()
	var rows []admin.Partition
	for i := range 6 {
		topic := fmt.Sprintf("embedded%d", i)
		p := tr.create(b, topic)
		rows = append(rows, p)
		if p.Leader == name && len(p.ISR) == 3 {
			return topic
		}
	}
	b.Fatalf("no topic is led by %s: %v", name, rows)
	return ""
}

// BenchmarkClusterEmbedded is publishing in the leader's own process to followers in other processes, over TCP: batches
// of 64 messages by producers that each wait for their batch to be on the disks of all three.
func BenchmarkClusterEmbedded(b *testing.B) {
	tr := startCluster(b, 2, "--replicas", "3")
	e := joinCluster(b, tr, "e1")
	known := func() bool {
		for _, n := range e.Snapshot().Nodes {
			if !n.Live {
				return false
			}
		}
		return len(e.Snapshot().Nodes) == 3
	}
	for end := time.Now().Add(patience); !known(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("the nodes do not know each other: %v", e.Snapshot().Nodes)
		}
	}
	topic, err := e.Topic(context.Background(), ledBy(b, tr, "e1"))
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("batch=64/size=%d", size), func(b *testing.B) {
			before := loadBefore(b)
			var rates []float64
			logged, start := e.Storage().CommitBytes, time.Now()
			for range max(b.N, clusterRounds) {
				rates = append(rates, batches(b, topic, 64, size))
			}
			took, st := time.Since(start), e.Storage()
			b.ReportMetric(float64(st.CommitBytes-logged)/took.Seconds()/1e6, "log-MB/s-per-node")
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(before, "load-before")
			b.ReportMetric(median(rates), "msg/s")
			b.ReportMetric(median(rates)*float64(size)/1e6, "body-MB/s-per-node")
			b.ReportMetric(st.FlushMeanMicros, "leader-commit-µs")
		})
	}
}

const embeddedProducers = 192

// batches publishes for a second and returns messages per second.
func batches(b *testing.B, t *node.Topic, per, size int) float64 {
	bodies := make([][]byte, per)
	for i := range bodies {
		bodies[i] = bytes.Repeat([]byte("x"), size)
	}
	var wg sync.WaitGroup
	var total atomic.Int64
	var stop atomic.Bool
	start := time.Now()
	time.AfterFunc(time.Second, func() { stop.Store(true) })
	for range embeddedProducers {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := t.PublishBatch(context.Background(), bodies); err != nil {
					b.Error(err)
					return
				}
				total.Add(int64(per))
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return float64(total.Load()) / time.Since(start).Seconds()
}
