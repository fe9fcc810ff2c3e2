package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// stuck lets the node read nothing until the test ends, and fills the queue of the reader's connection to it. The
// connection lives on until the client misses the node's pongs.
func (r *Reader) stuck(t *testing.T, cluster *testCluster) {
	t.Helper()
	conn := r.node.live.conn
	cluster.mu.Lock() // the node waits for it
	t.Cleanup(cluster.mu.Unlock)
	f := netproto.Frame{Type: wire.TypeReadEnd, Head: make([]byte, 1<<20)}
	for {
		err := conn.TrySend(&f)
		if errors.Is(err, netproto.ErrQueueFull) {
			f.Head = f.Head[:len(f.Head)/2]
			if len(f.Head) == 0 && conn.TrySend(&f) != nil {
				return
			}
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Neither Next nor Close waits for a node that takes nothing for longer than it must.
func TestReaderOfAStuckNode(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, cluster *testCluster, r *Reader){
		"Next asks for messages": func(t *testing.T, cluster *testCluster, r *Reader) {
			r.moveTo(cluster.nodes[0].address)
			eventually(t, "the connection", func() bool { l, _, _ := r.node.state(); return l.alive() })
			r.stuck(t, cluster)
		},
		"Next gives credit": func(t *testing.T, cluster *testCluster, r *Reader) {
			r.expect(t, 0, 10)
			r.credit = ReadCreditBytes // as if these messages had been long
			r.stuck(t, cluster)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newTestCluster(t, 1)
			cluster.create("orders", 1)
			client := cluster.dial(t)
			p := client.producer(t, "orders", ProducerOptions{})
			number(t, p, 0, 10)
			r, err := client.Reader(within(t), "orders", 0, FromOldest())
			if err != nil {
				t.Fatal(err)
			}
			f(t, cluster, r)
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			if live, _, _ := r.node.state(); !live.alive() {
				t.Errorf("Next returned with the end of the connection, after %v", time.Since(began))
			}
			returned := make(chan error)
			go func() {
				_, err := r.Next(context.Background())
				returned <- err
			}()
			node := r.node
			r.Close()
			if err := <-returned; !errors.Is(err, ErrClosed) {
				t.Errorf("%v", err)
			}
			if live, _, _ := node.state(); !live.alive() {
				t.Errorf("Close returned with the end of the connection, after %v", time.Since(began))
			}
		})
	}
}
