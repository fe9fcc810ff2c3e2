package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

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
}

type rawGroup struct {
	buf  []byte
	n    int
	done chan struct{}
}

const rawFileBytes = 64 << 20

func newRawLoop(b *testing.B) *rawLoop {
	path := filepath.Join(b.TempDir(), "raw")
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
		if n, err := syscall.Pwrite(r.fd, g.buf[:size], r.pos); err != nil || n != size {
			return fmt.Errorf("pwrite: %d, %v", n, err)
		}
		r.pos += int64(size)
		close(g.done)
		g.done, g.n = make(chan struct{}), 0
		r.mu.Lock()
		r.free = g
		r.mu.Unlock()
	}
}

// BenchmarkRawLoop is the yardstick of BenchmarkPublishWaiting: the same producers, durable the same way.
func BenchmarkRawLoop(b *testing.B) {
	for _, producers := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("producers=%d/size=100", producers), func(b *testing.B) {
			r := newRawLoop(b)
			ended := make(chan error, 1)
			go func() { ended <- r.run() }()
			body := bytes.Repeat([]byte("x"), 100)
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range producers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						r.put(body)
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			b.StopTimer()
			r.mu.Lock()
			r.stop = true
			r.cond.Signal()
			r.mu.Unlock()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}
