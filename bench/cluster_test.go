package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"penstock/internal/load"
)

// side is one of the targets that take turns in a run.
type side struct {
	name string
	cfg  load.Config

	rate, p50, p99 []float64
}

// sides are a cluster, through the node that leads and through one that does not, and a node of its own.
func sides(b *testing.B, tr *trio, single *served, topic string) []*side {
	leader := tr.create(b, topic).Leader
	return []*side{
		{name: "leader", cfg: tr.at(leader).config(topic)},
		{name: "other", cfg: tr.at(tr.other(leader)).config(topic)},
		{name: "single", cfg: single.config(topic)},
	}
}

const clusterRounds = 5

// alternate measures the sides in turn and reports the medians, and what the first is of the last: the machine's speed
// drifts, the ratio does not.
func alternate(b *testing.B, all []*side, measure func(context.Context, load.Config) (*load.Report, error)) {
	before := loadBefore(b)
	for range max(b.N, clusterRounds) {
		for _, s := range all {
			r, err := measure(context.Background(), s.cfg)
			if err == nil && r.Errors > 0 {
				err = fmt.Errorf("%d errors, the first: %s", r.Errors, r.FirstError)
			}
			if err != nil {
				b.Fatalf("%s: %v", s.name, err)
			}
			l := r.Latencies[0]
			s.rate = append(s.rate, r.MessagesPerSecond)
			s.p50 = append(s.p50, float64(l.P50)/1e3)
			s.p99 = append(s.p99, float64(l.P99)/1e3)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(before, "load-before")
	for _, s := range all {
		b.ReportMetric(median(s.rate), s.name+"-msg/s")
		b.ReportMetric(median(s.p50), s.name+"-p50-µs")
		b.ReportMetric(median(s.p99), s.name+"-p99-µs")
	}
	var ratios []float64
	first, last := all[0], all[len(all)-1]
	for i := range first.rate {
		ratios = append(ratios, first.rate[i]/last.rate[i])
	}
	b.ReportMetric(median(ratios), first.name+"/"+last.name)
}

// BenchmarkClusterPublish is publishing over NSQ's protocol to three nodes on this machine, every OK after all in-sync
// replicas have flushed it, beside a single node.
func BenchmarkClusterPublish(b *testing.B) {
	tr, single := startCluster(b, 3), startNode(b, b.TempDir())
	for i, v := range []struct {
		name                  string
		conns, inFlight, perM int
	}{
		{"PUB/connections=64/in-flight=1", 64, 1, 1},
		{"PUB/connections=1/in-flight=1", 1, 1, 1},
		{"PUB/connections=1/in-flight=1024", 1, 1024, 1},
		{"MPUBx100/connections=1/in-flight=1", 1, 1, 100},
		{"MPUBx100/connections=8/in-flight=1", 8, 1, 100},
	} {
		topic := fmt.Sprintf("t%d", i)
		b.Run(v.name, func(b *testing.B) {
			all := sides(b, tr, single, topic)
			for _, s := range all {
				s.cfg.Connections, s.cfg.InFlight, s.cfg.Batch = v.conns, v.inFlight, v.perM
				s.cfg.Duration, s.cfg.WarmUp = time.Second, 200*time.Millisecond
			}
			alternate(b, all, load.Publish)
		})
	}
}

// BenchmarkClusterEndToEnd is publish call to handler at a steady 10k messages a second. Consumers are where the leader
// is, as lookups send them there.
func BenchmarkClusterEndToEnd(b *testing.B) {
	tr, single := startCluster(b, 3), startNode(b, b.TempDir())
	b.Run("rate=10000", func(b *testing.B) {
		leader := tr.create(b, "t").Leader
		all := []*side{{name: "leader", cfg: tr.at(leader).config("t")}, {name: "single", cfg: single.config("t")}}
		for _, s := range all {
			s.cfg.Rate, s.cfg.InFlight, s.cfg.Duration = 10_000, 1024, 3*time.Second
		}
		alternate(b, all, load.EndToEnd)
	})
}
