package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"penstock/engine"
)

// Three nodes in one program. Each partition is stored on all of them. A program that consumes at one node gets the
// messages of all partitions, and goes on when a node leaves.
func Example_cluster() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "example")
	check(err)
	defer os.RemoveAll(dir)
	metadata := engine.NewMetadata()
	defer metadata.Close()
	var nodes []*engine.Engine
	for _, name := range []string{"a", "b", "c"} {
		e, err := engine.Open(ctx, engine.Options{
			Path: filepath.Join(dir, name), NodeID: name, Logger: quiet, Cluster: &engine.Cluster{Metadata: metadata},
		})
		check(err)
		defer e.Close()
		nodes = append(nodes, e)
	}

	topic, err := nodes[2].CreateTopic(ctx, "orders", engine.TopicOptions{Partitions: 6, Replicas: 3})
	check(err)
	here, err := nodes[0].Topic(ctx, "orders") // the same topic at another node
	check(err)
	kitchen, err := here.Channel(ctx, "kitchen")
	check(err)
	var cooked atomic.Int64
	half, all := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- kitchen.Consume(ctx, engine.ConsumeOptions{}, func(context.Context, *engine.Delivery) error {
			switch cooked.Add(1) {
			case 60:
				close(half)
			case 120:
				close(all)
			}
			return nil
		})
	}()
	for i := range 60 { // any node takes messages for any partition
		_, err := topic.Publish(ctx, engine.Message{Body: fmt.Appendf(nil, "order %d", i)})
		check(err)
	}
	<-half
	fmt.Println("60 orders cooked by three nodes")

	check(nodes[2].Leave(ctx)) // the others take over what it leads
	check(nodes[2].Close())
	for i := range 60 {
		_, err := here.Publish(ctx, engine.Message{Key: fmt.Appendf(nil, "customer %d", i), Body: []byte("tea")})
		check(err)
	}
	<-all
	fmt.Println("60 more by two")
	cancel()
	check(<-ended)
	// Output:
	// 60 orders cooked by three nodes
	// 60 more by two
}
