package segment

import (
	"syscall"
	"testing"

	"penstock/tests/support/underrace"
)

// benchLog makes a log with one full mapped segment of batches, and returns the number of its records.
func benchLog(tb testing.TB, batchRecords, bodyBytes, totalBytes int) (*world, int) {
	w := newWorldOf(tb, realDisk(tb), Sizes{int64(totalBytes) * 2, int64(totalBytes) * 2}, Options{})
	records := 0
	for int(w.st.End) < totalBytes {
		w.append(batchRecords, bodyBytes)
		records += batchRecords
		w.model = nil
	}
	w.settle()
	return w, records
}

// readRecords views, verifies and iterates the whole log once.
func readRecords(tb testing.TB, l *Log, v *View, window int) (records, size int) {
	var batches BatchIter
	var it RecordIter
	end, _, _ := l.End()
	for at := Offset(0); at < end; {
		if err := l.View(v, at, window); err != nil {
			tb.Fatal(err)
		}
		for batches.Reset(v.Bytes()); ; {
			h, body, ok := batches.Next()
			if !ok {
				break
			}
			for it.Reset(h, body); ; records++ {
				r := it.NextRef()
				if r == nil {
					break
				}
				size += len(r.Body)
			}
		}
		at += Offset(len(v.Bytes()))
		v.Release()
	}
	return records, size
}

func benchmarkView(b *testing.B, batchRecords, bodyBytes, window int) {
	w, records := benchLog(b, batchRecords, bodyBytes, 16<<20)
	var v View
	readRecords(b, w.log, &v, window)
	b.ReportAllocs()
	b.SetBytes(int64(w.st.End))
	busy := cpuSeconds(b)
	for b.Loop() {
		if n, _ := readRecords(b, w.log, &v, window); n != records {
			b.Fatalf("%d of %d records", n, records)
		}
	}
	total := float64(records) * float64(b.N) / 1e6
	b.ReportMetric(total/b.Elapsed().Seconds(), "Mrec/s")
	b.ReportMetric(total/(cpuSeconds(b)-busy), "Mrec/cpu-s") // meaningful even on a machine that others use, too
}

func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func BenchmarkView100Bx500(b *testing.B)      { benchmarkView(b, 500, 100, 256<<10) }
func BenchmarkView100Bx10(b *testing.B)       { benchmarkView(b, 10, 100, 256<<10) }
func BenchmarkView100Bx1(b *testing.B)        { benchmarkView(b, 1, 100, 256<<10) }
func BenchmarkView1KiBx64(b *testing.B)       { benchmarkView(b, 64, 1024, 256<<10) }
func BenchmarkView1KiBx545At1M(b *testing.B)  { benchmarkView(b, 545, 1024, 1<<20) }
func BenchmarkView100Bx500At64K(b *testing.B) { benchmarkView(b, 500, 100, 64<<10) }

// tailOf makes a log in memory, with a batch that is ready to be appended again and again.
func tailOf(tb testing.TB) (*world, Slice) {
	w := newWorldOf(tb, memoryDisk(), Sizes{1 << 40, 1 << 40}, Options{})
	w.append(10, 100)
	s := w.model[0].slice
	s.Buf = w.arena.Get()
	s.Data = s.Buf.Bytes()[:copy(s.Buf.Bytes(), w.model[0].data)]
	tb.Cleanup(func() { s.Buf.Release() })
	return w, s
}

// again appends the same bytes as the next batch. The log does not look at them.
func again(w *world, s *Slice) {
	end, pos, id := w.log.End()
	s.Offset, s.Position, s.FirstID = end, pos, id
	w.log.Append(s)
}

func BenchmarkAppend(b *testing.B) {
	w, s := tailOf(b)
	b.ReportAllocs()
	for b.Loop() {
		again(w, &s)
		if w.log.tail.n == 4096 {
			w.log.dropTail(func(*Slice) bool { return true })
		}
	}
}

func BenchmarkViewTail(b *testing.B) {
	w, s := tailOf(b)
	for range 1000 {
		again(w, &s)
	}
	var v View
	end, _, _ := w.log.End()
	at := Offset(0)
	b.ReportAllocs()
	for b.Loop() {
		if err := w.log.View(&v, at, 1<<20); err != nil {
			b.Fatal(err)
		}
		if at += Offset(len(v.Bytes())); at == end {
			at = 0
		}
		v.Release()
	}
}

func BenchmarkSeek(b *testing.B) {
	w, records := benchLog(b, 10, 100, 16<<20)
	id := MsgID(0)
	b.ReportAllocs()
	for b.Loop() {
		id = (id*2862933555777941757 + 3037000493) % MsgID(records)
		if _, _, err := w.log.Seek(id); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFlush(b *testing.B) {
	w, s := tailOf(b)
	w.disk = realDisk(b)
	_ = w.log.Close()
	w.st, w.model = State{}, nil
	w.sizes = Sizes{64 << 20, 64 << 20}
	w.open(State{})
	s.Data = s.Buf.Bytes()[:64<<10]
	var h Header
	b.SetBytes(1 << 20)
	b.ReportAllocs()
	for b.Loop() {
		for range 16 {
			st := w.st
			w.sizes.Place(&st, len(s.Data))
			s.Segment, s.SegmentBase, s.SegmentCapacity = st.Segment, st.SegmentBase, st.SegmentCapacity
			h = Header{Position: st.Next, FirstID: st.NextID, Count: s.Count, BodyBytes: uint32(len(s.Data) - HeaderBytes)}
			st.Advance(&h)
			w.st = st
			again(w, &s)
		}
		if n, err := w.log.Flush(w.w, 1<<30); err != nil || n != 1<<20 {
			b.Fatal(n, err)
		}
		w.log.Evict(w.st.End)
		if _, err := w.log.Trim(w.st.End); err != nil {
			b.Fatal(err)
		}
		if w.st.End%(64<<20) == 0 {
			if err := w.log.Sync(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// The paths that run once per batch allocate nothing: appending to the tail, reading it, and reading a warm mapping.
func TestLogAllocations(t *testing.T) {
	w, s := tailOf(t)
	var v View
	for range 64 {
		again(w, &s)
	}
	w.log.Evict(0)
	if n := testing.AllocsPerRun(40, func() { again(w, &s) }); n != 0 {
		t.Errorf("Append allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := w.log.View(&v, s.Offset, 1<<20); err != nil {
			panic(err)
		}
		v.Release()
	}); n != 0 {
		t.Errorf("a view of the tail allocates %v times", n)
	}
	m := newWorldOf(t, realDisk(t), DefaultSizes, Options{})
	for range 50 {
		m.append(10, 100)
	}
	m.settle()
	if n := testing.AllocsPerRun(100, func() { readRecords(t, m.log, &v, 4096) }); n != 0 && !underrace.Enabled {
		// the pools of copies drop buffers under the race detector
		t.Errorf("reading a warm mapping allocates %v times", n)
	}
}
