package clog

import (
	"strings"
	"testing"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

func TestOptions(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 2)
	tests := []struct {
		opts Options
		says string
	}{
		{Options{FileBytes: 7 * aio.BlockBytes}, "files of"},
		{Options{FileBytes: 8*aio.BlockBytes + 1}, "files of"},
		{Options{FileBytes: 64 << 20, MaxLiveBytes: 64 << 20}, "less than two files"},
		{Options{InFlight: -1}, "in flight"},
		{Options{InFlight: MaxInFlight + 1}, "in flight"},
		{Options{GroupBytes: 8 * aio.BlockBytes}, "groups of"},
		{Options{GroupBytes: 100}, "groups of"},
	}
	for _, tt := range tests {
		_, report, err := Open(faultaio.New(faultaio.Options{}), arena, tt.opts, &keeper{})
		if err == nil || !strings.Contains(err.Error(), tt.says) || report == nil {
			t.Errorf("%+v: %v", tt.opts, err)
		}
	}
	opts := Options{Inline: true}
	if err := opts.complete(arena, aio.BlockBytes); err != nil || opts.FileBytes != 32<<20 ||
		opts.MaxLiveBytes != 256<<20 || opts.InFlight != 2 {
		t.Errorf("%v: %+v", err, opts)
	}
	l := newLog(faultaio.New(faultaio.Options{}), arena, opts, aio.BlockBytes)
	defer l.stage.free()
	if l.MaxPayloadBytes() != segment.MaxBatchBytes || l.MaxChunkBytes() != MaxCheckpointChunkBytes {
		t.Errorf("with the default files a record has at most %d bytes, a chunk %d", l.MaxPayloadBytes(), l.MaxChunkBytes())
	}
}

func TestFileNames(t *testing.T) {
	for _, n := range []uint64{1, 42, 9999999999, 10000000000, 1<<63 - 1} {
		if got, ok := parseName(strings.TrimPrefix(fileName(n), dirName+"/")); !ok || got != n {
			t.Errorf("%d: %d %v", n, got, ok)
		}
	}
	for _, name := range []string{
		"", "x", "1.clog", "0000000000.clog", "00000000001.clog", "0000000001.seg", "+000000001.clog", "-000000001.clog",
		"0x00000001.clog", "99999999999999999999.clog", "0000000001.clog.tmp",
	} {
		if n, ok := parseName(name); ok {
			t.Errorf("%q is taken for file %d", name, n)
		}
	}
}

// TestFull checks that MaxLiveBytes stops the log visibly, that Release lets it go on, and that Headroom counts down to
// the stop.
func TestFull(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	last := l.Headroom()
	if last <= 0 || l.Full() || l.Current() != 1 {
		t.Fatalf("before the start: headroom %d, full %v, file %d", last, l.Full(), l.Current())
	}
	m.put(1 << 20)
	for range 200 {
		step(t, l, 1)
		if h := l.Headroom(); h > last {
			t.Fatalf("headroom grew from %d to %d", last, h)
		} else {
			last = h
		}
	}
	if s := l.Stats(); !l.Full() || !s.Full || s.StallsFull != 1 || s.Files != 4 || last >= l.minRoom() ||
		l.LiveBytes() > l.opts.MaxLiveBytes {
		t.Fatalf("headroom %d: %+v", last, l.Stats())
	}
	acked, oldest := m.acked, l.Oldest()
	step(t, l, 5)
	if m.acked != acked {
		t.Fatal("a full log acknowledges")
	}
	l.Release(oldest + 1)
	step(t, l, 20)
	if m.acked <= acked || l.Oldest() != oldest+1 || l.Stats().Files != 5 {
		t.Errorf("one file released: %d acknowledged after %d: %+v", m.acked, acked, l.Stats())
	}
	current := l.Current()
	l.Release(1 << 40) // more than exists: releases all but the current file, and none of the files to come
	m.mu.Lock()
	m.stored, m.waiting = m.acked, 0
	m.mu.Unlock()
	step(t, l, 20)
	if l.Full() || l.Oldest() != current || l.Headroom() <= last {
		t.Errorf("all released: %+v", l.Stats())
	}
}

