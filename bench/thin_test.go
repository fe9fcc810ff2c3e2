//go:build relay

package bench

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"penstock/bench/relay"
)

// thinClient publishes over a blocking socket: what it measures is the node, and no goroutine that has to be woken.
type thinClient struct {
	conn relay.Socket
	send []byte // one PUB
	got  [256]byte
}

const thinBodyBytes = 100

func dialThin(t testing.TB, address, topic string) *thinClient {
	t.Helper()
	conn, err := net.DialTimeout("tcp4", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	c := new(thinClient)
	if c.conn, err = relay.Blocking(conn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close() })
	const identity = `{"client_id":"thin","heartbeat_interval":-1}`
	c.send = binary.BigEndian.AppendUint32([]byte("  V2IDENTIFY\n"), uint32(len(identity)))
	c.send = append(c.send, identity...)
	if err := c.ask(); err != nil {
		t.Fatal(err)
	}
	c.send = binary.BigEndian.AppendUint32([]byte("PUB "+topic+"\n"), thinBodyBytes)
	c.send = append(c.send, make([]byte, thinBodyBytes)...)
	return c
}

// ask sends the command and waits for its OK.
func (c *thinClient) ask() error {
	if _, err := c.conn.Write(c.send); err != nil {
		return err
	}
	n, err := c.conn.Read(c.got[:])
	if err != nil {
		return fmt.Errorf("the node does not answer: %w", err)
	}
	if string(c.got[:n]) != "\x00\x00\x00\x06\x00\x00\x00\x00OK" {
		return fmt.Errorf("the node answers %q", c.got[:n])
	}
	return nil
}

// latencies publishes one message after the other, and returns the median and the 99th percentile.
func (c *thinClient) latencies(t testing.TB, count int) (p50, p99 time.Duration) {
	t.Helper()
	took := make([]time.Duration, 0, count)
	for range count {
		start := time.Now()
		if err := c.ask(); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100]
}
