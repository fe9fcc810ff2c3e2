package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"

	"penstock/client"
	"penstock/internal/load"
)

// nativeConfig is a load for package client.
func (n *served) nativeConfig(topic string) load.Config {
	cfg := n.config(topic)
	cfg.Native = &load.Native{
		Nodes:   []string{n.native},
		Options: client.Options{Logger: slog.New(slog.DiscardHandler)},
	}
	return cfg
}

// goNSQ marks a configuration that NSQ's usual Go client runs: a producer and a goroutine for each connection, as Go
// programs have. Package load's own NSQ client is thinner than any library.
const goNSQ = "go-nsq"

// costs are what a message of each side took of the processors, in µs, in each round. They say more than rates on a
// machine that does other work.
type costs struct {
	pids           []int // of the nodes
	server, client map[string][]float64
}

func newCosts(pids ...int) *costs {
	return &costs{pids: pids, server: map[string][]float64{}, client: map[string][]float64{}}
}

func (c *costs) used(b *testing.B) (server, client time.Duration) {
	for _, pid := range c.pids {
		server += cpuTimeOf(b, pid)
	}
	return server, cpuTimeOf(b, os.Getpid())
}

// around returns a measurement that notes what it costs. It measures with load.Publish, or NSQ's usual Go client.
func (c *costs) around(b *testing.B) func(context.Context, load.Config) (*load.Report, error) {
	return func(ctx context.Context, cfg load.Config) (*load.Report, error) {
		measure, name := load.Publish, "nsq"
		switch {
		case cfg.Channel == goNSQ:
			measure, name = publishGoNSQ, goNSQ
		case cfg.Native != nil:
			name = "native"
		}
		cfg.WarmUp = 0 // its messages would not be counted
		server, client := c.used(b)
		r, err := measure(ctx, cfg)
		if err == nil && r.Messages > 0 {
			s, own := c.used(b)
			c.server[name] = append(c.server[name], float64(s-server)/1e3/float64(r.Messages))
			c.client[name] = append(c.client[name], float64(own-client)/1e3/float64(r.Messages))
		}
		return r, err
	}
}

func (c *costs) report(b *testing.B) {
	for name := range c.server {
		b.ReportMetric(median(c.server[name]), name+"-server-µs")
		b.ReportMetric(median(c.client[name]), name+"-client-µs")
	}
}

func publishGoNSQ(ctx context.Context, cfg load.Config) (*load.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.WarmUp+cfg.Duration)
	defer cancel()
	body := make([]byte, cfg.SizeBytes)
	for i := range body {
		body[i] = 'x'
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	from := time.Now().Add(cfg.WarmUp)
	for range cfg.Connections {
		p, err := nsq.NewProducer(cfg.Address, nsq.NewConfig())
		if err != nil {
			return nil, err
		}
		defer p.Stop()
		p.SetLoggerLevel(nsq.LogLevelMax)
		wg.Go(func() {
			var own []time.Duration
			var err error
			for err == nil && ctx.Err() == nil {
				start := time.Now()
				if err = p.Publish(cfg.Topic, body); start.After(from) {
					own = append(own, time.Since(start))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
			if err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	if failed != nil || len(took) == 0 {
		return nil, fmt.Errorf("go-nsq: %d messages: %w", len(took), failed)
	}
	slices.Sort(took)
	at := func(part float64) time.Duration { return took[int(part*float64(len(took)-1))] }
	return &load.Report{
		Messages:          int64(len(took)),
		MessagesPerSecond: float64(len(took)) / time.Since(from).Seconds(),
		Latencies:         []load.Latency{{P50: at(0.5), P99: at(0.99)}},
	}, nil
}

// nativeLoads are works that both protocols do: connections, and messages in flight on each.
var nativeLoads = []struct {
	name                    string
	conns, inFlight, native int // messages in flight: NSQ's protocol, the native one
	goNSQ                   bool
}{
	{"connections=1/in-flight=1", 1, 1, 1, true},
	{"connections=64/in-flight=1", 64, 1, 1, true},
	// NSQ's best, pipelined PUBs, beside a producer with callbacks.
	{"connections=1/asynchronous", 1, 4096, 1 << 17, false},
}

// BenchmarkNativePublish is publishing by package client beside NSQ's protocol, in turn on one node.
func BenchmarkNativePublish(b *testing.B) {
	n := startNode(b, b.TempDir())
	nativePublish(b, func(string) *served { return n }, n.cmd.Process.Pid)
}

// BenchmarkNativeCluster is the same at the leader of three nodes on this machine.
func BenchmarkNativeCluster(b *testing.B) {
	tr := startCluster(b, 3)
	nativePublish(b, func(topic string) *served { return tr.at(tr.create(b, topic).Leader) }, tr.pids()...)
}

// nativePublish measures at the node that leads the topic.
func nativePublish(b *testing.B, leader func(topic string) *served, pids ...int) {
	commit := commitTime(b)
	for i, v := range nativeLoads {
		b.Run(v.name, func(b *testing.B) {
			topic := fmt.Sprintf("t%d", i)
			n := leader(topic)
			all := []*side{{name: "native", cfg: n.nativeConfig(topic)}}
			if v.goNSQ {
				all = append(all, &side{name: goNSQ, cfg: n.config(topic)})
				all[1].cfg.Channel = goNSQ
			}
			all = append(all, &side{name: "nsq", cfg: n.config(topic)})
			for _, s := range all {
				s.cfg.Connections, s.cfg.InFlight = v.conns, v.inFlight
				s.cfg.Duration = time.Second
			}
			all[0].cfg.InFlight = v.native
			spent := newCosts(pids...)
			alternate(b, all, spent.around(b))
			spent.report(b)
			b.ReportMetric(float64(commit.Microseconds()), "device-commit-µs")
		})
	}
}

// BenchmarkNativeCompress is one producer with callbacks and JSON bodies of 1 KiB, with and without compression.
func BenchmarkNativeCompress(b *testing.B) {
	n := startNode(b, b.TempDir())
	var all []*side
	for _, s := range []side{{name: "s2"}, {name: "zstd"}, {name: "none"}} {
		s.cfg = n.nativeConfig("t")
		s.cfg.SizeBytes, s.cfg.JSON, s.cfg.InFlight = 1024, true, 1<<15
		s.cfg.Duration, s.cfg.WarmUp = time.Second, 300*time.Millisecond
		s.cfg.Native.Producer.Compression = map[string]client.Compression{
			"s2": client.CompressS2, "zstd": client.CompressZstd,
		}[s.name]
		all = append(all, &s)
	}
	alternate(b, all, load.Publish)
}

// BenchmarkNativeRead reads three million messages that are stored, by a Reader.
func BenchmarkNativeRead(b *testing.B) {
	n := startNode(b, b.TempDir())
	const messages = 3_000_000
	fill := n.nativeConfig("t")
	fill.Messages, fill.InFlight, fill.Duration, fill.WarmUp = messages, 1<<17, 0, 0
	if _, err := load.Publish(context.Background(), fill); err != nil {
		b.Fatal(err)
	}
	var rates []float64
	for range max(b.N, clusterRounds) {
		cfg := n.nativeConfig("t")
		cfg.Messages = messages
		r, err := load.ReadPast(context.Background(), cfg)
		if err != nil || r.Messages != messages {
			b.Fatalf("%v, %+v", err, r)
		}
		rates = append(rates, r.MessagesPerSecond)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(rates), "msg/s")
	b.ReportMetric(slices.Min(rates), "least-msg/s")
	b.ReportMetric(slices.Max(rates), "most-msg/s")
}
