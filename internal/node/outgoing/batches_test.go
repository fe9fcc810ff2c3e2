package outgoing

import (
	"errors"
	"slices"
	"testing"

	"penstock/replicate/wire"
	"penstock/segment"
	"penstock/tests/support/logtest"
)

// A segment that begins with a checkpoint gets more room for the large batch behind it. Both go to a follower in one
// run. The run must have room for both, or the follower refuses the frame.
func TestRunOfASegmentThatGrew(t *testing.T) {
	b := new(Batches)
	piece := func(size int, number uint32, base segment.Offset, capacity int64) {
		t.Helper()
		where := segment.State{Segment: number, SegmentBase: base, SegmentCapacity: capacity}
		if !b.add(make([]byte, size), &where) {
			t.Fatal("there is no room for one more run")
		}
	}
	piece(100, 1, 5000, 65536)
	piece(80_000, 1, 5000, 90_112)
	piece(200, 1, 5000, 90_112)
	piece(300, 2, 95_112, 65536)
	want := []wire.Run{
		{Segment: 1, Base: 5000, Capacity: 90_112, Bytes: 80_300},
		{Segment: 2, Base: 95_112, Capacity: 65536, Bytes: 300},
	}
	if !slices.Equal(b.Runs, want) {
		t.Errorf("%+v, want %+v", b.Runs, want)
	}
}

// A frame holds the batches that were requested, as far as it has room, and at least one batch. The bytes, the
// descriptions and the runs agree.
func TestCollect(t *testing.T) {
	log := logtest.New(t, segment.Sizes{MinSegmentBytes: 16 << 10, MaxSegmentBytes: 16 << 10})
	size := 0
	for i := range 1003 { // the last three are in memory
		if i%10 == 0 {
			log.Flush()
		}
		size = log.Put(1, 1000, 1)
	}
	l := log.Log
	for _, c := range []struct {
		name         string
		src          Source
		from, until  segment.Position
		count, bytes int64
		want         int
		err          error
	}{
		{"up to the end", l, 990, 5000, 100, 1 << 20, 13, segment.ErrAtEnd},
		{"up to a position", l, 0, 7, 100, 1 << 20, 7, nil},
		{"a count", l, 500, 5000, 5, 1 << 20, 5, nil},
		{"bytes", l, 500, 5000, 100, 3*int64(size) + 1, 3, nil},
		{"one batch in any case", l, 500, 5000, 100, 1, 1, nil},
		{"all segments that a frame has room for", l, 0, 5000, 5000, 1 << 30, 64 * 15, nil},
		{"nothing at the end", l, 1003, 5000, 100, 1 << 20, 0, segment.ErrAtEnd},
		{"nothing behind the end", l, 1004, 5000, 100, 1 << 20, 0, segment.ErrPastEnd},
		{"memory", l.Memory(), 1001, 1003, 100, 1 << 20, 2, nil},
		{"not in memory", l.Memory(), 999, 1003, 100, 1 << 20, 0, segment.ErrNotInMemory},
	} {
		b := Get()
		at, err := b.Collect(c.src, c.from, c.until, int(c.count), c.bytes)
		if len(b.List) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %d batches, %v; want %d, %v", c.name, len(b.List), err, c.want, c.err)
		}
		body, runs := 0, 0
		for _, p := range b.Body {
			body += len(p)
		}
		for i := range b.Runs {
			runs += b.Runs[i].Bytes
		}
		if int64(body) != int64(len(b.List))*int64(size) || runs != body {
			t.Errorf("%s: %d batches of %d bytes, but %d bytes in runs of %d", c.name, len(b.List), int64(size), body, runs)
		}
		for i := range b.List {
			if b.List[i].Position != c.from+segment.Position(i) {
				t.Errorf("%s: batch %d is %d", c.name, i, b.List[i].Position)
			}
		}
		if n := len(b.List); n > 0 && at != b.List[n-1].End() {
			t.Errorf("%s: it ends at %d, not at %d", c.name, at, b.List[n-1].End())
		}
		b.Release()
	}
}
