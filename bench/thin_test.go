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

// commitsAtOnce is the median time until three durable writes are done that begin together: the nodes of this machine
// share its disk.
func commitsAtOnce(t testing.TB, disks []*rawLoop, count int) time.Duration {
	t.Helper()
	var took []time.Duration
	for range count {
		done := make(chan time.Duration, len(disks))
		for _, d := range disks {
			go func() { done <- d.commitTime(t, 1) }()
		}
		most := time.Duration(0)
		for range disks {
			most = max(most, <-done)
		}
		took = append(took, most)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// BenchmarkClusterIdle is one PUB after the other by a thin client to the leader of three nodes on loopback, beside
// what it cannot do without: the client's round trip, that of the followers, and a commit.
func BenchmarkClusterIdle(b *testing.B) {
	tr := startCluster(b, 3)
	thin := dialThin(b, tr.at(tr.create(b, "t").Leader).nsq, "t")
	probe, err := relay.NewLoopbackProbe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = probe.Close() })
	disks := []*rawLoop{newRawLoop(b), newRawLoop(b), newRawLoop(b)}
	b.Run("PUB", func(b *testing.B) {
		const pubs = 1000
		var idle, trip, ratio, shared []float64
		for range max(b.N, clusterRounds) {
			took, err := probe.RoundTrip(thinBodyBytes, pubs)
			if err != nil {
				b.Fatal(err)
			}
			commit, three := micros(disks[0].commitTime(b, pubs)), micros(commitsAtOnce(b, disks, pubs))
			p50, _ := thin.latencies(b, pubs)
			idle, trip = append(idle, micros(p50)), append(trip, micros(took))
			ratio = append(ratio, micros(p50)/(2*micros(took)+commit))
			shared = append(shared, micros(p50)/(2*micros(took)+three))
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(median(idle), "p50-µs")
		b.ReportMetric(median(trip), "round-trip-µs")
		b.ReportMetric(median(ratio), "p50/sum")
		b.ReportMetric(median(shared), "p50/sum-of-three-commits-at-once")
	})
}
