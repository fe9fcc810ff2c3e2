package flush

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"penstock/engine/base"
	"penstock/engine/host"
	"penstock/engine/inbox"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/segment/aio/faultaio"
)

// testSizes make small segments.
var testSizes = segment.Sizes{MinSegmentBytes: 16 << 10, MaxSegmentBytes: 64 << 10}

// testPart is a partition without channels and replicas: a log, an inbox, and what a test says of the rest.
type testPart struct {
	Part
	inbox.Inbox
	disk   *faultaio.Disk
	arena  *aio.Arena
	log    *segment.Log
	st     segment.State
	limits Limits
	holds  bool
}

func (p *testPart) Log() *segment.Log            { return p.log }
func (p *testPart) Limits() *Limits              { return &p.limits }
func (p *testPart) CommittedEnd() segment.Offset { return p.st.End }
func (p *testPart) HoldsFiles() bool             { return p.holds }
func (*testPart) Carry(segment.Offset)           {}
func (*testPart) LeaderStart() segment.Position  { return 0 }
func (*testPart) TopicDeleted() bool             { return false }
func (*testPart) MayTrim() bool                  { return true }
func (*testPart) Solo() bool                     { return true }
func (*testPart) GivenUp() bool                  { return false }
func (*testPart) NeedsNoFlush() bool             { return false }
func (*testPart) IsGoingAway() bool              { return false }
func (*testPart) FindLost()                      {}
func (*testPart) Trimmed(bool, bool)             {}
func (p *testPart) isClosed() bool               { return p.WhyClosed() != nil }

// newTestPart returns a flusher that does not run, and the one partition that it knows, with an empty log.
func newTestPart(t *testing.T, clock *base.Clock) (*Flusher, *testPart) {
	t.Helper()
	p := &testPart{disk: faultaio.New(faultaio.Options{Seed: 1})}
	var err error
	if p.arena, err = aio.NewArena(256<<10, 16); err != nil {
		t.Fatal(err)
	}
	if p.log, err = segment.Open(p.disk, "p", segment.Identity{}, segment.State{}, segment.Options{}); err != nil {
		t.Fatal(err)
	}
	p.Init(p, "t", 0)
	p.openInbox()
	h := host.NewMachine()
	if clock == nil {
		clock = base.NewClock(h.Wall, h.Mono)
	}
	f := New(Node{
		Host: h, Clock: clock, Log: slog.New(slog.DiscardHandler), Disk: p.disk, Arena: p.arena, Pulse: new(aio.Pulse),
		Parts:        slices.Values([]*Part{&p.Part}),
		SegmentBytes: new(atomic.Uint64), SegmentSyncs: new(atomic.Uint64), TrimmedBytes: new(atomic.Uint64),
	})
	t.Cleanup(func() {
		f.Close()
		if err := p.log.Close(); err != nil {
			t.Error(err)
		}
		_ = p.arena.Close()
	})
	return f, p
}

// openInbox gives the partition a new inbox, which is open.
func (p *testPart) openInbox() {
	p.Inbox = inbox.Inbox{}
	p.Use(new(inbox.Node))
}

// put appends a batch of count messages of size bytes, as a leader by whose clock it is now.
func (p *testPart) put(t *testing.T, count, size int, now time.Time) {
	t.Helper()
	var b segment.Builder
	b.Reset(segment.CodecNone)
	for range count {
		if err := b.Add(&segment.Record{Body: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Seal(now.UnixNano())
	buf := p.arena.Get()
	if err != nil || buf == nil {
		t.Fatal("no batch, or no buffer", err)
	}
	defer buf.Release()
	segment.Stamp(batch, p.st.Next, p.st.NextID, p.st.Epoch, now.UnixNano(), p.st.LastCRC)
	var h segment.Header
	if err := h.Decode(batch); err != nil {
		t.Fatal(err)
	}
	testSizes.Place(&p.st, len(batch))
	p.log.Append(&segment.Slice{
		Buf: buf, Data: buf.Bytes()[:copy(buf.Bytes(), batch)],
		Position: h.Position, FirstID: h.FirstID, Count: h.Count, Appended: h.Appended, Offset: p.st.End,
		Segment: p.st.Segment, SegmentBase: p.st.SegmentBase, SegmentCapacity: p.st.SegmentCapacity, FileSeq: 1,
	})
	p.st.Advance(&h)
}
