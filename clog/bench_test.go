package clog

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
)

const benchPayloadBytes = 256

// BenchmarkCommit has producers that each wait for their own record before they send the next one. It compares the log
// with a loop of one durable write per group, with the same producers and the same kind of prewritten file. The loop
// shows what the hardware allows without a log.
func BenchmarkCommit(b *testing.B) {
	for _, producers := range []int{1, 64, 512} {
		for _, mode := range []aio.Mode{aio.ModeUring, aio.ModePwrite} {
			b.Run(fmt.Sprintf("log/%s/producers=%d", mode, producers), func(b *testing.B) { benchLog(b, mode, producers) })
		}
		b.Run(fmt.Sprintf("raw/producers=%d", producers), func(b *testing.B) { benchRaw(b, producers) })
	}
}

func benchLog(b *testing.B, mode aio.Mode, producers int) {
	disk := openDisk(b, b.TempDir(), mode)
	defer disk.Close()
	arena, err := aio.NewArena(1<<20, 8)
	if err != nil {
		b.Fatal(err)
	}
	defer arena.Close()
	src := newWaiters(benchPayloadBytes)
	l, _, err := Open(disk, arena, Options{Store: testStore}, &keeper{})
	if err != nil {
		b.Fatal(err)
	}
	src.durable = func(g *Group) { l.Release(g.FileSeq()) }
	l.SetSource(src)
	done := make(chan error, 1)
	go func() { done <- l.Run() }()
	src.commit(l, src.waiter()) // the first file exists now
	produce(b, producers, func() func() {
		w := src.waiter()
		return func() { src.commit(l, w) }
	})
	s := l.Stats()
	b.ReportMetric(float64(s.Records)/float64(s.Groups), "records/group")
	l.Stop()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// produce shares b.N commits among the producers.
func produce(b *testing.B, producers int, newProducer func() func()) {
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range producers {
		commit := newProducer()
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				commit()
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// benchRaw is that loop: wait for producers, copy their payloads one after another, one WriteSyncAt, wake the
// producers.
func benchRaw(b *testing.B, producers int) {
	disk := openDisk(b, b.TempDir(), aio.ModePwrite)
	defer disk.Close()
	const fileBytes = 32 << 20
	f, err := disk.Create("raw", fileBytes)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	mem, free := aio.AlignedBytes(1 << 20)
	defer free()
	for off := int64(0); off < fileBytes; off += int64(len(mem)) {
		if err := f.WriteAt(mem, off); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	arrivals := make(chan *waiter, 1024)
	go rawLoop(f, fileBytes, mem, arrivals)
	produce(b, producers, func() func() {
		w := &waiter{done: make(chan struct{}, 1)}
		return func() {
			arrivals <- w
			<-w.done
		}
	})
	close(arrivals)
}

func rawLoop(f aio.File, fileBytes int64, mem []byte, arrivals chan *waiter) {
	var group []*waiter
	pos := int64(0)
	for w := range arrivals {
		group = append(group[:0], w)
		for len(arrivals) > 0 {
			group = append(group, <-arrivals)
		}
		n := aio.RoundUp(int64(len(group)*benchPayloadBytes), aio.BlockBytes)
		if pos+n > fileBytes {
			pos = 0
		}
		if err := f.WriteSyncAt(mem[:n], pos); err != nil {
			panic(err)
		}
		pos += n
		for _, w := range group {
			w.done <- struct{}{}
		}
	}
}

// BenchmarkStep measures one group of one batch of 512 bytes from Gather to Durable, written on the spot.
func BenchmarkStep(b *testing.B) {
	disk := openDisk(b, b.TempDir(), aio.ModePwrite)
	defer disk.Close()
	arena, err := aio.NewArena(1<<20, 4)
	if err != nil {
		b.Fatal(err)
	}
	defer arena.Close()
	src := new(trivial)
	l, _, err := Open(disk, arena, Options{Store: testStore}, &keeper{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	l.SetSource(src)
	if err := l.Start(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		src.want = 1
		l.Release(l.Current())
		for until := src.durable + 1; src.durable < until; {
			if _, err := l.Step(true); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkRecovery replays 128 MiB of groups of the given size.
func BenchmarkRecovery(b *testing.B) {
	for _, groupBytes := range []int{4 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("group=%dKiB", groupBytes>>10), func(b *testing.B) { benchRecovery(b, groupBytes) })
	}
}

func benchRecovery(b *testing.B, groupBytes int) {
	const total = 128 << 20
	disk := openDisk(b, b.TempDir(), aio.ModePwrite)
	defer disk.Close()
	arena, err := aio.NewArena(1<<20, 4)
	if err != nil {
		b.Fatal(err)
	}
	defer arena.Close()
	payload := groupBytes - GroupHeaderBytes - RecordHeaderBytes
	src := &sized{bytes: payload}
	l, _, err := Open(disk, arena, Options{Store: testStore, Inline: true}, &keeper{})
	if err != nil {
		b.Fatal(err)
	}
	l.SetSource(src)
	if err := l.Start(); err != nil {
		b.Fatal(err)
	}
	for l.LiveBytes() < total {
		src.want = 1
		step(b, l, 1)
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(total)
	for b.Loop() {
		var seen anything
		l, report, err := Open(disk, arena, Options{Store: testStore, Inline: true}, &seen)
		if err != nil || report.Bytes < total {
			b.Fatal(err, report)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// sized is a Source of batches of one size.
type sized struct {
	trivial
	bytes int
}

func (s *sized) Gather(g *Group) {
	if s.want == 0 {
		return
	}
	p := g.Reserve(Placement{Type: Batch}, s.bytes)
	if p == nil {
		return
	}
	body := p[segment.HeaderBytes:]
	clear(body)
	s.header = segment.Header{
		Flags: segment.FlagControl, BodyBytes: uint32(len(body)), BodyCRC: batch.Checksum(body), Position: 1,
	}
	s.header.Encode(p)
	s.want = 0
}
