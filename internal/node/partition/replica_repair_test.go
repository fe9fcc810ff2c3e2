package partition

import (
	"errors"
	"testing"

	"penstock/replicate"
	"penstock/segment"
	"penstock/tests/support/logtest"
)

// Damage of the last segment file does not extend to the batches in memory, whose segment may have no file yet.
// Otherwise these batches would be fetched again and again.
func TestDamageEndsBeforeWhatIsInMemory(t *testing.T) {
	log := logtest.New(t, segment.Sizes{MinSegmentBytes: 16 << 10, MaxSegmentBytes: 16 << 10})
	for range 12 {
		log.Put(1, 1000, 1)
	}
	log.Flush()
	stored := log.State.Next
	segments := log.Segments()
	last := segments[len(segments)-1]
	if !log.Disk.Corrupt(last.Path, []byte("rotten"), segment.SegmentHeaderBytes+segment.HeaderBytes) {
		t.Fatal("nothing was damaged")
	}
	c := segment.NewChecker()
	defer c.Close()
	if _, err := log.Check(c, last.Start, 1, 0); !errors.As(err, new(*segment.CorruptError)) {
		t.Fatal("the damage was not found", err)
	}
	for range 3 {
		log.Put(1, 1000, 1)
	}
	r := bareReplica()
	r.pt.log = log.Log
	events := r.isolated()
	if len(events) != 1 || events[0].Kind != replicate.EvCorrupt || events[0].Position != last.FirstPosition ||
		events[0].Until != stored {
		t.Errorf("what was stored ends at %d; damaged: %+v", stored, events)
	}
}
