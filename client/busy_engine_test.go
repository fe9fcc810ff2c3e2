//go:build linux

package client_test

import (
	"context"
	"testing"

	"penstock/client"
)

// What waits for one topic, whose replicas are too few, holds up no other topic of the same connection.
func TestRealTopicsDoNotWaitForEachOther(t *testing.T) {
	nodes := startNodes(t, 2)
	for name, least := range map[string]int{"stuck": 2, "orders": 1} {
		topic, err := nodes[0].e.Topic(within(t), name)
		if err != nil {
			t.Fatal(err)
		}
		settings := topic.Settings()
		settings.MinISR = least
		if _, err := topic.Configure(within(t), settings); err != nil {
			t.Fatal(err)
		}
	}
	nodes[1].stop()
	for name, wait := range map[string]func(context.Context, *client.Client){
		"a producer is opened": func(ctx context.Context, c *client.Client) {
			_, _ = c.Producer(ctx, "stuck", client.ProducerOptions{Name: "import"})
		},
		"a channel is created": func(ctx context.Context, c *client.Client) {
			if k, err := c.Consumer(ctx, "stuck", "billing", client.ConsumerOptions{}); err == nil {
				_, _ = k.Next(ctx)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := dialNodes(t, nodes[:1])
			p, err := c.Producer(within(t), "orders", client.ProducerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.ProduceSync(within(t), &client.Message{Body: []byte("before")}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				wait(ctx, c)
			}()
			defer func() { cancel(); c.Close(); <-ended }()
			eventually(t, "the node has the request", func() bool { return nodes[0].s.Meter().InFlight > 0 })
			// What is stuck stays so until ctx ends.
			if _, err := p.ProduceSync(within(t), &client.Message{Body: []byte("beside")}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
