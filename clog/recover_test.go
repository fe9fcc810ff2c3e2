package clog

import (
	"errors"
	"maps"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// corrupt stands for any *segment.CorruptError.
var corrupt error = new(segment.CorruptError)

// recoveryCases forge what crashes, damage and operators leave, and say what recovery must make of it.
var recoveryCases = []struct {
	name    string
	build   func(f *forge)
	start   uint64 // the count in the checkpoint
	records uint64 // that count and the records replayed after it
	err     error  // nil, an error for errors.Is, or corrupt
	says    string // part of the error
}{
	{name: "nothing", build: func(*forge) {}},
	{name: "a file that was only prepared", build: func(f *forge) { f.files[1] = nil }},
	{name: "a file shorter than a block", build: func(f *forge) { f.files[1] = make([]byte, 0) }},
	{name: "one file", build: func(f *forge) { f.checkpoint(1); f.records(1, 3); f.records(1, 2) }, records: 5},
	{
		name: "two files", build: func(f *forge) { f.checkpoint(1); f.records(1, 3); f.checkpoint(2); f.records(2, 2) },
		records: 5,
	},
	{
		name:  "numbers with a gap",
		build: func(f *forge) { f.checkpoint(1); f.records(1, 3); f.checkpoint(7); f.records(7, 2) }, records: 5,
	},
	{name: "ends in a mark", build: func(f *forge) { f.checkpoint(1); f.records(1, 3); f.mark(1) }, records: 3},
	{
		name: "the oldest files are gone, as promised", records: 5, start: 3,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 3)
			f.h.Oldest = 2
			f.checkpoint(2)
			f.records(2, 2)
			delete(f.files, 1)
		},
	},
	{
		name: "the oldest file is gone", records: 5, start: 3, err: corrupt, says: "clog/0000000001.clog is missing (",
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 3)
			f.checkpoint(2)
			f.records(2, 2)
			delete(f.files, 1)
		},
	},
	{
		name: "a file in the middle is gone", records: 3, err: corrupt, says: "clog/0000000002.clog is missing (group",
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 3)
			f.checkpoint(2)
			f.records(2, 2)
			f.checkpoint(3)
			delete(f.files, 2)
		},
	},
	{
		name: "the last group is torn", records: 3,
		build: func(f *forge) { f.checkpoint(1); f.records(1, 3); f.records(1, 1); f.drop(1, 1) },
	},
	{
		name: "the last but one is lost, the last was in flight with it", records: 3,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 3)
			f.records(1, 1)
			f.drop(1, 1)
			f.group(1, func(g *Group) { g.add(&Placement{Type: Tombstone}, 0, 4) })
			f.lower(1, 2) // it promises only what was durable
		},
	},
	{
		name: "the last but one is lost, the last promises it", records: 3, err: corrupt, says: "group 3",
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 3)
			f.records(1, 1)
			f.drop(1, 1)
			f.records(1, 1)
		},
	},
	{
		name: "a group was lost, a later file promises it", records: 3, err: corrupt,
		build: func(f *forge) { f.checkpoint(1); f.records(1, 3); f.records(1, 1); f.drop(1, 1); f.checkpoint(2) },
	},
	{
		name: "a cut tail of another life, then the next file", records: 5,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 3)
			cut := *f // the life that was cut had two groups in flight and lost the first
			cut.records(1, 1)
			cut.drop(1, 1)
			cut.group(1, func(g *Group) { g.add(&Placement{Type: Tombstone}, 0, 4) })
			cut.lower(1, 2)
			f.checkpoint(2)
			f.records(2, 2)
		},
	},
	{
		name: "a torn group of a cut life, then the next file", records: 5,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 3)
			cut := *f
			cut.records(1, 1)
			f.damage(1, len(f.files[1])-aio.BlockBytes+100)
			f.checkpoint(2)
			f.records(2, 2)
		},
	},
	{
		name: "a group that follows another one than the chain's last", records: 3,
		build: func(f *forge) { f.checkpoint(1); f.records(1, 3); f.h.CRC++; f.records(1, 1) },
	},
	{
		name: "a group whose number skips one", records: 3, err: corrupt, says: "group 4 stands where group 3 belongs",
		build: func(f *forge) { f.checkpoint(1); f.records(1, 3); f.h.Seq++; f.records(1, 1) },
	},
	{
		name: "recycled groups of an older number", records: 3,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 3)
			stale := *f
			stale.files = map[uint64][]byte{}
			stale.records(9, 4) // continues the chain in every way except for its file's number
			f.files[1] = append(f.files[1], stale.files[9]...)
		},
	},
	{
		name: "the first file's checkpoint is cut, nothing follows", records: 0,
		build: func(f *forge) {
			f.group(1, func(g *Group) { clear(g.add(&Placement{Type: Checkpoint}, 0, 16)) })
		},
	},
	{
		name: "the first file's checkpoint is cut, another life follows", records: 2,
		build: func(f *forge) {
			f.group(1, func(g *Group) { clear(g.add(&Placement{Type: Checkpoint}, 0, 16)) })
			f.checkpoint(2)
			f.records(2, 2)
		},
	},
	{
		name: "the first file does not begin with a group, but it was needed", err: corrupt, says: "does not begin",
		build: func(f *forge) { f.checkpoint(1); f.records(1, 2); f.damage(1, 20); f.checkpoint(2) },
	},
	{
		name: "the first file does not begin with a group and was not needed", start: 2, records: 2,
		build: func(f *forge) { f.checkpoint(1); f.records(1, 2); f.damage(1, 20); f.h.Oldest = 2; f.checkpoint(2) },
	},
	{
		name: "records before the checkpoint", err: corrupt, says: "out of order",
		build: func(f *forge) { f.records(1, 2); f.mark(1) },
	},
	{
		name: "a second checkpoint in a file", records: 2, err: corrupt, says: "out of order",
		build: func(f *forge) { f.checkpoint(1); f.records(1, 2); f.checkpoint(1); f.mark(1) },
	},
	{
		name: "a missing chunk", err: corrupt, says: "group 2 is cut or out of order",
		build: func(f *forge) {
			f.group(1, func(g *Group) { clear(g.add(&Placement{Type: Checkpoint}, 0, 16)) })
			f.group(1, func(g *Group) { clear(g.add(&Placement{Type: Checkpoint, Partition: 2}, flagLast, 16)) })
			f.mark(1)
		},
	},
	{
		name: "another store", err: ErrForeign, says: "nothing was changed",
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 2)
			f.h.Store = uuid.MustParse("5eed5eed-0000-4000-8000-000000000002")
			f.checkpoint(2)
		},
	},
	{
		name: "a newer version", err: ErrNewer, says: "newer version",
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 2)
			f.checkpoint(2)
			f.files[2][offVersion] = Version + 1
			f.reseal(2, 0)
		},
	},
	{
		name: "a newer version's recycled file", records: 2,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 2)
			stale := *f
			stale.checkpoint(2)
			p := f.files[2]
			p[offVersion] = Version + 1
			f.reseal(2, 0)
			f.files[3] = p
			delete(f.files, 2)
		},
	},
	{
		name: "a file that was not needed is whole: what it holds is in segments and is not replayed", start: 5, records: 8,
		build: func(f *forge) { f.twoFiles(2) },
	},
	{
		name: "the file that the last group names has no whole checkpoint", records: 5,
		build: func(f *forge) { f.halfCheckpoint() },
	},
	{
		name: "the same, and the file before is damaged", records: 3, err: corrupt, says: "clog/0000000001.clog is corrupt",
		build: func(f *forge) { f.halfCheckpoint(); f.damage(1, 2*aio.BlockBytes+100) },
	},
	{
		name: "a file that was not needed is damaged", start: 5, records: 8,
		build: func(f *forge) { f.twoFiles(2); f.damage(1, 2*aio.BlockBytes+100) },
	},
	{
		name: "the head of a file that was not needed is damaged", start: 5, records: 8,
		build: func(f *forge) { f.twoFiles(2); f.damage(1, 20) },
	},
	{
		name: "the last group of a file that was not needed is damaged", start: 5, records: 8,
		build: func(f *forge) { f.twoFiles(2); f.damage(1, len(f.files[1])-aio.BlockBytes+100) },
	},
	{
		name: "a damaged file was needed until the end", records: 3, err: corrupt, says: "clog/0000000001.clog is corrupt",
		build: func(f *forge) { f.twoFiles(1); f.damage(1, 2*aio.BlockBytes+100) },
	},
	{
		name: "a file was not needed, and the first one that was is damaged, too", records: 3, err: corrupt,
		says:  "clog/0000000001.clog is corrupt",
		build: func(f *forge) { f.twoFiles(2); f.damage(1, 2*aio.BlockBytes+100); f.damage(2, aio.BlockBytes+100) },
	},
	{
		name: "the group that says that a damaged file was not needed is torn", records: 3, err: corrupt,
		says: "clog/0000000001.clog is corrupt",
		build: func(f *forge) {
			f.twoFiles(2)
			f.damage(1, 2*aio.BlockBytes+100)
			f.damage(2, len(f.files[2])-aio.BlockBytes+100)
		},
	},
	{
		name: "of two files that were not needed the second is damaged", start: 6, records: 9,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 1)
			f.threeFiles(3)
			f.damage(2, aio.BlockBytes+100)
		},
	},
	{
		name: "two files that were not needed are damaged", start: 6, records: 9,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 1)
			f.threeFiles(3)
			f.damage(1, aio.BlockBytes+100)
			f.damage(2, 100)
		},
	},
	{
		name: "of two damaged files only the first was not needed", err: corrupt, says: "clog/0000000001.clog is corrupt",
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 1)
			f.threeFiles(2)
			f.damage(1, aio.BlockBytes+100)
			f.damage(2, aio.BlockBytes+100)
		},
	},
	{
		name: "a file that was not needed came back, the next one not", start: 6, records: 9,
		build: func(f *forge) {
			f.checkpoint(1)
			f.records(1, 1)
			f.threeFiles(3)
			delete(f.files, 2)
		},
	},
	{
		name: "a damaged file was not needed, and a later life's only group is damaged", records: 3, err: corrupt,
		says: "clog/0000000001.clog is corrupt",
		build: func(f *forge) {
			f.twoFiles(2)
			f.damage(1, 2*aio.BlockBytes+100)
			f.h.Oldest = 1 // it may have needed the file again, because it had read the file
			f.checkpoint(3)
			f.damage(3, 20)
		},
	},
	{
		name: "a damaged file was not needed, the next one was prepared from an older one", start: 5, records: 8,
		build: func(f *forge) {
			stale := *f
			stale.files = map[uint64][]byte{}
			stale.checkpoint(9)
			f.twoFiles(2)
			f.damage(1, 2*aio.BlockBytes+100)
			f.files[3] = stale.files[9]
		},
	},
}

