package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"penstock/batch"
	"penstock/netproto"
)

// tokenWorld is a client whose token the test can change, of a cluster of nodes that all lead a partition.
func tokenWorld(t *testing.T) (cluster *testCluster, client *Client, now *atomic.Value, asked *atomic.Int32) {
	t.Helper()
	cluster = newTestCluster(t, 2, func(c *testCluster) { c.token = "first" })
	cluster.create("orders", 2)
	now, asked = new(atomic.Value), new(atomic.Int32)
	now.Store("first")
	client = cluster.dial(t, func(o *Options) {
		o.Token = func(context.Context, string) (string, error) { asked.Add(1); return now.Load().(string), nil }
	})
	return cluster, client, now, asked
}

// revoke replaces the token that the nodes accept: they serve no connection that came with the old one.
func (c *testCluster) revoke(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = token
	for _, n := range c.nodes {
		for _, s := range n.conns {
			s.known = false
		}
	}
}

// A token that is no longer good is replaced by the next one on connections which last, to all nodes.
func TestTokenIsReplacedEverywhere(t *testing.T) {
	cluster, client, now, _ := tokenWorld(t)
	p := client.producer(t, "orders", ProducerOptions{Partition: func(m *Message, _ int) int { return int(m.Body[0]) }})
	store := func(partition byte) error {
		_, err := p.ProduceSync(within(t), &Message{Body: []byte{partition}})
		return err
	}
	for partition := range byte(2) {
		if err := store(partition); err != nil {
			t.Fatal(err)
		}
	}
	cluster.revoke("second")
	now.Store("second")
	for partition := range byte(2) {
		eventually(t, "the second token is used", func() bool {
			err := store(partition)
			if err != nil && !errors.Is(err, ErrUnauthorized) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
}

// A token that does not allow something is not asked for with each message, and its connection lasts.
func TestTokenOfTooLittle(t *testing.T) {
	cluster, client, _, asked := tokenWorld(t)
	p := client.producer(t, "orders", ProducerOptions{Partition: func(*Message, int) int { return 0 }})
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); err != nil {
		t.Fatal(err)
	}
	cluster.change(func() {
		cluster.fault = func(*testNode, *batch.Header) (netproto.Status, bool, bool) {
			return netproto.StatusUnproven, false, false
		}
	})
	before, began := asked.Load(), time.Now()
	for time.Since(began) < renewPause/2 {
		if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); !errors.Is(err, ErrUnauthorized) {
			t.Fatal(err)
		}
	}
	if n := asked.Load() - before; n != 1 {
		t.Errorf("the token was asked for %d times", n)
	}
	if live, _, _ := (*p.lanes.Load())[0].node.state(); !live.alive() {
		t.Error("the connection ended")
	}
}
