package flush

import (
	"testing"

	"penstock/segment/aio"
)

// Inodes are kept for what waits in the commit log, on a small file system at most half of them, and always one:
// without any, nothing becomes a segment.
func TestInodesKept(t *testing.T) {
	for _, tc := range []struct{ waiting, have, want int64 }{
		{0, 1000, 16},
		{5, 1000, 26},
		{500, 1000, 500},
		{5, 20, 10},
		{0, 0, 1},
		{3, 1, 1},
		{3, aio.NoInodeLimit, 22},
	} {
		if got := inodesKept(tc.waiting, tc.have); got != tc.want {
			t.Errorf("with %d waiting partitions and %d inodes: %d are kept, want %d", tc.waiting, tc.have, got, tc.want)
		}
	}
}

// A new topic leaves each partition that exists what it may need.
func TestRoomForTopic(t *testing.T) {
	for _, tc := range []struct {
		free                 int64
		partitions, existing int
		want                 bool
	}{
		{aio.NoInodeLimit, 1 << 16, 20_000, true},
		{1000, 1, 100, true},
		{0, 1, 0, false},
		{21, 1, 0, true},
		{20, 1, 0, false},
		{221, 1, 100, true},
		{220, 1, 100, false},
		{219, 100, 0, true},
		{218, 100, 0, false},
	} {
		if got := RoomForTopic(tc.free, tc.partitions, tc.existing); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}
