package bench

import (
	"context"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"penstock/internal/cluster/admin"
	"penstock/internal/load"
)

// steady is a load that leaves the machine room: publishers of an open loop, whose latency counts from the intended
// time. The first milliseconds of new connections are not part of it: they made the time before a disturbance look like
// the disturbance.
func steady(n *served, topic string) load.Config {
	cfg := n.config(topic)
	cfg.Connections, cfg.InFlight, cfg.Rate, cfg.Duration, cfg.WarmUp = 16, 64, 5000, 500*time.Millisecond,
		200*time.Millisecond
	return cfg
}

const faultRounds = 5

// p99s are the p99 of that many short rounds: one stall of a shared disk spoils one of them.
func p99s(b *testing.B, cfg load.Config, rounds int) (all []float64) {
	for range rounds {
		all = append(all, p99(publish(b, cfg)))
	}
	return all
}

// p99sUntil are the p99 of short rounds until ended has a value, and that value. A round counts if ended had none at
// its end.
func p99sUntil(b *testing.B, cfg load.Config, ended <-chan time.Duration) (all []float64, took time.Duration) {
	for {
		v := p99(publish(b, cfg))
		select {
		case took = <-ended:
			return all, took
		default:
			all = append(all, v)
		}
	}
}

func publish(b *testing.B, cfg load.Config) *load.Report {
	b.Helper()
	r, err := load.Publish(context.Background(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func p99(r *load.Report) float64 { return float64(r.Latencies[0].P99) / 1e3 }

// stopped stops a follower until resumed is called, and returns when the ISR goes on without it.
func (tr *trio) stopped(b *testing.B, topic, name string) (resumed func()) {
	b.Helper()
	pid := tr.nodes[name].PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		b.Fatal(err)
	}
	resumed = func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	b.Cleanup(resumed)
	tr.await(b, topic, "the stopped follower leaves the ISR", func(p *admin.Partition) bool { return len(p.ISR) == 2 })
	return resumed
}

// ledByFirst makes topics until n1 leads one: it is the node that is asked for the cluster's state, and is not stopped.
func ledByFirst(b *testing.B, tr *trio) string {
	b.Helper()
	for i := range 6 {
		topic := "t" + strconv.Itoa(i)
		if tr.create(b, topic).Leader == "n1" {
			return topic
		}
	}
	b.Fatal("no topic is led by n1")
	return ""
}

// BenchmarkClusterFollowerStopped is the p99 of writes while one follower stands still, from the moment at which the
// ISR does without it.
func BenchmarkClusterFollowerStopped(b *testing.B) {
	tr := startCluster(b, 3)
	b.Run("rate=5000", func(b *testing.B) {
		topic := ledByFirst(b, tr)
		cfg := steady(tr.at("n1"), topic)
		load1 := loadBefore(b)
		var before, during, ratio []float64
		for range max(b.N, 3) {
			before = append(before, median(p99s(b, cfg, faultRounds)))
			resumed := tr.stopped(b, topic, "n3")
			during = append(during, median(p99s(b, cfg, faultRounds)))
			ratio = append(ratio, during[len(during)-1]/before[len(before)-1])
			resumed()
			tr.await(b, topic, "the follower comes back", func(p *admin.Partition) bool { return len(p.ISR) == 3 })
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(load1, "load-before")
		b.ReportMetric(median(before), "before-p99-µs")
		b.ReportMetric(median(during), "stopped-p99-µs")
		b.ReportMetric(median(ratio), "stopped/before")
	})
}

// catchUpBytes is how far the follower is behind. TEST_CATCHUP_BYTES=10000000000 is the figure to aim at; it takes
// four times that on the disk.
func catchUpBytes(b *testing.B) int64 {
	text := os.Getenv("TEST_CATCHUP_BYTES")
	if text == "" {
		return 1 << 30
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1<<20 {
		b.Fatalf("TEST_CATCHUP_BYTES=%s is not a number from a million on: %v", text, err)
	}
	return n
}

// BenchmarkClusterCatchUp is the p99 of writes while a follower catches up, and how quickly it does.
func BenchmarkClusterCatchUp(b *testing.B) {
	bytes := catchUpBytes(b)
	tr := startCluster(b, 3)
	topic := ledByFirst(b, tr)
	b.Run("bytes="+strconv.FormatInt(bytes, 10), func(b *testing.B) {
		cfg := steady(tr.at("n1"), topic)
		load1 := loadBefore(b)
		before := median(p99s(b, cfg, faultRounds))
		resumed := tr.stopped(b, topic, "n3")
		fill := tr.at("n1").config(topic)
		fill.Connections, fill.InFlight, fill.Batch, fill.SizeBytes, fill.Duration, fill.WarmUp = 4, 4, 64, 4096, 0, 0
		fill.Messages = bytes/int64(fill.SizeBytes*fill.Batch)*int64(fill.Batch) + int64(fill.Batch)
		publish(b, fill)
		without := median(p99s(b, cfg, faultRounds)) // the leader still writes segments

		caught := make(chan time.Duration, 1)
		start := time.Now()
		resumed()
		go func() {
			for end := start.Add(10 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if p, _ := tr.partition(topic); p != nil && len(p.ISR) == 3 {
					break
				}
			}
			caught <- time.Since(start)
		}()
		during, took := p99sUntil(b, cfg, caught)
		if p, seen := tr.partition(topic); p == nil || len(p.ISR) != 3 {
			b.Fatalf("the follower did not catch up within %v: %s", took, seen)
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(load1, "load-before")
		b.ReportMetric(before, "before-p99-µs")
		b.ReportMetric(without, "without-p99-µs")
		b.ReportMetric(took.Seconds(), "s-to-catch-up")
		b.ReportMetric(float64(bytes)/took.Seconds()/1e6, "catch-up-MB/s")
		b.ReportMetric(float64(len(during)), "rounds")
		if len(during) > 0 {
			b.ReportMetric(median(during), "catching-up-p99-µs")
			b.ReportMetric(median(during)/before, "catching-up/before")
		}
	})
}

// backlogCount is how many messages a consumer is behind.
const backlogCount = 4_000_000

// BenchmarkClusterBacklog is the p99 of writes while a consumer works off a backlog, and how quickly it does.
func BenchmarkClusterBacklog(b *testing.B) {
	tr := startCluster(b, 3)
	topic := ledByFirst(b, tr)
	b.Run("messages="+strconv.Itoa(backlogCount), func(b *testing.B) {
		n1 := tr.at("n1")
		cfg := steady(n1, topic)
		load1 := loadBefore(b)
		var before, during, ratio, rate []float64
		for i := range max(b.N, 3) {
			sub := n1.config(topic)
			sub.Channel = "c" + strconv.Itoa(i)
			post(b, n1.http, "/channel/create?topic="+topic+"&channel="+sub.Channel)
			fill := n1.config(topic)
			fill.Connections, fill.InFlight, fill.Batch, fill.Duration, fill.WarmUp = 4, 4, 100, 0, 0
			fill.Messages = backlogCount
			publish(b, fill)
			before = append(before, median(p99s(b, cfg, faultRounds)))

			sub.Messages, sub.Duration, sub.WarmUp = backlogCount, 0, 0
			ended, start := make(chan time.Duration, 1), time.Now()
			var failed error
			go func() {
				_, failed = load.Consume(context.Background(), sub)
				ended <- time.Since(start)
			}()
			seen, took := p99sUntil(b, cfg, ended)
			if failed != nil || len(seen) == 0 {
				b.Fatalf("%d rounds while the consumer was behind: %v", len(seen), failed)
			}
			during, rate = append(during, median(seen)), append(rate, backlogCount/took.Seconds())
			ratio = append(ratio, during[i]/before[i])
			post(b, n1.http, "/channel/delete?topic="+topic+"&channel="+sub.Channel)
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(load1, "load-before")
		b.ReportMetric(median(before), "before-p99-µs")
		b.ReportMetric(median(during), "behind-p99-µs")
		b.ReportMetric(median(rate), "consumed-msg/s")
		b.ReportMetric(median(ratio), "behind/before")
	})
}
