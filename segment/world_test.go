package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

var testIdentity = Identity{Topic: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), Partition: 3}

const testDir = "topics/6ba7b810-9dad-11d1-80b4-00c04fd430c8/3"

// testSizes make new segments frequent: 8 KiB, 16 KiB, 32 KiB, 32 KiB, ...
var testSizes = Sizes{MinSegmentBytes: 8 << 10, MaxSegmentBytes: 32 << 10}

var testOptions = Options{IndexEveryBytes: 1 << 10, MaxMappedSegments: 2, Noted: true}

// stored is one batch of the model, with what the log must answer for it.
type stored struct {
	data  []byte
	slice Slice // without Buf and Data
	after State // the partition's state after the batch
}

// world is one partition, driven as the engine drives it, together with the model.
type world struct {
	t     testing.TB
	disk  aio.Disk
	arena *aio.Arena
	w     *Writer
	sizes Sizes
	opts  Options
	dir   string
	id    Identity

	log     *Log
	st      State
	begin   State // state before model[0]
	model   []stored
	fileSeq uint64
	now     int64
}

func newArena(t testing.TB) *aio.Arena {
	t.Helper()
	arena, err := aio.NewArena(64<<10, 256)
	if err != nil {
		t.Fatal(err)
	}
	return arena
}

func newWorld(t testing.TB, disk aio.Disk) *world {
	t.Helper()
	return newWorldOf(t, disk, testSizes, testOptions)
}

func newWorldOf(t testing.TB, disk aio.Disk, sizes Sizes, opts Options) *world {
	t.Helper()
	w := &world{
		t: t, disk: disk, arena: newArena(t), w: NewWriter(), sizes: sizes, opts: opts, dir: testDir, id: testIdentity,
		now: 1_700_000_000_000_000_000, fileSeq: 1,
	}
	w.arena.SetPoison(true)
	t.Cleanup(func() {
		if w.log != nil {
			_ = w.log.Close()
		}
		w.w.Close()
		if free := w.arena.Free(); free != w.arena.Count() && !t.Failed() {
			t.Errorf("%d buffers leaked", w.arena.Count()-free)
		}
		_ = w.arena.Close()
	})
	w.open(State{})
	return w
}

func memoryDisk() aio.Disk { return faultaio.New(faultaio.Options{Seed: 1}) }

// onDisks runs a test on the simulated disk and on a real file system.
func onDisks(t *testing.T, test func(t *testing.T, disk aio.Disk)) {
	t.Run("memory", func(t *testing.T) { test(t, memoryDisk()) })
	t.Run("files", func(t *testing.T) { test(t, realDisk(t)) })
}

