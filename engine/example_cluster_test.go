package engine_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"penstock/engine"
	"penstock/internal/cluster"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
)

// quiet is the log of the examples. A program would let the engine log.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// openNode opens a node of a cluster, with its data below dir, which listens on loopback. Nodes on several machines
// need ClusterOptions.Trust, and metadata that all of them reach: package internal/cluster/etcd instead of
// internal/cluster/kv/memory.
func openNode(ctx context.Context, dir, name string, metadata *memory.Map) *engine.Engine {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.Open(ctx, engine.Options{
		DataPath: filepath.Join(dir, name), NodeID: name, Logger: quiet,
		Cluster: &engine.ClusterOptions{
			Store:    cluster.New(metadata.Store(name), cluster.Options{Logger: quiet}),
			Listener: listener,
			Node:     meta.Node{Host: "127.0.0.1", Peer: listener.Addr().String()},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	return e
}

// Three nodes in one program. Each partition is stored on all of them. A program that consumes at one node gets the
// messages of all partitions, and goes on when a node leaves.
func Example_cluster() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	metadata := memory.New(memory.Options{})
	defer metadata.Close()
	a := openNode(ctx, dir, "a", metadata)
	defer a.Close()
	b := openNode(ctx, dir, "b", metadata)
	defer b.Close()
	c := openNode(ctx, dir, "c", metadata)

	topic, err := c.CreateTopicWith(ctx, "orders", engine.TopicOptions{Partitions: 6, Replicas: 3})
	if err != nil {
		log.Fatal(err)
	}
	here, err := a.Topic(ctx, "orders") // the same topic at another node
	if err != nil {
		log.Fatal(err)
	}
	kitchen, err := here.Channel(ctx, "kitchen")
	if err != nil {
		log.Fatal(err)
	}
	var cooked atomic.Int64
	first, all := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- kitchen.Consume(ctx, engine.ConsumeOptions{}, func(_ context.Context, m *engine.Message) error {
			switch cooked.Add(1) {
			case 60:
				close(first)
			case 120:
				close(all)
			}
			return nil
		})
	}()
	for i := range 60 { // any node takes messages for any partition
		if _, err := topic.Publish(ctx, fmt.Appendf(nil, "order %d", i)); err != nil {
			log.Fatal(err)
		}
	}
	<-first
	fmt.Println("60 orders cooked by three nodes")

	if err := c.Leave(ctx); err != nil { // the others take over what c leads
		log.Fatal(err)
	}
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	for i := range 60 {
		m := engine.Outgoing{Key: fmt.Appendf(nil, "customer %d", i), Body: []byte("tea")}
		if _, err := here.PublishMessage(ctx, m); err != nil {
			log.Fatal(err)
		}
	}
	<-all
	fmt.Println("60 more by two")
	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output:
	// 60 orders cooked by three nodes
	// 60 more by two
}
