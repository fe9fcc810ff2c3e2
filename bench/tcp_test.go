package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/internal/load"
	"penstock/segment/aio"
)

// served is `penstock serve` as a process of its own on loopback.
type served struct {
	cmd       *exec.Cmd
	dir       string
	nsq, http string
	native    string // address; empty: it is not known
}

// buildOnce returns the engine's binary, which it builds. TEST_ENGINE names another one, to compare versions.
var buildOnce = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("TEST_ENGINE"); bin != "" {
		return bin, nil
	}
	dir, err := os.MkdirTemp("", "penstock-bin")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "engine")
	out, err := exec.Command("go", "build", "-o", bin, "penstock/cmd/engine").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return bin, nil
})

var readyLine = regexp.MustCompile(`msg=ready nsq=(\S+) http=(\S+)(?:.* native=(\S+))?`)

func startNode(b *testing.B, dir string) *served {
	b.Helper()
	bin, err := buildOnce()
	if err != nil {
		b.Fatal(err)
	}
	n := &served{dir: dir}
	n.cmd = exec.Command(bin, "serve", "--data-path", dir, "--nsq-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
		"--lookup-address", "off", "--native-address", "127.0.0.1:0")
	stderr, err := n.cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(n.kill)
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if m := readyLine.FindStringSubmatch(lines.Text()); m != nil {
			n.nsq, n.http, n.native = m[1], m[2], m[3]
			go func() {
				for lines.Scan() {
				}
			}()
			return n
		}
	}
	b.Fatal("the node did not become ready")
	return nil
}

func (n *served) kill() {
	if n.cmd.ProcessState == nil {
		_ = n.cmd.Process.Signal(syscall.SIGKILL)
		_ = n.cmd.Wait()
	}
}

func (n *served) config(topic string) load.Config {
	return load.Config{
		Address: n.nsq, Topic: topic, Channel: "bench", Connections: 1, InFlight: 1, Batch: 1,
		SizeBytes: 100, Ready: 2500, Duration: 2 * time.Second, WarmUp: 500 * time.Millisecond,
	}
}

// commitTime is the device's own median for one durable 4 KiB write, with nothing else going on.
func commitTime(b testing.TB) time.Duration { return newRawLoop(b).commitTime(b, 2000) }

func (r *rawLoop) commitTime(b testing.TB, count int) time.Duration {
	took := r.commitTimes(b, count)
	return took[len(took)/2]
}

// commitTimes are the device's own times for durable 4 KiB writes, one after the other, sorted.
func (r *rawLoop) commitTimes(b testing.TB, count int) []time.Duration {
	return r.writeTimes(b, count, 4096)
}