func TestRecoveryCases(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 2)
	for _, tt := range recoveryCases {
		t.Run(tt.name, func(t *testing.T) {
			f := newForge()
			tt.build(f)
			d := f.disk(t)
			before := content(t, d)
			f.m.added, f.m.stored = f.next, tt.start
			r, report, err := recovered(d, arena, f.m)
			var c *segment.CorruptError
			if tt.err == corrupt && !errors.As(err, &c) || tt.err != corrupt && !errors.Is(err, tt.err) {
				t.Fatalf("%v, want %v (%+v)", err, tt.err, report)
			}
			if err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q does not say %q", err, tt.says)
			}
			if err != nil && !maps.Equal(before, content(t, d)) {
				t.Error("the log was changed although it could not be opened")
			}
			if r.next != tt.records || r.start != tt.start {
				t.Errorf("records %d to %d, want %d to %d", r.start, r.next, tt.start, tt.records)
			}
		})
	}
}

// TestFlipInEveryDurableGroup flips bytes all over a log that ends in a mark, as a clean stop leaves it. Every group is
// promised, so recovery reports corruption and never silently finds less (B31).
func TestFlipInEveryDurableGroup(t *testing.T) {
	f := newForge()
	f.checkpoint(1)
	f.records(1, 3)
	f.records(1, 40)
	f.checkpoint(2)
	f.records(2, 9)
	f.mark(2)
	f.m.added = f.next
	arena := testArena(t, 4*aio.BlockBytes, 2)
	for number, p := range f.files {
		end := len(p)
		if number == 2 {
			end -= aio.BlockBytes // nothing promises the mark itself, and nothing is lost with it
		}
		for off := 0; off < end; off += 41 {
			bit := byte(1) << (off % 8)
			p[off] ^= bit
			_, _, err := recovered(f.disk(t), arena, f.m)
			p[off] ^= bit
			var c *segment.CorruptError
			if !errors.As(err, &c) {
				t.Fatalf("file %d, byte %d: %v", number, off, err)
			}
			if c.Path != fileName(number) || c.Offset > int64(off) || c.Offset < int64(off)-int64(len(p)) {
				t.Errorf("file %d, byte %d: the error names %s at %d", number, off, c.Path, c.Offset)
			}
		}
	}
	f.damage(2, len(f.files[2])-aio.BlockBytes+3)
	if r, _, err := recovered(f.disk(t), arena, f.m); err != nil || r.next != f.next {
		t.Errorf("a damaged mark at the end: %v, %d of %d records", err, r.next, f.next)
	}
}

