package flush

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"

	"penstock/internal/node/clock"
	"penstock/internal/node/inbox"
	"penstock/internal/node/platform"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/logtest"
)

// testSizes make small segments.
var testSizes = segment.Sizes{MinSegmentBytes: 16 << 10, MaxSegmentBytes: 64 << 10}

// testPart is a partition without channels and replicas. It has a log and an inbox; the test decides the rest.
type testPart struct {
	Part
	inbox.Inbox
	log    *logtest.Log
	limits Limits
	holds  bool
	shared bool // there are other copies
	// committed is the end of the committed part of the log; 0: all of it is committed.
	committed segment.Offset
}

func (p *testPart) Log() *segment.Log           { return p.log.Log }
func (p *testPart) Limits() *Limits             { return &p.limits }
func (p *testPart) HoldsFiles() bool            { return p.holds }
func (*testPart) Carry(segment.Offset)          {}
func (*testPart) LeaderStart() segment.Position { return 0 }
func (*testPart) TopicDeleted() bool            { return false }
func (*testPart) MayTrim() bool                 { return true }
func (p *testPart) Solo() bool                  { return !p.shared }
func (*testPart) GivenUp() bool                 { return false }
func (*testPart) NeedsNoFlush() bool            { return false }
func (*testPart) FindLost()                     {}
func (*testPart) Trimmed(bool, bool)            {}
func (p *testPart) isClosed() bool              { return p.WhyClosed() != nil }

func (p *testPart) EachPassed(segment.MsgID, func(begin, end segment.MsgID)) (segment.MsgID, segment.Offset, int) {
	at, _, id := p.log.End()
	return id, at, 0
}

func (p *testPart) CommittedEnd() segment.Offset {
	if p.committed != 0 {
		return p.committed
	}
	return p.log.State.End
}

// newTestPart returns a flusher that does not run, and the only partition of that flusher, with an empty log.
func newTestPart(t *testing.T, c *clock.Clock) (*Flusher, *testPart) {
	t.Helper()
	p := &testPart{log: logtest.New(t, testSizes)}
	p.Init(p, "t", 0)
	p.openInbox()
	h := platform.NewMachine()
	if c == nil {
		c = clock.New(h.Wall, h.Mono)
	}
	f := New(Env{
		Host: h, Clock: c, Log: slog.New(slog.DiscardHandler), Disk: p.log.Disk, Arena: p.log.Arena,
		Pulse: new(aio.Pulse), Parts: slices.Values([]*Part{&p.Part}),
		SegmentBytes: new(atomic.Uint64), SegmentSyncs: new(atomic.Uint64), TrimmedBytes: new(atomic.Uint64),
	})
	t.Cleanup(f.Close)
	return f, p
}

// openInbox gives the partition a new, open inbox.
func (p *testPart) openInbox() {
	p.Inbox = inbox.Inbox{}
	p.Use(new(inbox.Shared))
}
