package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/internal/server/native/wire"
)

// Client is a program's access to a cluster. It may be used by any number of goroutines.
type Client struct {
	o     Options
	seeds []string
	view  *view

	ctx        context.Context
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	mu        sync.Mutex // guards the rest. node.mu may be taken inside it
	nodes     map[string]*node
	producers map[*Producer]struct{}
	closed    bool
	busy      map[string]busyNode  // by address; those of nodes that have said that they are busy
	told      map[string]time.Time // when the log last said of an address that it cannot be reached; see tells
}

const (
	// toldTime is the time between two log lines about an address that cannot be reached.
	toldTime = time.Minute
	// maxToldCount bounds told and busy: the seeds and the nodes of a cluster, some of them at two addresses.
	maxToldCount = 4096
)

// tells says whether the log is to say now that the address cannot be reached: once, and then once a minute, although
// many attempts fail, and although a node is forgotten while others are asked.
func (c *Client) tells(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.told[address]; ok && time.Since(at) < toldTime {
		return false
	}
	if len(c.told) >= maxToldCount {
		clear(c.told)
	}
	c.told[address] = time.Now()
	return true
}

// reached notes that there is a connection to the address: the next failure is told again.
func (c *Client) reached(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.told, address)
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
		producers: make(map[*Producer]struct{}), told: make(map[string]time.Time),
		busy: make(map[string]busyNode),
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
			failed = c.view.failure() // a later one than above, if ctx and an attempt end together
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
