//go:build linux

package client_test

import (
	"context"
	"testing"

	"penstock/client"
	"penstock/internal/node"
)

// What waits for one topic, whose replicas are too few, holds up no other topic of the same connection.
func TestRealTopicsDoNotWaitForEachOther(t *testing.T) {
	nodes := stuckNodes(t)
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

// stuckNodes starts two nodes and stops the second one. Then nothing can be stored in the topic stuck, but in orders.
func stuckNodes(t *testing.T, edit ...func(*node.Options)) []*realNode {
	t.Helper()
	nodes := startNodes(t, 2, edit...)
	for name, least := range map[string]int{"stuck": 2, "orders": 1} {
		topic, err := nodes[0].e.Topic(within(t), name)
		if err != nil {
			t.Fatal(err)
		}
		settings := topic.Settings()
		settings.MinISR = least
		if _, err := topic.ConfigureAs(within(t), "", settings); err != nil {
			t.Fatal(err)
		}
	}
	nodes[1].stop()
	return nodes
}

// Close does not wait for a channel that is being created: nobody needs it any more.
func TestRealCloseWhileTheChannelIsCreated(t *testing.T) {
	for name, from := range map[string]client.From{"anywhere": {}, "from the oldest": client.FromOldest()} {
		t.Run(name, func(t *testing.T) {
			nodes := stuckNodes(t, func(o *node.Options) { o.PublishTimeout = 10 * patience })
			c := dialNodes(t, nodes[:1])
			k, err := c.Consumer(within(t), "stuck", "billing", client.ConsumerOptions{From: from})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the node has the request", func() bool { return nodes[0].s.Meter().InFlight > 0 })
			ctx, cancel := context.WithTimeout(t.Context(), patience/2)
			defer cancel()
			if err := k.Close(ctx); err != nil {
				t.Error(err)
			}
			nodes[1].start()
			eventually(t, "the node is done with the request", func() bool { return nodes[0].s.Meter().InFlight == 0 })
			if k, err = c.Consumer(within(t), "stuck", "billing", client.ConsumerOptions{}); err != nil {
				t.Fatal(err)
			}
			left := func() int { return nodes[0].s.Meter().Subscriptions + nodes[1].s.Meter().Subscriptions }
			eventually(t, "of the subscriptions, only the new one is left", func() bool { return left() == 1 })
			if err := k.Close(within(t)); err != nil {
				t.Error(err)
			}
			// The second node stops first: a channel that is still being created then would hold up the first one.
			eventually(t, "no subscription is left", func() bool { return left() == 0 })
		})
	}
}