// TestUnreadable checks that a read error is never taken for the end of the log.
func TestUnreadable(t *testing.T) {
	f := newForge()
	f.checkpoint(1)
	f.records(1, 3)
	d := f.disk(t)
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, After: 1, Err: syscall.EIO, Count: -1})
	_, report, err := recovered(d, testArena(t, 4*aio.BlockBytes, 2), f.m)
	var c *segment.CorruptError
	if !errors.As(err, &c) || !errors.Is(err, syscall.EIO) || report.Groups != 0 {
		t.Errorf("%v, %+v", err, report)
	}
}

// TestUnreadableUnneeded checks that a read error in a file that is no longer needed is treated as damage there.
func TestUnreadableUnneeded(t *testing.T) {
	for after := range 2 { // its first block, then the rest of the file
		for oldest := uint64(1); oldest <= 2; oldest++ {
			f := newForge()
			f.twoFiles(oldest)
			f.m.added, f.m.stored = f.next, 5
			d := f.disk(t)
			d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: fileName(1), After: after, Err: syscall.EIO, Count: -1})
			r, report, err := recovered(d, testArena(t, 4*aio.BlockBytes, 2), f.m)
			if oldest == 1 {
				if !errors.As(err, new(*segment.CorruptError)) || !errors.Is(err, syscall.EIO) || report.Groups != 0 {
					t.Errorf("read %d of a file that is needed: %v, %+v", after, err, report)
				}
				continue
			}
			if err != nil || r.start != 5 || r.next != 8 || !errors.Is(report.Unneeded, syscall.EIO) || report.OldestFile != 2 {
				t.Errorf("read %d: %v, records %d to %d, %+v", after, err, r.start, r.next, report)
			}
		}
	}
}

