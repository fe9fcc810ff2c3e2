package aio_test

import (
	"testing"

	"penstock/segment/aio"
)

// prewritten makes a file whose blocks are written, like the files of the commit log.
func prewritten(b *testing.B, d aio.Disk, size int) aio.File {
	b.Helper()
	f, err := d.Create("bench", int64(size))
	if err != nil {
		b.Fatal(err)
	}
	zeros, free := aio.AlignedBytes(1 << 20)
	defer free()
	for off := 0; off < size; off += len(zeros) {
		if err := f.WriteAt(zeros, int64(off)); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return f
}

func BenchmarkDurableWrite4K(b *testing.B) {
	const size = 16 << 20
	for _, mode := range []aio.Mode{aio.ModeUring, aio.ModePwrite} {
		for _, depth := range []int{1, 2} {
			b.Run(string(mode)+"/QD"+string(rune('0'+depth)), func(b *testing.B) {
				d := open(b, b.TempDir(), aio.DiskOptions{Mode: mode})
				defer d.Close()
				f := prewritten(b, d, size)
				defer f.Close()
				a := newArena(b, aio.BlockBytes, depth)
				q, err := d.NewQueue(aio.QueueOptions{Depth: depth, Arena: a})
				if err != nil {
					b.Fatal(err)
				}
				defer q.Close()
				var bufs []*aio.Buf
				for range depth {
					bufs = append(bufs, a.Get())
				}
				b.ReportAllocs()
				keepWriting(b, q, f, bufs, size)
			})
		}
	}
}

// keepWriting keeps one write of each buffer in flight; an iteration is one completed write.
func keepWriting(b *testing.B, q aio.Queue, f aio.File, bufs []*aio.Buf, size int64) {
	b.Helper()
	var off int64
	submit := func(slot uint64) {
		if err := q.Submit(aio.Op{File: f, Data: bufs[slot].Bytes(), Offset: off % size, Tag: slot}); err != nil {
			b.Fatal(err)
		}
		off += aio.BlockBytes
	}
	for slot := range bufs {
		submit(uint64(slot))
	}
	done := make([]aio.Completion, 0, len(bufs))
	for b.Loop() {
		if len(done) == 0 {
			var err error
			if done, err = q.Wait(done, true); err != nil {
				b.Fatal(err)
			}
		}
		c := done[len(done)-1]
		done = done[:len(done)-1]
		if c.Err != nil {
			b.Fatal(c.Err)
		}
		submit(c.Tag)
	}
}

// BenchmarkWakeAwake measures what Wake costs producers while the owner is awake.
func BenchmarkWakeAwake(b *testing.B) {
	for _, mode := range []aio.Mode{aio.ModeUring, aio.ModePwrite} {
		b.Run(string(mode), func(b *testing.B) {
			d := open(b, b.TempDir(), aio.DiskOptions{Mode: mode})
			defer d.Close()
			q, err := d.NewQueue(aio.QueueOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer q.Close()
			b.ReportAllocs()
			for b.Loop() {
				q.Wake()
			}
		})
	}
}

// BenchmarkWakeAsleep measures a hand-off to a sleeping owner and back.
func BenchmarkWakeAsleep(b *testing.B) {
	for _, mode := range []aio.Mode{aio.ModeUring, aio.ModePwrite} {
		b.Run(string(mode), func(b *testing.B) {
			d := open(b, b.TempDir(), aio.DiskOptions{Mode: mode})
			defer d.Close()
			queues, woken, stop := make(chan aio.Queue), make(chan struct{}), make(chan struct{})
			ended := make(chan error)
			go func() {
				q, err := d.NewQueue(aio.QueueOptions{})
				queues <- q
				for err == nil {
					if _, err = q.Wait(nil, true); err != nil {
						break
					}
					select {
					case woken <- struct{}{}:
					case <-stop:
						ended <- q.Close()
						return
					}
				}
				ended <- err
			}()
			q := <-queues
			b.ReportAllocs()
			for b.Loop() {
				q.Wake()
				<-woken
			}
			close(stop)
			q.Wake()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkGetRelease(b *testing.B) {
	a := newArena(b, aio.BlockBytes, 4)
	defer a.Close()
	b.ReportAllocs()
	for b.Loop() {
		a.Get().Release()
	}
}

func BenchmarkGuardedRead(b *testing.B) {
	d := open(b, b.TempDir(), aio.DiskOptions{})
	defer d.Close()
	f := prewritten(b, d, 1<<20)
	defer f.Close()
	m, err := f.Map()
	if err != nil {
		b.Fatal(err)
	}
	defer m.Unmap()
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Populate(0, 1<<20); err != nil {
			b.Fatal(err)
		}
		if err := aio.Guard("bench", func() error { read += aio.MappedBytes(m)[4096]; return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
