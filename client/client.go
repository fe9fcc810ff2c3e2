package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"penstock/native/wire"
)

// Client is a program's access to a cluster. It may be used by any number of goroutines.
type Client struct {
	o     Options
	seeds []string
	view  *view

	ctx        context.Context
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	mu        sync.Mutex // guards nodes, producers and closed. node.mu may be taken inside it
	nodes     map[string]*node
	producers map[*Producer]struct{}
	closed    bool
}

// Dial connects to one of the nodes whose addresses (host:port of their native port) are given. The client learns the
// others from it, and needs the seeds again only when none of them can be reached. Dial returns when a node has
// accepted the client, or the error when ctx ends; ErrUnauthorized at once. The client outlives ctx: Close ends it.
func Dial(ctx context.Context, seeds []string, options Options) (*Client, error) {
	if len(seeds) == 0 {
		return nil, errors.New("client: Dial needs the address of at least one node")
	}
	c := &Client{
		o: options.withDefaults(), seeds: slices.Clone(seeds), nodes: make(map[string]*node),
		producers: make(map[*Producer]struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.view = newView(c)
	c.goroutines.Go(c.view.run)
	for {
		known := c.view.known.Load()
		failed := c.view.failure()
		if errors.Is(failed, ErrUnauthorized) {
			c.Close()
			return nil, failed
		}
		select {
		case <-c.view.ready:
			return c, nil
		case <-known.changed:
		case <-ctx.Done():
			c.Close()
			return nil, because(fmt.Errorf("client: no node of %v accepted the client: %w", seeds, context.Cause(ctx)), failed)
		}
	}
}

// Partitions is how many partitions a topic has. It waits for the answer of a node until ctx ends.
func (c *Client) Partitions(ctx context.Context, topicName string) (int, error) {
	if err := checkName("topic", topicName); err != nil {
		return 0, err
	}
	if err := c.view.want(topicName, false); err != nil {
		return 0, err
	}
	defer c.view.unwant(topicName, false)
	t, err := c.view.topic(ctx, topicName, false)
	if err != nil {
		return 0, err
	}
	return len(t.leaders), nil
}

// Close closes all producers, readers and consumers at once, without waiting for answers, and all connections. Messages
// without an answer are told as ErrUnknown if they were sent, and as ErrClosed if not: use Producer.Close before it to
// wait. It must not be called by a done function or a hook.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	var producers []*Producer
	for p := range c.producers {
		producers = append(producers, p)
	}
	c.mu.Unlock()
	for _, p := range producers {
		p.stop()
	}
	c.cancel()
	c.goroutines.Wait()
}

// checkName says whether a topic or producer can have the name.
func checkName(what, name string) error {
	if name == "" || len(name) > wire.MaxNameBytes {
		return fmt.Errorf("client: a %s's name has %d bytes; use 1 to %d", what, len(name), wire.MaxNameBytes)
	}
	return nil
}