// TestMoreMemory checks that a replayer that keeps everything gets more than the arena's limit: without the memory
// there is no log.
func TestMoreMemory(t *testing.T) {
	f := newForge()
	for file := uint64(1); file < 6; file++ {
		f.checkpoint(file)
		f.records(file, 40)
	}
	f.m.added = f.next
	arena := testArena(t, 4*aio.BlockBytes, 2)
	arena.SetMaxLargeBytes(aio.BlockBytes)
	r := &replayed{m: f.m, keep: true}
	l, _, err := Open(f.disk(t), arena, small(0), r)
	if err != nil || r.next != f.next {
		t.Fatalf("%v: %d of %d records", err, r.next, f.next)
	}
	if arena.LargeBytes() == 0 {
		t.Error("nothing was kept")
	}
	r.release()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestLogWithoutAFile checks that a log without one of its files names it, and says what to do first.
func TestLogWithoutAFile(t *testing.T) {
	f := newForge()
	f.checkpoint(1)
	f.checkpoint(2)
	f.checkpoint(3)
	delete(f.files, 2)
	l, _, err := Open(f.disk(t), testArena(t, 4*aio.BlockBytes, 2), small(0), &replayed{m: f.m})
	var corrupt *segment.CorruptError
	if !errors.As(err, &corrupt) || !corrupt.Missing || corrupt.Path != "clog/0000000002.clog" || l == nil {
		t.Fatal(err)
	}
	l.SetSource(f.m)
	if run := l.Run(); run == nil || !strings.Contains(run.Error(), "a file of it is missing: put it back") ||
		!strings.Contains(run.Error(), corrupt.Path) {
		t.Errorf("it says %v", run)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestDamagedLog checks that Open returns a log along with the error. That log takes nothing and changes nothing, so
// that whatever could be read can still be served.
func TestDamagedLog(t *testing.T) {
	f := newForge()
	f.checkpoint(1)
	f.records(1, 3)
	f.records(1, 3)
	f.mark(1)
	f.damage(1, 2*aio.BlockBytes+100)
	d := f.disk(t)
	before := content(t, d)
	r := &replayed{m: f.m}
	l, report, err := Open(d, testArena(t, 4*aio.BlockBytes, 2), small(0), r)
	if !errors.As(err, new(*segment.CorruptError)) || l == nil || r.next != 3 || report.Records != 3 {
		t.Fatalf("%v, log %v, %d records, %+v", err, l, r.next, report)
	}
	l.SetSource(f.m)
	f.m.put(1)
	l.Wake()
	l.Release(99)
	if run := l.Run(); !errors.Is(run, ErrFailed) || !errors.Is(run, err) || f.m.failed != 1 || f.m.acked != 0 {
		t.Errorf("%v; failed %d times, %d acknowledged", run, f.m.failed, f.m.acked)
	}
	if s := l.Stats(); !s.Failed || s.Oldest != 1 || s.Current != 1 || l.Headroom() != 0 {
		t.Errorf("%+v", s)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if !maps.Equal(before, content(t, d)) {
		t.Error("the log was changed")
	}
}

// TestReplayerError checks that an error of the replayer ends recovery, changes nothing and is returned.
func TestReplayerError(t *testing.T) {
	f := newForge()
	f.checkpoint(1)
	f.records(1, 3)
	f.m.size = func(uint64) int { return 100 } // not the size that the records have
	d := f.disk(t)
	before := content(t, d)
	if _, _, err := recovered(d, testArena(t, 4*aio.BlockBytes, 2), f.m); err == nil ||
		!strings.Contains(err.Error(), "other bytes") {
		t.Errorf("%v", err)
	}
	if !maps.Equal(before, content(t, d)) {
		t.Error("the log was changed")
	}
}

// TestRetainedWindows checks that a replayer may keep all buffers: their contents do not change while recovery reads
// on.
func TestRetainedWindows(t *testing.T) {
	f := newForge()
	for file := uint64(1); file < 6; file++ {
		f.checkpoint(file)
		for range 10 {
			f.records(file, 20)
		}
	}
	f.m.added = f.next
	arena := testArena(t, 4*aio.BlockBytes, 2)
	k := &keeper{}
	l, _, err := Open(f.disk(t), arena, small(0), k)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for i, p := range k.payloads {
		want := make([]byte, f.m.size(uint64(i)))
		if fill(want, uint64(i)); string(want) != string(p) {
			t.Fatalf("record %d changed after it was replayed", i)
		}
		k.bufs[i].Release()
	}
	if len(k.payloads) != int(f.next) {
		t.Errorf("%d of %d records", len(k.payloads), f.next)
	}
}

// keeper is a Replayer that keeps every payload where it is.
type keeper struct {
	payloads [][]byte
	bufs     []*aio.Buf
}

func (*keeper) Restart()                {}
func (*keeper) Checkpoint([]byte) error { return nil }

func (k *keeper) Record(r *Record) error {
	r.Buf.Retain()
	k.payloads, k.bufs = append(k.payloads, r.Payload), append(k.bufs, r.Buf)
	return nil
}