// trials is n, or a fifth of it for -short: race detection and the order of locks slow these tests down, and learn
// little from repetitions.
func trials(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

func realDisk(t testing.TB) aio.Disk {
	t.Helper()
	disk, err := aio.OpenDisk(t.TempDir(), aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	return disk
}

func (w *world) open(st State) {
	w.t.Helper()
	log, err := Open(w.disk, w.dir, w.id, st, w.opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.log = log
}

// batch builds the next batch, stamped: n messages of size bytes, or a control batch if n is 0.
func (w *world) batch(n, size int) []byte {
	w.t.Helper()
	w.now += 1000
	var p []byte
	if n == 0 {
		p = append(make([]byte, HeaderBytes), bytes.Repeat([]byte{byte(w.st.Next)}, size)...)
		h := Header{Flags: FlagControl, BodyBytes: uint32(size), BodyCRC: batch.Checksum(p[HeaderBytes:])}
		h.Encode(p)
	} else {
		var b batch.Builder
		b.Reset(CodecNone)
		for i := range n {
			body := bytes.Repeat([]byte{byte(w.st.NextID) + byte(i)}, size)
			if err := b.Add(&Record{Body: body}); err != nil {
				w.t.Fatal(err)
			}
		}
		p, _ = b.Seal(w.now)
	}
	batch.Stamp(p, w.st.Next, w.st.NextID, w.st.Epoch, w.now, w.st.LastCRC)
	return p
}

// append seals a batch: it places and stamps it, copies it to a buffer, and hands it to the log.
func (w *world) append(n, size int) {
	w.t.Helper()
	w.put(w.batch(n, size))
}

func (w *world) put(p []byte) {
	w.t.Helper()
	var h Header
	if err := h.Decode(p); err != nil {
		w.t.Fatal(err)
	}
	st := w.st
	w.sizes.Place(&st, len(p))
	s := Slice{
		Position: h.Position, FirstID: h.FirstID, Count: h.Count, Control: h.Control(), Appended: h.Appended,
		Offset: st.End, Segment: st.Segment, SegmentBase: st.SegmentBase, SegmentCapacity: st.SegmentCapacity,
		FileSeq: w.fileSeq,
	}
	st.Advance(&h)
	w.model = append(w.model, stored{bytes.Clone(p), s, st})
	w.st = st
	w.hand(&w.model[len(w.model)-1])
}

// hand gives a batch of the model to the log in a buffer.
func (w *world) hand(m *stored) {
	w.t.Helper()
	buf := w.arena.Get()
	if buf == nil {
		w.flush()
		w.log.Evict(w.log.Flushed())
		buf = w.arena.Get()
	}
	if len(m.data) > len(buf.Bytes()) {
		buf.Release()
		var err error
		if buf, err = w.arena.GetLarge(len(m.data)); err != nil {
			w.t.Fatal(err)
		}
	}
	s := m.slice
	s.Buf = buf
	s.Data = buf.Bytes()[:copy(buf.Bytes(), m.data)]
	w.log.Append(&s)
	buf.Release()
}

// fill appends count batches of mixed sizes.
func (w *world) fill(rng *rand.Rand, count int) {
	w.t.Helper()
	for range count {
		switch rng.IntN(8) {
		case 0:
			w.append(0, rng.IntN(300))
		case 1:
			w.append(1, rng.IntN(5000))
		default:
			w.append(1+rng.IntN(5), rng.IntN(400))
		}
	}
}

func (w *world) flush() {
	w.t.Helper()
	for w.log.Unflushed() > 0 {
		n, err := w.log.Flush(w.w, 10<<10)
		if err != nil {
			w.t.Fatal(err)
		}
		if n == 0 && w.log.Unflushed() > 0 {
			w.t.Fatal("Flush wrote nothing and said nothing")
		}
	}
}

func (w *world) sync() {
	w.t.Helper()
	if err := w.log.Sync(); err != nil {
		w.t.Fatal(err)
	}
}

// settle moves everything to the files, so that nothing stays in memory.
func (w *world) settle() {
	w.t.Helper()
	w.flush()
	w.sync()
	w.log.Evict(w.st.End)
}

// reopen closes the log as a stop does and opens it from the state of the last durable batch. Then it hands over again
// what was not synced, as the replay of the commit log does.
func (w *world) reopen() {
	w.t.Helper()
	w.reopenAt(w.stateAt(w.log.Synced()))
}

func (w *world) reopenAt(st State) {
	w.t.Helper()
	if err := w.log.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.open(st)
	for i := range w.model {
		if w.model[i].slice.Offset >= st.End {
			w.hand(&w.model[i])
		}
	}
}

// stateAt is the state of the partition after the last batch that ends at or below off.
func (w *world) stateAt(off Offset) State {
	st := w.begin
	for _, m := range w.model {
		if m.after.End <= off {
			st = m.after
		}
	}
	return st
}

// truncate cuts the log and the model to keep batches.
func (w *world) truncate(keep int) {
	w.t.Helper()
	st := w.begin
	if keep > 0 {
		st = w.model[keep-1].after
	}
	if err := w.log.Truncate(st); err != nil {
		w.t.Fatalf("truncate to %d of %d batches: %v", keep, len(w.model), err)
	}
	w.model, w.st = w.model[:keep], st
	w.st.Epoch++
}

// trimmed drops everything below the log's start from the model.
func (w *world) trimmed() {
	start, _, _ := w.log.Start()
	for len(w.model) > 0 && w.model[0].slice.Offset < start {
		w.begin = w.model[0].after
		w.model = w.model[1:]
	}
}

// readAll reads the log from its start to its end and returns its batches.
func (w *world) readAll(maxBytes int) (out [][]byte, offsets []Offset, err error) {
	var v View
	at, _, _ := w.log.Start()
	for {
		err := w.log.View(&v, at, maxBytes)
		if errors.Is(err, ErrAtEnd) {
			return out, offsets, nil
		}
		if err != nil {
			return out, offsets, fmt.Errorf("at %d: %w", at, err)
		}
		if v.at != at || len(v.Bytes()) == 0 {
			v.Release()
			return out, offsets, fmt.Errorf("view at %d begins at %d with %d bytes", at, v.at, len(v.Bytes()))
		}
		var it BatchIter
		for it.Reset(v.Bytes()); ; {
			h, _, ok := it.Next()
			if !ok {
				break
			}
			out = append(out, bytes.Clone(v.Bytes()[at-v.at:][:h.Size()]))
			offsets = append(offsets, at)
			at += Offset(h.Size())
		}
		v.Release()
		if it.Err() != nil {
			return out, offsets, fmt.Errorf("in the view before %d: %w", at, it.Err())
		}
	}
}

// check compares every answer of the log with the model.
func (w *world) check() {
	w.t.Helper()
	end, next, nextID := w.log.End()
	if end != w.st.End || next != w.st.Next || nextID != w.st.NextID {
		w.t.Fatalf("end %d, %d, %d, want %d, %d, %d", end, next, nextID, w.st.End, w.st.Next, w.st.NextID)
	}
	start, pos, id := w.log.Start()
	if start != w.begin.End || pos != w.begin.Next || id != w.begin.NextID {
		w.t.Fatalf("start %d, %d, %d, want %d, %d, %d", start, pos, id, w.begin.End, w.begin.Next, w.begin.NextID)
	}
	for _, maxBytes := range []int{1, 4096, 1 << 20} {
		got, offsets, err := w.readAll(maxBytes)
		if err != nil {
			w.t.Fatalf("after %d of %d batches: %v", len(got), len(w.model), err)
		}
		if len(got) != len(w.model) {
			w.t.Fatalf("%d batches, want %d", len(got), len(w.model))
		}
		for i := range got {
			if offsets[i] != w.model[i].slice.Offset || !bytes.Equal(got[i], w.model[i].data) {
				w.t.Fatalf("batch %d at %d differs, want the one at %d", i, offsets[i], w.model[i].slice.Offset)
			}
		}
	}
	if err := w.log.Health(); err != nil {
		w.t.Fatal(err)
	}
	w.checkSeek()
}

func (w *world) checkSeek() {
	w.t.Helper()
	if len(w.model) > 0 && w.model[0].slice.FirstID > 0 {
		first := w.model[0].slice // a file that a reset has made does not know its time
		if ns := w.log.AppendedBy(first.FirstID - 1); ns < first.Appended {
			w.t.Fatalf("AppendedBy of what was trimmed is %d, and the log begins at %d", ns, first.Appended)
		}
	}
	for i := range w.model {
		s := &w.model[i].slice
		for _, id := range []MsgID{s.FirstID, s.FirstID + MsgID(s.Count)/2, s.FirstID + MsgID(s.Count) - 1} {
			if s.Count == 0 {
				break
			}
			at, first, err := w.log.Seek(id)
			if err != nil || at != s.Offset || first != s.FirstID {
				w.t.Fatalf("Seek(%d) = %d, %d, %v, want %d, %d", id, at, first, err, s.Offset, s.FirstID)
			}
			_, inMemory := w.log.seekMemory(s.Position)
			if ns := w.log.AppendedBy(id); ns <= 0 || ns > s.Appended || inMemory == nil && ns != s.Appended {
				w.t.Fatalf("AppendedBy(%d) = %d, want %d or somewhat less (in memory: %v)", id, ns, s.Appended, inMemory == nil)
			}
		}
		for _, ns := range []int64{s.Appended, s.Appended - 1} {
			at, first, err := w.log.SeekTime(ns)
			if err != nil || at != s.Offset || first != s.FirstID {
				w.t.Fatalf("SeekTime(%d) = %d, %d, %v, want %d, %d", ns, at, first, err, s.Offset, s.FirstID)
			}
		}
	}
	if at, id, err := w.log.Seek(w.st.NextID); !errors.Is(err, ErrAtEnd) || at != w.st.End || id != w.st.NextID {
		w.t.Fatalf("Seek(next) = %d, %d, %v", at, id, err)
	}
	if at, _, err := w.log.SeekTime(w.now + 1<<40); !errors.Is(err, ErrAtEnd) || at != w.st.End {
		w.t.Fatalf("SeekTime(future) = %d, %v", at, err)
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 99)) }