// TestFullAtStart checks that a log that is full when it is opened begins one more file, because its source may need a
// record before it can release the others. Starts that release nothing end at twice the limit.
func TestFullAtStart(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	m.put(1 << 20)
	starts := 0
	for full := false; !full; starts++ {
		if starts == 10 {
			t.Fatal("each start takes more of the disk")
		}
		l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
		before := m.acked
		step(t, l, 200)
		if full = m.acked == before; !l.Full() || l.LiveBytes() > 2*l.opts.MaxLiveBytes {
			t.Fatalf("start %d: %+v", starts, l.Stats())
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if starts != 6 {
		t.Errorf("%d starts begin a file", starts-1)
	}
}

// TestReleasedAtOnce checks that files that are released many at a time are all reused: none is removed only for a new
// one to be written.
func TestReleasedAtOnce(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	var first Stats
	for round := range 5 {
		m.put(1 << 20)
		step(t, l, 200)
		if !l.Full() {
			t.Fatalf("round %d: the log is not full: %+v", round, l.Stats())
		}
		if round == 0 {
			first = l.Stats()
		}
		l.Release(l.Current())
		m.mu.Lock()
		m.stored, m.waiting = m.acked, 0
		m.mu.Unlock()
		step(t, l, 20)
	}
	if s := l.Stats(); s.Removed != 0 || s.Prepared > first.Prepared+1 || s.Recycled < 4*3 {
		t.Errorf("%d files made, %d of them in the first round, %d used again, %d removed",
			s.Prepared, first.Prepared, s.Recycled, s.Removed)
	}
}

// TestIdleRelease checks that files are given back although no more records come: a mark says that they are not needed.
func TestIdleRelease(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(100)
	step(t, l, 200)
	if m.acked != 100 || l.Oldest() == l.Current() {
		t.Fatalf("%d acknowledged, files %d to %d", m.acked, l.Oldest(), l.Current())
	}
	l.Release(m.release())
	step(t, l, 5)
	if s := l.Stats(); s.Oldest != s.Current || s.Marks != 1 {
		t.Errorf("%+v", s)
	}
	for crash := range uint64(10) {
		r, _, err := recovered(d.Crash(crash), l.arena, m)
		if err == nil {
			err = r.check()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	step(t, l, 5)
	if s := l.Stats(); s.Marks != 1 {
		t.Errorf("%d marks for one release", s.Marks)
	}
}

// TestPacking checks that small groups share a buffer, that a record too large for any buffer gets its own, and that a
// record that does not fit waits for the next group.
func TestPacking(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	sizes := []int{1000, 1000, 1000, 15_000, 16_000, 17_000, 1000, segment.HeaderBytes}
	m.size = func(id uint64) int { return sizes[id] }
	var last *aio.Buf
	changes, large := 0, 0
	m.retain = func(b *aio.Buf) {
		if b != last {
			changes++
		}
		if last = b; b.Index() < 0 {
			large++
		}
	}
	arena := testArena(t, 4*aio.BlockBytes, 3)
	opts := small(0)
	opts.FileBytes, opts.MaxLiveBytes = 64*aio.BlockBytes, 128*aio.BlockBytes
	l := openOn(t, d, arena, opts, m)
	for range sizes {
		m.put(1)
		step(t, l, 10)
	}
	if m.acked != uint64(len(sizes)) || large != 1 || changes != 5 {
		t.Errorf("%d acknowledged, %d large buffers, %d buffers one after the other", m.acked, large, changes)
	}
	if arena.Free() != 2 || arena.LargeBytes() != 0 {
		t.Errorf("%d buffers free, %d bytes in large ones: the log keeps only the open one", arena.Free(), arena.LargeBytes())
	}
}

// TestLargest writes and recovers the largest record, with the default sizes.
func TestLargest(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	m.size = func(id uint64) int { return segment.MaxBatchBytes - int(id) }
	l := openOn(t, d, testArena(t, 1<<20, 2), Options{Store: testStore, Inline: true}, m)
	m.put(3)
	step(t, l, 20)
	if m.acked != 3 {
		t.Fatalf("%d acknowledged: %+v", m.acked, l.Stats())
	}
	r := &replayed{m: m}
	next, _, err := Open(d.Crash(1), l.arena, Options{Store: testStore, Inline: true}, r)
	if err != nil || r.next != 3 {
		t.Fatalf("%v, %d records", err, r.next)
	}
	next.stage.free()
}

// TestBuffersShort checks that the log waits while no buffer is free, and that a returned buffer wakes it.
func TestBuffersShort(t *testing.T) {
	disk := openDisk(t, t.TempDir(), aio.ModeAuto)
	defer disk.Close()
	arena := testArena(t, 4*aio.BlockBytes, 2)
	m := newModel()
	m.size = func(id uint64) int { return 15_000 + int(id%2)*2_000*int(id%4/3) } // one per buffer; some need a large
	taken := make(chan *aio.Buf, 100)
	m.retain = func(b *aio.Buf) {
		b.Retain()
		taken <- b
	}
	arena.SetMaxLargeBytes(6 * aio.BlockBytes)
	l, _, err := Open(disk, arena, Options{FileBytes: 1 << 20, Store: testStore}, &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	done := make(chan error, 1)
	go func() { done <- l.Run() }()
	m.put(30)
	l.Wake()
	// Two buffers and a large one are in use: the log can only go on with the buffers that are released here.
	for range 30 {
		(<-taken).Release()
	}
	l.Stop()
	if err := <-done; err != nil || m.acked != 30 {
		t.Fatalf("%v, %d acknowledged", err, m.acked)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestStopFlushes checks that Stop loses no record, even right after records came and before the first file is ready.
func TestStopFlushes(t *testing.T) {
	disk := openDisk(t, t.TempDir(), aio.ModeAuto)
	defer disk.Close()
	arena := testArena(t, 4*aio.BlockBytes, 2)
	m := newModel()
	l, _, err := Open(disk, arena, Options{FileBytes: 4 << 20, Store: testStore}, &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	m.put(500)
	l.Stop()
	if err := l.Run(); err != nil || m.acked != 500 {
		t.Fatalf("%v, %d acknowledged: %+v", err, m.acked, l.Stats())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l.Wake() // harmless
	l.Release(99)
	r, report, err := recovered(disk, arena, m)
	if err != nil || r.next != 500 {
		t.Errorf("%v: %d records, %+v", err, r.next, report)
	}
	if report.LastSeq != l.Durable() {
		t.Errorf("group %d was durable, and the log ends with %d", l.Durable(), report.LastSeq)
	}
	// The last group is a mark, so that damage to any other group is corruption and not a torn tail (B31).
	var last GroupInfo
	err = Scan(disk, func(_ FileInfo, g GroupInfo, _ []RecordInfo) error {
		last = g
		return nil
	})
	if err != nil || last.Records != 0 || last.Durable != last.Seq-1 || last.Seq != report.LastSeq {
		t.Errorf("%v: the log ends with %+v", err, last)
	}
}

// TestMisuse checks that programming errors panic with BUG.
func TestMisuse(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	step(t, l, 1)
	g := l.idle[0]
	l.begin(g)
	tests := map[string]func(){
		"type 0":      func() { g.Reserve(Placement{}, 100) },
		"own type":    func() { g.Reserve(Placement{Type: Checkpoint}, 100) },
		"too large":   func() { g.Reserve(Placement{Type: Batch}, MaxPayloadBytes+1) },
		"negative":    func() { g.Reserve(Placement{Type: Truncate}, -1) },
		"short batch": func() { g.Reserve(Placement{Type: Batch}, segment.HeaderBytes-1) },
		"unsealed batch": func() {
			clear(g.Reserve(Placement{Type: Batch}, 100))
			g.seal(&groupHeader{BlockShift: 12, File: 1})
		},
		"long chunk":   func() { l.stage.emit(make([]byte, l.MaxChunkBytes()+1)) },
		"second start": func() { _ = l.Start() },
	}
	for name, misuse := range tests {
		func() {
			defer func() {
				if s, _ := recover().(string); !strings.HasPrefix(s, "BUG: clog: ") {
					t.Errorf("%s: %q", name, s)
				}
			}()
			misuse()
		}()
	}
}

// TestNoAllocations checks that a group causes no allocation from Gather to Durable, through the queue or without it.
func TestNoAllocations(t *testing.T) {
	for _, direct := range []int{-1, 0} {
		disk := openDisk(t, t.TempDir(), aio.ModePwrite)
		src := new(trivial)
		l := openOn(t, disk, testArena(t, 64<<10, 4), Options{
			FileBytes: 64 << 20, Store: testStore, Inline: true, DirectBytes: direct,
		}, src)
		src.want = 1
		for src.durable < 10 {
			step(t, l, 1)
			src.want = 1
		}
		n := testing.AllocsPerRun(500, func() {
			src.want = 4
			for until := src.durable + 1; src.durable < until; {
				if _, err := l.Step(true); err != nil {
					t.Fatal(err)
				}
			}
		})
		if n != 0 {
			t.Errorf("up to %d bytes without the queue: %v allocations a group", direct, n)
		}
		t.Cleanup(func() {
			if err := disk.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// trivial is a Source of want equal batches.
type trivial struct {
	want    int
	durable int
	header  segment.Header
}

func (s *trivial) Gather(g *Group) {
	for ; s.want > 0; s.want-- {
		p := g.Reserve(Placement{Type: Batch, Topic: testStore, Partition: 1}, 512)
		if p == nil {
			return
		}
		body := p[segment.HeaderBytes:]
		clear(body)
		s.header = segment.Header{
			Flags: segment.FlagControl, BodyBytes: uint32(len(body)), BodyCRC: batch.Checksum(body), Position: 1,
		}
		s.header.Encode(p)
	}
}

func (s *trivial) Durable(*Group)          { s.durable++ }
func (s *trivial) Checkpoint(func([]byte)) {}
func (s *trivial) CheckpointBytes() int64  { return 0 }
func (s *trivial) Failed(err error)        { panic(err) }

// LiveBytes is how many bytes recovery would have to read now.
func (l *Log) LiveBytes() int64 { return l.stats.liveBytes.Load() }

// Full says that the log waits for Release: MaxLiveBytes is reached.
func (l *Log) Full() bool { return l.stats.full.Load() }
