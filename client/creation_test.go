package client

import (
	"context"
	"testing"
)

// While no node creates a topic, those that exist can be used.
func TestCreationHoldsUpNoOtherTopic(t *testing.T) {
	cluster := newTestCluster(t, 2, func(c *testCluster) { c.creates = make(chan string, 100) })
	cluster.create("orders", 1)
	client := cluster.dial(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := client.Producer(ctx, "new", ProducerOptions{}); err == nil {
			t.Error("a topic was created")
		}
	}()
	defer func() { cancel(); <-ended }()
	<-cluster.creates
	p := client.producer(t, "orders", ProducerOptions{})
	number(t, p, 0, 1)
	client.reader(t, "orders", 0, FromOldest()).expect(t, 0, 1)
	if len(cluster.creates) > 1 {
		t.Errorf("the client asked %d times more", len(cluster.creates))
	}
}