// writeTimes are the same for writes of any size, whole blocks of at most 1 MiB.
func (r *rawLoop) writeTimes(b testing.TB, count, sizeBytes int) []time.Duration {
	buf, free := aio.AlignedBytes(sizeBytes)
	defer free()
	places := min(1000, rawFileBytes/sizeBytes)
	var took []time.Duration
	for i := range count {
		start := time.Now()
		if _, err := unix.Pwrite(r.fd, buf, int64(i%places*sizeBytes)); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took
}

// BenchmarkTCPPublish is publishing over NSQ's protocol from this process to a node on loopback, every OK after a
// durable write.
func BenchmarkTCPPublish(b *testing.B) {
	for _, v := range []struct {
		name                  string
		conns, inFlight, perM int
	}{
		{"PUB/connections=1/in-flight=1", 1, 1, 1},
		{"PUB/connections=64/in-flight=1", 64, 1, 1},
		{"PUB/connections=1/in-flight=1024", 1, 1024, 1},
		{"MPUBx100/connections=1/in-flight=1", 1, 1, 100},
		{"MPUBx100/connections=1/in-flight=8", 1, 8, 100},
		{"MPUBx100/connections=8/in-flight=1", 8, 1, 100},
		{"MPUBx100/connections=8/in-flight=8", 8, 8, 100},
	} {
		b.Run(v.name, func(b *testing.B) {
			n := startNode(b, b.TempDir())
			cfg := n.config("t")
			cfg.Connections, cfg.InFlight, cfg.Batch = v.conns, v.inFlight, v.perM
			commit := commitTime(b)
			r, err := load.Publish(context.Background(), cfg)
			report(b, r, err)
			b.ReportMetric(float64(commit.Microseconds()), "device-commit-µs")
			b.ReportMetric(float64(r.Latencies[0].P50)/float64(commit), "p50/commit")
			if v.perM == 100 && v.conns == 8 && v.inFlight == 8 {
				b.ReportMetric(n.segmentOverhead(b), "segment-bytes/body-byte")
			}
		})
	}
}

// BenchmarkTCPEndToEnd is publish call to handler at a steady 10k messages a second.
func BenchmarkTCPEndToEnd(b *testing.B) {
	n := startNode(b, b.TempDir())
	cfg := n.config("t")
	cfg.Rate, cfg.InFlight, cfg.Duration = 10_000, 1024, 4*time.Second
	r, err := load.EndToEnd(context.Background(), cfg)
	report(b, r, err)
}

// BenchmarkTCPCatchUp consumes a million stored messages on one connection, FIN each.
func BenchmarkTCPCatchUp(b *testing.B) {
	n := startNode(b, b.TempDir())
	cfg := n.config("t")
	cfg.Messages, cfg.Batch, cfg.Fill, cfg.Duration, cfg.WarmUp = 1_000_000, 100, true, 0, 0
	r, err := load.Consume(context.Background(), cfg)
	report(b, r, err)
}

func report(b *testing.B, r *load.Report, err error) {
	if err == nil && r.Errors > 0 {
		err = fmt.Errorf("%d errors, the first: %s", r.Errors, r.FirstError)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(r.MessagesPerSecond, "msg/s")
	for _, l := range r.Latencies {
		name := strings.ReplaceAll(l.Name, " ", "-")
		b.ReportMetric(float64(l.P50.Microseconds()), name+"-p50-µs")
		b.ReportMetric(float64(l.P99.Microseconds()), name+"-p99-µs")
	}
}

// segmentOverhead is segment bytes per body byte of everything stored so far.
func (n *served) segmentOverhead(b *testing.B) float64 {
	var stats struct {
		Topics []struct {
			Bytes uint64 `json:"message_bytes"`
		}
	}
	n.get(b, "/stats?format=json", &stats)
	n.stop(b)
	stored := int64(0)
	segments, err := filepath.Glob(filepath.Join(n.dir, "topics", "*", "*", "*.seg"))
	if err != nil || len(segments) == 0 || len(stats.Topics) != 1 {
		b.Fatalf("%d segments, %d topics: %v", len(segments), len(stats.Topics), err)
	}
	for i, s := range segments {
		info, err := os.Stat(s)
		if err != nil {
			b.Fatal(err)
		}
		if i < len(segments)-1 { // the last one is reserved further than written
			stored += info.Size()
		} else {
			stored += written(b, s)
		}
	}
	return float64(stored) / float64(stats.Topics[0].Bytes)
}

// written is where the zeros at the end of a file begin.
func written(b *testing.B, path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	n := len(data)
	for n > 0 && data[n-1] == 0 {
		n--
	}
	return int64(n)
}

func (n *served) get(b *testing.B, path string, into any) {
	resp, err := http.Get("http://" + n.http + path)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		b.Fatal(err)
	}
}

// stop ends the node in order: everything is in segments then.
func (n *served) stop(b *testing.B) {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.Fatal(err)
	}
	if err := n.cmd.Wait(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRestart kills a node that holds 5 million messages and measures until a consumer has the first one.
func BenchmarkRestart(b *testing.B) {
	dir := b.TempDir()
	n := startNode(b, dir)
	cfg := n.config("t")
	cfg.Messages, cfg.Batch, cfg.Connections, cfg.InFlight, cfg.Duration, cfg.WarmUp = 5_000_000, 100, 4, 8, 0, 0
	r, err := load.Publish(context.Background(), cfg)
	report(b, r, err)
	n.kill()
	var took []float64
	for range 3 {
		start := time.Now()
		n = startNode(b, dir)
		cfg = n.config("t")
		cfg.Messages, cfg.Duration, cfg.WarmUp, cfg.Ready = 1, 0, 0, 1
		if _, err := load.Consume(context.Background(), cfg); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start).Seconds())
		n.kill()
	}
	b.ReportMetric(median(took), "s-to-first-message")
}

// BenchmarkIdle is the resident memory of a node with 1000 partitions that does nothing.
func BenchmarkIdle(b *testing.B) {
	n := startNode(b, b.TempDir())
	for i := range 1000 {
		for _, path := range []string{"/topic/create?topic=t%d", "/channel/create?topic=t%d&channel=c"} {
			resp, err := http.Post("http://"+n.http+fmt.Sprintf(path, i), "", nil)
			if err != nil {
				b.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 200 {
				b.Fatal(resp.Status)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(residentMiB(b, n.cmd.Process.Pid), "MiB-resident")
}

func residentMiB(b *testing.B, pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(data)
	if m == nil {
		b.Fatal("the process has no resident memory: it is gone")
	}
	kib, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}
