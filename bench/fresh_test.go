package bench

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/internal/load"
)

const (
	freshTime     = 30 * time.Second
	grownTime     = 15 * time.Second
	freshInterval = 5 * time.Second
	burstMessages = 2_000_000
	limitedBytes  = 60 << 20 // per second, as small cloud disks have it
	limitedRounds = 3
)

// BenchmarkFreshDirectory is the latency at a steady 10k messages a second on a fresh directory, after a burst that
// makes the commit log grow, and then on the same node when it is warm. It runs on this machine's device, and on the
// same one with a limit of 60 MiB/s, for which it needs root and cgroups.
func BenchmarkFreshDirectory(b *testing.B) {
	for _, limit := range []int64{0, limitedBytes} {
		name := "device=whole"
		if limit > 0 {
			name = fmt.Sprintf("device=%dMiB/s", limit>>20)
		}
		b.Run(name, func(b *testing.B) {
			phases := []string{"fresh", "grown", "warm"}
			p99, most := map[string][]float64{}, map[string][]float64{}
			var ratios []float64
			for range max(b.N, limitedRounds) {
				d := newRawLoop(b).commitTimes(b, 2000)
				b.Logf("device: a durable 4 KiB write takes %v, p99 %v", d[len(d)/2], d[len(d)*99/100])
				n := startNode(b, b.TempDir())
				if limit > 0 {
					limitWrites(b, n, limit)
				}
				for _, phase := range phases {
					l, slowest := n.steady(b, phase)
					p99[phase] = append(p99[phase], l.P99.Seconds()*1e3)
					most[phase] = append(most[phase], slowest.Seconds()*1e3)
				}
				n.kill()
				ratios = append(ratios, last(p99["fresh"])/last(p99["warm"]))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ratios), "fresh/warm")
			for _, phase := range phases {
				b.ReportMetric(median(p99[phase]), phase+"-p99-ms")
				b.ReportMetric(median(most[phase]), phase+"-longest-commit-ms")
			}
		})
	}
}

func last(v []float64) float64 { return v[len(v)-1] }

// steady runs one phase of BenchmarkFreshDirectory. It returns the latency from call to handler, and an upper bound
// of the longest commit meanwhile.
func (n *served) steady(b *testing.B, phase string) (load.Latency, time.Duration) {
	cfg := n.config("t")
	cfg.Duration = freshTime
	if phase == "grown" {
		burst := n.config("t")
		burst.Batch, burst.InFlight, burst.Messages, burst.Duration, burst.WarmUp = 100, 16, burstMessages, 0, 0
		if r, err := load.Publish(context.Background(), burst); err != nil || r.Errors > 0 {
			b.Fatal(err)
		}
		drain := n.config("t")
		drain.Messages, drain.Duration, drain.WarmUp = burstMessages, 0, 0
		if _, err := load.Consume(context.Background(), drain); err != nil {
			b.Fatal(err)
		}
		cfg.Duration = grownTime
	}
	cfg.Rate, cfg.InFlight, cfg.WarmUp, cfg.Interval = 10_000, 1024, 0, freshInterval
	before := n.commits(b)
	r, err := load.EndToEnd(context.Background(), cfg)
	if err == nil && r.Errors > 0 {
		err = fmt.Errorf("%d errors, the first: %s", r.Errors, r.FirstError)
	}
	if err != nil {
		b.Fatal(err)
	}
	after := n.commits(b)
	longest := time.Duration(0)
	for i := range after.counts {
		if inBucket(after.counts, i) > inBucket(before.counts, i) {
			longest = after.bounds[i]
		}
	}
	for _, l := range append(r.Latencies[:1:1], r.Latencies[3:]...) {
		if l.Count > 1000 {
			b.Logf("%-6s %-28s p50 %v, p90 %v, p99 %v, longest %v", phase, l.Name, l.P50, l.P90, l.P99, l.Max)
		}
	}
	b.Logf("%-6s no commit took longer than %v", phase, longest)
	return r.Latencies[0], longest
}

// commits is the histogram of the node's commits, with cumulative counts.
type commits struct {
	bounds []time.Duration
	counts []uint64
}

func inBucket(counts []uint64, i int) uint64 {
	if i == 0 {
		return counts[0]
	}
	return counts[i] - counts[i-1]
}

func (n *served) commits(b *testing.B) (c commits) {
	resp, err := http.Get("http://" + n.http + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), `penstock_commit_flush_duration_seconds_bucket{le="`)
		bound, count, two := strings.Cut(rest, `"} `)
		if !ok || !two || bound == "+Inf" {
			continue
		}
		s, err := strconv.ParseFloat(bound, 64)
		if err != nil {
			b.Fatal(err)
		}
		k, err := strconv.ParseUint(count, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		c.bounds, c.counts = append(c.bounds, time.Duration(s*float64(time.Second))), append(c.counts, k)
	}
	if len(c.bounds) == 0 {
		b.Fatal("the node shows no histogram of its commits")
	}
	return c
}

// limitWrites bounds what the node may write to its device, in bytes per second, until the benchmark ends.
func limitWrites(b *testing.B, n *served, bytesPerSecond int64) {
	var st unix.Stat_t
	if err := unix.Stat(n.dir, &st); err != nil {
		b.Fatal(err)
	}
	g := newLimitedGroup(b)
	b.Cleanup(n.kill)
	g.limit(b, fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)), bytesPerSecond, 0)
	g.take(b, n.cmd.Process.Pid)
}
