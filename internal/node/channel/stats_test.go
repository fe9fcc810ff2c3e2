package channel

import (
	"testing"

	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// While retention removes several segments, what the channel says is of the log as it is, before the channel is told.
//
// B66, B67.
func TestStatsOfAShorterLog(t *testing.T) {
	c, topic := newTestChannel(t, 1)
	start := segment.State{NextID: 1, Next: 1, End: 4096, SegmentBase: 4096, Segment: 1}
	log, err := segment.Open(faultaio.New(faultaio.Options{}), "shorter", segment.Identity{Topic: topic.ID()}, start,
		segment.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	topic.parts[0].log = log // retention has removed the first of two messages
	for range 2 {
		if st := c.Stats(); st.Depth != 1 || st.DroppedCount != 1 || !st.Dropping {
			t.Errorf("depth %d, %d dropped (now: %v); want 1 of each", st.Depth, st.DroppedCount, st.Dropping)
		}
	}
	c.mu.Lock()
	c.droppedAt -= droppingFor + 1
	c.mu.Unlock()
	if st := c.Stats(); st.DroppedCount != 1 || st.Dropping {
		t.Errorf("after 10 minutes, %d were dropped (now: %v)", st.DroppedCount, st.Dropping)
	}
}
