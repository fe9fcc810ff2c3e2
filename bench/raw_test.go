package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/internal/node"
	"penstock/segment/aio"
)

// rawLoop is what the engine is measured against: producers append to one buffer under a lock, one
// goroutine writes it with a single O_DIRECT and DSYNC pwrite to a prewritten file, and wakes them. No parsing, no
// checksum, no partitions, no record of who wrote what.
type rawLoop struct {
	fd   int
	mu   sync.Mutex
	cond *sync.Cond
	open *rawGroup
	free *rawGroup
	stop bool
	pos  int64

	commit time.Duration // how long a write takes at least: see slowDisk
}

type rawGroup struct {
	buf  []byte
	n    int
	done chan struct{}
}

const rawFileBytes = 64 << 20

func newRawLoop(b testing.TB) *rawLoop { return newRawLoopIn(b, b.TempDir()) }

func newRawLoopIn(b testing.TB, dir string) *rawLoop {
	path := filepath.Join(dir, "raw")
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o600)
	if err != nil {
		b.Skipf("this file system has no O_DIRECT: %v", err)
	}
	zeros, _ := aio.AlignedBytes(1 << 20)
	for off := int64(0); off < rawFileBytes; off += 1 << 20 {
		if _, err := unix.Pwrite(fd, zeros, off); err != nil {
			b.Fatal(err)
		}
	}
	if err := unix.Fsync(fd); err != nil {
		b.Fatal(err)
	}
	unix.Close(fd)
	if fd, err = unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_DSYNC, 0o600); err != nil {
		b.Fatal(err)
	}
	r := &rawLoop{fd: fd}
	r.cond = sync.NewCond(&r.mu)
	group := func() *rawGroup {
		buf, _ := aio.AlignedBytes(1 << 20)
		return &rawGroup{buf: buf, done: make(chan struct{})}
	}
	r.open, r.free = group(), group()
	b.Cleanup(func() { unix.Close(fd); os.Remove(path) })
	return r
}

func (r *rawLoop) put(body []byte) {
	r.mu.Lock()
	g := r.open
	copy(g.buf[g.n:], body)
	g.n += len(body)
	done := g.done
	if g.n == len(body) {
		r.cond.Signal()
	}
	r.mu.Unlock()
	<-done
}

func (r *rawLoop) run() error {
	for {
		r.mu.Lock()
		for r.open.n == 0 && !r.stop {
			r.cond.Wait()
		}
		if r.stop {
			r.mu.Unlock()
			return nil
		}
		g := r.open
		r.open = r.free
		r.mu.Unlock()
		size := (g.n + 4095) &^ 4095
		if r.pos+int64(size) > rawFileBytes {
			r.pos = 0
		}
		due := time.Now().Add(r.commit)
		if n, err := syscall.Pwrite(r.fd, g.buf[:size], r.pos); err != nil || n != size {
			return fmt.Errorf("pwrite: %d, %v", n, err)
		}
		sleepUntil(due)
		r.pos += int64(size)
		close(g.done)
		g.done, g.n = make(chan struct{}), 0
		r.mu.Lock()
		r.free = g
		r.mu.Unlock()
	}
}

// BenchmarkPublishBesideRaw alternates rounds of the engine and of the raw loop, with the same producers, and
// reports the medians and the ratio: this machine's speed drifts, the ratio does not. Both are measured on the device
// as it is, and on one whose durable writes take at least slowCommit. With TMPDIR on a memory file system the write
// takes microseconds, and the ratio compares processor time.
func BenchmarkPublishBesideRaw(b *testing.B) {
	for _, commit := range []time.Duration{0, slowCommit} {
		for _, producers := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("producers=%d/size=100/commit=%v", producers, commit), func(b *testing.B) {
				besideRaw(b, commit, producers)
			})
		}
	}
}

func besideRaw(b *testing.B, commit time.Duration, producers int) {
	r := newRawLoop(b)
	r.commit = commit
	ended := make(chan error, 1)
	go func() { ended <- r.run() }()
	open := openEngine
	if commit > 0 {
		open = func(b *testing.B) *node.Engine { return openSlowEngine(b, commit) }
	}
	e := open(b)
	t := topics(b, e, 1)[0]
	body := bytes.Repeat([]byte("x"), 100)
	var raw, ours, ratio, rawCPU, cpu []float64
	for range max(b.N, 5) {
		x, xc := round(producers, func() error { r.put(body); return nil })
		y, yc := round(producers, func() error {
			_, err := t.PublishMessage(context.Background(), node.Outgoing{
				Body: body,
			})
			return err
		})
		raw, ours, ratio = append(raw, x), append(ours, y), append(ratio, y/x)
		rawCPU, cpu = append(rawCPU, xc), append(cpu, yc)
	}
	b.ReportMetric(median(cpu), "cpu-ns/msg")
	b.ReportMetric(median(rawCPU), "raw-cpu-ns/msg")
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours), "msg/s")
	b.ReportMetric(median(raw), "raw-msg/s")
	b.ReportMetric(median(ratio), "ratio")
	r.mu.Lock()
	r.stop = true
	r.cond.Signal()
	r.mu.Unlock()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

const roundTime = 300 * time.Millisecond

// round lets producers put, each waiting for its answer, and returns messages per second and this process's
// processor time per message in nanoseconds.
func round(producers int, put func() error) (rate, cpu float64) {
	return roundOf(roundTime, producers, put)
}

func roundOf(d time.Duration, producers int, put func() error) (rate, cpu float64) {
	var wg sync.WaitGroup
	var total atomic.Int64
	var failed atomic.Pointer[error]
	var stop atomic.Bool
	start, before := time.Now(), cpuTime()
	time.AfterFunc(d, func() { stop.Store(true) })
	for range producers {
		wg.Go(func() {
			n := int64(0)
			for ; !stop.Load(); n++ {
				if err := put(); err != nil {
					failed.Store(&err)
					break
				}
			}
			total.Add(n)
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		panic(*err)
	}
	n := float64(total.Load())
	return n / time.Since(start).Seconds(), float64(cpuTime()-before) / n
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
