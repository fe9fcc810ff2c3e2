package partition

import (
	"testing"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/fold"
	"penstock/internal/node/logread"
	"penstock/segment"
)

// The state of the channels at a cut is larger than a record of the commit log may be. The cut is made nevertheless:
// its record says that the state is not in it.
func TestCutWithALargeFold(t *testing.T) {
	const messages = 2_000_000
	state := new(fold.Cursors)
	state.Publish(0, messages)
	for id := range segment.MsgID(messages) {
		state.Deferred = append(state.Deferred, fold.DeferredMessage{ID: id, DueMs: 1_800_000_000_000, At: 1 << 40})
	}
	if size := len(state.Append(nil)); size <= clog.MaxPayloadBytes {
		t.Fatalf("the fold takes only %d bytes", size)
	}
	c := &logCut{
		to: 90, committed: 95, Past: logread.Past{
			Fold: state, State: segment.State{Next: 90, NextID: messages, End: 1 << 40, Segment: 3},
		},
	}
	id := segment.Identity{Topic: uuid.UUID{7}, Partition: 2}
	if err := c.encode(id); err != nil {
		t.Fatal(err)
	}
	if len(c.payload) > clog.MaxPayloadBytes {
		t.Errorf("the record takes %d bytes", len(c.payload))
	}
	en, reset, err := checkpoint.DecodeCut(c.payload)
	if err != nil || reset || en.ID != id || en.State != c.State || en.Committed != 90 || en.Fold != nil {
		t.Errorf("the record says %+v, reset %v: %v", en, reset, err)
	}
	if c.KnownFold() != state {
		t.Error("this process does not know the fold any more")
	}
}
