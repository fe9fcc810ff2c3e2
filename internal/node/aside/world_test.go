package aside

import (
	"bytes"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// world is the log of a partition and a keeper, on one disk. Each batch has one message, which is its position in
// words, and every fourth is a control batch.
type world struct {
	t     *testing.T
	disk  *faultaio.Disk
	id    segment.Identity
	arena *aio.Arena
	log   *segment.Log
	keep  *Keeper
	clock time.Time
	said  bytes.Buffer

	st     segment.State
	states []segment.State // in front of each batch
	crcs   []uint32        // of each batch
}

var testSizes = segment.Sizes{MinSegmentBytes: 8 << 10, MaxSegmentBytes: 8 << 10}

func newWorld(t *testing.T, limits Limits) *world {
	t.Helper()
	w := &world{
		t: t, disk: faultaio.New(faultaio.Options{Seed: 1, Log: true}),
		id:    segment.Identity{Topic: uuid.UUID{7}, Partition: 3},
		clock: time.Unix(1_800_000_000, 0),
	}
	var err error
	if w.arena, err = aio.NewArena(64<<10, 256); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.arena.Close() })
	w.log, err = segment.Open(w.disk, "topics/t/3", w.id, segment.State{}, segment.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.log.Close() })
	w.begin(limits)
	return w
}

// begin makes the keeper anew, as a start does.
func (w *world) begin(limits Limits) {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(&w.said, nil))
	w.keep = New(w.disk, log, func() time.Time { return w.clock }, limits)
	if err := w.keep.Load(); err != nil {
		w.t.Fatal(err)
	}
}

func message(pos segment.Position) string { return fmt.Sprintf("message %d", pos) }

// append adds n batches of about size bytes each, of the epoch.
func (w *world) append(n, size int, epoch segment.Epoch) {
	w.t.Helper()
	for range n {
		var p []byte
		now := w.clock.UnixNano() + int64(w.st.Next)
		if w.st.Next%4 == 0 {
			p = append(make([]byte, segment.HeaderBytes), make([]byte, size)...)
			h := segment.Header{
				Flags: segment.FlagControl, BodyBytes: uint32(size), BodyCRC: batch.Checksum(p[segment.HeaderBytes:]),
			}
			h.Encode(p)
		} else {
			var b batch.Builder
			b.Reset(segment.CodecNone)
			body := append([]byte(message(w.st.Next)), make([]byte, size)...)
			if err := b.Add(&segment.Record{Body: body}); err != nil {
				w.t.Fatal(err)
			}
			p, _ = b.Seal(now)
		}
		crc := batch.Stamp(p, w.st.Next, w.st.NextID, epoch, now, w.st.LastCRC)
		var h segment.Header
		if err := h.Decode(p); err != nil {
			w.t.Fatal(err)
		}
		w.states, w.crcs = append(w.states, w.st), append(w.crcs, crc)
		testSizes.Place(&w.st, len(p))
		buf := w.arena.Get()
		if buf == nil {
			w.t.Fatal("no buffer is free")
		}
		s := segment.Slice{
			Buf: buf, Data: buf.Bytes()[:copy(buf.Bytes(), p)], Position: h.Position, FirstID: h.FirstID, Count: h.Count,
			Control: h.Control(), Appended: h.Appended, Offset: w.st.End, Segment: w.st.Segment,
			SegmentBase: w.st.SegmentBase, SegmentCapacity: w.st.SegmentCapacity, FileSeq: 1,
		}
		w.log.Append(&s)
		buf.Release()
		w.st.Advance(&h)
	}
}

// settle moves the log to its files.
func (w *world) settle() {
	w.t.Helper()
	writer := segment.NewWriter()
	defer writer.Close()
	if _, err := w.log.Flush(writer, 1<<40); err != nil {
		w.t.Fatal(err)
	}
	if err := w.log.Sync(); err != nil {
		w.t.Fatal(err)
	}
	w.log.Evict(w.st.End)
}

// about describes a cut of the log at pos.
func (w *world) about(pos segment.Position) (Cut, segment.Offset, segment.Offset) {
	st := w.states[pos]
	return Cut{
		TopicID: w.id.Topic, Topic: "t", Partition: w.id.Partition, Reason: ReasonCut, Node: "n1",
		From: st.Next, FromID: st.NextID, Until: w.st.Next, NextID: w.st.NextID,
	}, st.End, w.st.End
}

// cut keeps what a cut at pos takes, and cuts the log.
func (w *world) cut(pos segment.Position) Entry {
	w.t.Helper()
	e := w.only(pos)
	w.truncate(pos)
	return e
}

// only keeps what a cut at pos takes. The log stays, as after a crash in front of the record.
func (w *world) only(pos segment.Position) Entry {
	w.t.Helper()
	about, from, until := w.about(pos)
	e, err := w.keep.Keep(w.log, about, from, until)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func (w *world) truncate(pos segment.Position) {
	w.t.Helper()
	w.st = w.states[pos]
	w.states, w.crcs = w.states[:pos], w.crcs[:pos]
	if err := w.log.Truncate(w.st); err != nil {
		w.t.Fatal(err)
	}
}

// messages reads what an entry keeps.
func (w *world) messages(name string) (out []string) {
	w.t.Helper()
	e, err := Find(w.disk, name)
	if err == nil {
		err = Scan(w.disk, &e, func(h *segment.Header, body []byte) error {
			var it segment.RecordIter
			it.Reset(h, body)
			for r := it.NextRef(); r != nil; r = it.NextRef() {
				text, _, _ := bytes.Cut(r.Body, []byte{0})
				out = append(out, string(text))
			}
			return it.Err()
		})
	}
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	return out
}

// want lists the messages of positions [from, until).
func want(from, until segment.Position) (out []string) {
	for pos := from; pos < until; pos++ {
		if pos%4 != 0 {
			out = append(out, message(pos))
		}
	}
	return out
}

func (w *world) list() []Entry {
	w.t.Helper()
	all, err := List(w.disk)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

func (w *world) names() (out []string) {
	w.t.Helper()
	infos, err := w.disk.ReadDir(Dir)
	if err != nil {
		return nil
	}
	for _, i := range infos {
		out = append(out, i.Name())
	}
	return out
}

func (w *world) check(e Entry, from, until segment.Position) {
	w.t.Helper()
	if got := w.messages(e.Name); !slices.Equal(got, want(from, until)) {
		w.t.Errorf("%s has %q, want those of [%d, %d)", e.Name, got, from, until)
	}
	if s, err := w.disk.ReadFile(path.Join(Dir, e.Name, CutFile), 1<<20); err != nil {
		w.t.Errorf("%s: %v in %s", e.Name, err, s)
	}
}
