//go:build observed

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

const (
	observedRounds   = 15
	observedTopics   = 1000
	observedChannels = 3
	scrapeMost       = 50 * time.Millisecond
	scrapeMostBytes  = 2 << 20
	observedLeast    = 0.98 // of the rate of nodes that nobody observes
)

// observedLoads are the loads, as flags of `penstock bench pub`.
var observedLoads = []struct {
	name  string
	three bool
	flags []string
}{
	{"64 connections, one PUB each", false, []string{"--connections", "64"}},
	{"1024 PUBs in flight", false, []string{"--connections", "8", "--in-flight", "128"}},
	{"three nodes, 64 connections, one PUB each", true, []string{"--connections", "64"}},
}

// What it costs to be observed: nodes with 1000 topics of three channels that are scraped each second and push to a
// statsd every 10 s, against equal ones that nobody asks. The loads alternate between the two. A scrape of the single
// served is timed while it is loaded.
func TestObserved(t *testing.T) {
	statsd, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = statsd.Close() })
	go func() { // what arrives is dropped
		buf := make([]byte, 64<<10)
		for _, _, err := statsd.ReadFrom(buf); err == nil; _, _, err = statsd.ReadFrom(buf) {
		}
	}()
	observe := []string{"--statsd-address", statsd.LocalAddr().String(), "--statsd-interval", "10s"}
	quiet := map[bool]*harness.Cluster{false: observedNodes(t, 1, nil), true: observedNodes(t, 3, nil)}
	seen := map[bool]*harness.Cluster{false: observedNodes(t, 1, observe), true: observedNodes(t, 3, observe)}
	for _, load := range observedLoads {
		t.Run(load.name, func(t *testing.T) { compareObserved(t, quiet[load.three], seen[load.three], load.flags) })
	}
}

// compareObserved puts one load on a cluster that nobody observes and on one that is observed, in turn.
func compareObserved(t *testing.T, quiet, seen *harness.Cluster, flags []string) {
	at, other := loaded(t, quiet), loaded(t, seen)
	var without, with, ratios []float64
	var scrapes []time.Duration
	for range observedRounds {
		a := pubRate(t, at, flags)
		var b float64
		took := scraping(t, seen, func() { b = pubRate(t, other, flags) })
		without, with, ratios = append(without, a), append(with, b), append(ratios, b/a)
		scrapes = append(scrapes, took...)
	}
	ratio, scrape := middle(ratios), middle(scrapes)
	t.Logf("%.0f msg/s without, %.0f with, medians; ratio %.3f (%.3f to %.3f); scrape: median %v, most %v",
		middle(without), middle(with), ratio, slices.Min(ratios), slices.Max(ratios), scrape, slices.Max(scrapes))
	if ratio < observedLeast {
		t.Errorf("observed nodes reach only %.3f of the others", ratio)
	}
	if scrape > scrapeMost {
		t.Errorf("a scrape takes %v", scrape)
	}
}

// middle returns the upper median.
func middle[T int | float64 | time.Duration](of []T) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// observedNodes starts one node or three, with the topics and channels.
func observedNodes(t *testing.T, nodes int, flags []string) *harness.Cluster {
	t.Helper()
	start := harness.Single
	if nodes > 1 {
		start = harness.Dev
	}
	c, err := start(t.Context(), harness.Options{Dir: t.TempDir(), Nodes: nodes, Serve: flags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	var group sync.WaitGroup
	for worker := range 16 {
		group.Go(func() {
			for i := worker; i < observedTopics; i += 16 {
				for channel := range observedChannels {
					path := fmt.Sprintf("/channel/create?topic=t%d&channel=c%d", i, channel)
					if channel == 0 {
						postOK(t, c.Nodes[0], fmt.Sprintf("/topic/create?topic=t%d", i))
					}
					postOK(t, c.Nodes[0], path)
				}
			}
		})
	}
	group.Wait()
	return c
}

func postOK(t *testing.T, n *harness.Node, path string) {
	reply, err := http.Post("http://"+n.HTTP+path, "", nil)
	if err != nil {
		t.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, reply.Body)
	_ = reply.Body.Close()
	if reply.StatusCode != 200 {
		t.Errorf("%s: %s", path, reply.Status)
	}
}

// loaded returns the node that gets the load: the one that leads the topic, because another one would forward it.
func loaded(t *testing.T, c *harness.Cluster) *harness.Node {
	t.Helper()
	if len(c.Nodes) == 1 {
		return c.Nodes[0]
	}
	if err := c.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	n, err := c.Leader(t.Context(), "t0", 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// pubRate returns the messages per second of a load of 4 s.
func pubRate(t *testing.T, n *harness.Node, flags []string) float64 {
	t.Helper()
	tool, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"bench", "pub", "--json", "--duration", "4s", "--topic", "t0", "--nsq-address", n.NSQ, "--http-address", n.HTTP,
	}, flags...)
	out, err := exec.Command(tool, args...).Output()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	var report struct {
		Rate float64 `json:"messages_per_second"`
	}
	if err := json.Unmarshal(out, &report); err != nil || report.Rate == 0 {
		t.Fatalf("%s: %v", out, err)
	}
	return report.Rate
}

// scraping scrapes all nodes each second while f runs, and returns how long each scrape took.
func scraping(t *testing.T, c *harness.Cluster, f func()) (took []time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return took
		case <-tick.C:
		}
		for _, n := range c.Nodes {
			began := time.Now()
			reply, err := http.Get("http://" + n.HTTP + "/metrics")
			if err != nil {
				t.Error(err)
				continue
			}
			size, err := io.Copy(io.Discard, reply.Body)
			_ = reply.Body.Close()
			took = append(took, time.Since(began))
			if err != nil || size > scrapeMostBytes {
				t.Errorf("a scrape of %d bytes: %v", size, err)
			}
		}
	}
}
