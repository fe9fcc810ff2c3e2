package replay_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/clog"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/fold"
	"penstock/internal/node/replay"
	"penstock/segment"
	"penstock/segment/aio"
)

// logOf builds consecutive commit log records of one partition.
type logOf struct {
	t    *testing.T
	id   segment.Identity
	st   segment.State // after the last batch
	buf  *aio.Buf
	into *replay.Replay
}

func newLog(t *testing.T, o replay.Options) *logOf {
	arena, err := aio.NewArena(1<<16, 1)
	if err != nil {
		t.Fatal(err)
	}
	l := &logOf{t: t, id: segment.Identity{Topic: uuid.UUID{7}, Partition: 1}, buf: arena.Get()}
	o.Sizes = segment.Sizes{MinSegmentBytes: 1 << 16, MaxSegmentBytes: 1 << 16}
	o.NowNs = func() int64 { return 0 }
	l.into = replay.New(o)
	t.Cleanup(func() {
		l.into.Release()
		if refs := l.buf.Refs(); refs != 1 {
			t.Errorf("%d references to the buffer are left over", refs-1)
		}
		l.buf.Release()
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// batch builds the record of the next batch: messages with these bodies or, without bodies, control entries.
func (l *logOf) batch(controls []fold.Control, bodies ...string) *clog.Record {
	h := segment.Header{Count: uint32(len(bodies)), Epoch: 1}
	data := make([]byte, segment.HeaderBytes)
	for _, b := range bodies {
		data = batch.AppendRecord(data, &segment.Record{Body: []byte(b)})
	}
	for i := range controls {
		h.Flags = segment.FlagControl
		data = fold.AppendControl(data, &controls[i])
	}
	body := data[segment.HeaderBytes:]
	h.BodyBytes, h.BodyCRC = uint32(len(body)), batch.Checksum(body)
	h.Position, h.FirstID, h.PrevCRC = l.st.Next, l.st.NextID, l.st.LastCRC
	h.Encode(data)
	rec := l.record(clog.Batch, data)
	rec.Offset = l.st.End
	l.st.Advance(&h)
	return rec
}

func (l *logOf) record(kind clog.Type, payload []byte) *clog.Record {
	return &clog.Record{
		Placement: clog.Placement{Type: kind, Topic: l.id.Topic, Partition: l.id.Partition}, Payload: payload, Buf: l.buf,
	}
}

// read passes a record to the replay.
func (l *logOf) read(rec *clog.Record) {
	l.t.Helper()
	if err := l.into.Record(rec); err != nil {
		l.t.Fatal(err)
	}
}

// expect compares the replayed state of the partition.
func (l *logOf) expect(what string, st segment.State, slices int) *replay.Partition {
	l.t.Helper()
	p := l.into.Partition(l.id)
	if p.State.Next != st.Next || p.State.NextID != st.NextID || p.State.End != st.End || len(p.Slices) != slices {
		l.t.Errorf("%s: %d batches up to message %d, %d bytes, %d of the batches in memory; want %d, %d, %d, %d",
			what, p.State.Next, p.State.NextID, p.State.End, len(p.Slices), st.Next, st.NextID, st.End, slices)
	}
	return p
}

// The records continue where the checkpoint ends. The state of the checkpoint is in segments; the batches behind it are
// in memory.
func TestRecordsFollowTheCheckpoint(t *testing.T) {
	l := newLog(t, replay.Options{})
	if !l.into.Empty() || l.into.Has(l.id) {
		t.Error("something was replayed before the first record")
	}
	l.st = segment.State{Next: 5, NextID: 40, End: 900, Epoch: 1}
	state := new(fold.Cursors)
	state.Publish(0, 40)
	en := checkpoint.Entry{ID: l.id, State: l.st, Committed: 4, Fold: state}
	data := checkpoint.Append(checkpoint.AppendCount(nil, 1), &en)
	for _, chunk := range [][]byte{data[:10], data[10:]} {
		if err := l.into.Checkpoint(chunk); err != nil {
			t.Fatal(err)
		}
	}
	base := l.st
	l.read(l.batch(nil, "a", "b"))
	l.read(l.batch([]fold.Control{{Kind: fold.ChannelCreated, Channel: "c", ID: 41}}))
	p := l.expect("two batches behind the checkpoint", l.st, 2)
	if p.Base.Next != base.Next || p.Committed != 4 || p.Err != nil || p.Fold.Channel("c") == nil {
		t.Errorf("based on batch %d, committed below %d, error %v", p.Base.Next, p.Committed, p.Err)
	}
	if err := l.into.Finish(); err != nil || len(l.into.Partitions()) != 1 || l.into.Empty() {
		t.Errorf("%v, %d partitions", err, len(l.into.Partitions()))
	}
}

// A batch that does not follow the previous one is damage. Neither that batch nor the later ones are applied.
func TestBatchThatDoesNotFollow(t *testing.T) {
	l := newLog(t, replay.Options{})
	l.read(l.batch(nil, "a"))
	whole := l.st
	l.batch(nil, "lost")
	l.read(l.batch(nil, "b"))
	l.st = whole
	l.read(l.batch(nil, "c"))
	if p := l.expect("behind the gap", whole, 1); !errors.As(p.Err, new(*segment.CorruptError)) {
		t.Errorf("the gap is %v", p.Err)
	}
}

// A cut removes the batches behind it, and the log continues from there. A reset removes all batches: the log begins
// anew, even if a record could not be applied before.
func TestCutsAndResets(t *testing.T) {
	l := newLog(t, replay.Options{})
	l.read(l.batch(nil, "a"))
	kept := l.st
	l.read(l.batch(nil, "b", "c"))
	state := new(fold.Cursors)
	state.Publish(0, 1)
	en := checkpoint.Entry{ID: l.id, State: kept, Committed: 1, Fold: state}
	l.read(l.record(clog.Truncate, checkpoint.AppendCut(nil, false, &en)))
	if p := l.expect("cut", kept, 1); p.Restarted || p.Base.Next != 0 {
		t.Errorf("cut: begun anew %v, based on batch %d", p.Restarted, p.Base.Next)
	}
	l.st = kept
	l.read(l.batch(nil, "d"))
	l.expect("a batch behind the cut", l.st, 2)

	l.batch(nil, "lost")
	l.read(l.batch(nil, "e"))
	if l.into.Partition(l.id).Err == nil {
		t.Fatal("a gap is not seen")
	}
	l.st = segment.State{Next: 90, NextID: 700, End: 5000}
	en = checkpoint.Entry{ID: l.id, State: l.st, Fold: new(fold.Cursors)}
	l.read(l.record(clog.Truncate, checkpoint.AppendCut(nil, true, &en)))
	if p := l.expect("reset", l.st, 0); !p.Restarted || p.Err != nil || p.Base.Next != 90 {
		t.Errorf("reset: begun anew %v, error %v, based on batch %d", p.Restarted, p.Err, p.Base.Next)
	}
}

// Entries of a newer version make the fold unknown, but the rest of the log is replayed.
func TestEntriesOfANewerVersion(t *testing.T) {
	l := newLog(t, replay.Options{Folder: replay.Folder{Unknown: fold.TopicPaused}})
	l.read(l.batch([]fold.Control{{Kind: fold.TopicPaused, Flag: true}}))
	l.read(l.batch(nil, "a"))
	if p := l.expect("behind the entry", l.st, 2); !errors.Is(p.Unread, fold.ErrNewerControl) || p.Err != nil {
		t.Errorf("unread because of %v, error %v", p.Unread, p.Err)
	}
}

// A log that was reset begins with a segment whose first batch has no fold. The fold is not known until a batch has it.
func TestLogThatBeginsWithoutAFold(t *testing.T) {
	l := newLog(t, replay.Options{})
	l.st = segment.State{Next: 90, NextID: 700, End: 5000}
	en := checkpoint.Entry{ID: l.id, State: l.st, Fold: new(fold.Cursors)}
	l.read(l.record(clog.Truncate, checkpoint.AppendCut(nil, true, &en)))
	start := fold.Control{Kind: fold.EpochStart, Epoch: 1}
	l.read(l.batch([]fold.Control{start}))
	l.read(l.batch(nil, "a"))
	if p := l.expect("without the fold", l.st, 2); !errors.Is(p.Unread, replay.ErrNoFold) || p.Err != nil {
		t.Errorf("unread because of %v, error %v", p.Unread, p.Err)
	}
	whole := new(fold.Cursors)
	whole.Publish(0, uint32(l.st.NextID))
	l.read(l.batch([]fold.Control{start, {Kind: fold.Checkpoint, Cursors: whole}}))
	if p := l.expect("with the fold", l.st, 3); p.Unread != nil || p.Err != nil || p.Fold.End() != l.st.NextID {
		t.Errorf("unread because of %v, error %v, messages below %d", p.Unread, p.Err, p.Fold.End())
	}
}

// A tombstone drops its topic, an unknown type of record ends recovery, and a restart of the replay forgets everything.
func TestOtherRecords(t *testing.T) {
	l := newLog(t, replay.Options{})
	l.read(l.batch(nil, "a"))
	l.read(l.record(clog.Tombstone, nil))
	if !l.into.Dropped(l.id.Topic) || l.into.Dropped(uuid.UUID{8}) {
		t.Error("the tombstone is for another topic")
	}
	if l.into.Record(l.record(99, nil)) == nil {
		t.Error("a record of a kind that does not exist is passed over")
	}
	if l.into.Restart(); !l.into.Empty() || l.into.Has(l.id) || l.into.Dropped(l.id.Topic) {
		t.Error("something is left after a restart")
	}
}

// Each record says how far its writer knew the log to be committed. Records of older versions do not say it.
func TestRecordsSayWhatWasCommitted(t *testing.T) {
	l := newLog(t, replay.Options{})
	committed := func(uncommitted uint16) segment.Position {
		rec := l.batch(nil, "a")
		rec.Uncommitted = uncommitted
		l.read(rec)
		return l.into.Partition(l.id).Committed
	}
	for i, c := range []struct {
		uncommitted uint16
		want        segment.Position
	}{{0, 0}, {2, 0}, {3, 0}, {2, 2}, {0, 2}, {4, 2}, {1, 6}, {9, 6}} {
		if got := committed(c.uncommitted); got != c.want {
			t.Errorf("batch %d: committed below %d, want %d", i, got, c.want)
		}
	}
}
