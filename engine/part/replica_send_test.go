package part

import (
	"slices"
	"testing"

	"penstock/replicate/wire"
	"penstock/segment"
)

// A segment that was begun with a checkpoint gets more room for the large batch behind it. Both go to a follower in one
// run, which must have room for both, or the follower refuses the frame.
func TestRunOfASegmentThatGrew(t *testing.T) {
	o := new(outgoing)
	piece := func(size int, number uint32, base segment.Offset, capacity int64) {
		t.Helper()
		where := segment.State{Segment: number, SegmentBase: base, SegmentCapacity: capacity}
		if !o.add(make([]byte, size), &where) {
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
	if !slices.Equal(o.runs, want) {
		t.Errorf("%+v, want %+v", o.runs, want)
	}
}
