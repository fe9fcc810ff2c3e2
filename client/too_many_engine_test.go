//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock/client"
	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// A program whose name finds no room at a partition is told so at once, and that nothing was stored.
func TestRealNodeHasTooManyProducers(t *testing.T) {
	nodes := startNodes(t, 1, func(*node.Options) {})
	c := dialNodes(t, nodes)
	topic, err := nodes[0].e.Topic(within(t), "orders")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	names := make(chan string)
	for range 64 {
		all.Go(func() {
			for name := range names {
				if _, err := topic.OpenProducer(context.Background(), 0, name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range fold.MaxProducerCount {
		names <- fmt.Sprint("p", i)
	}
	close(names)
	all.Wait()
	began := time.Now()
	p, err := c.Producer(within(t), "orders", client.ProducerOptions{Name: "one-more"})
	if err == nil {
		_, err = p.ProduceSync(within(t), &client.Message{Body: []byte("m")})
	}
	if !errors.Is(err, client.ErrTooManyProducers) || errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > client.DefaultDeliveryTimeout/3 {
		t.Errorf("it was told after %v", took)
	}
}
