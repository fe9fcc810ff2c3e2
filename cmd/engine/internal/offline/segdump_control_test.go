package offline

import (
	"testing"

	"penstock/internal/node/fold"
)

// Every kind of control entry has a name and shows what it does.
func TestDescribeControl(t *testing.T) {
	for _, x := range []struct {
		c    fold.Control
		want string
	}{
		{fold.Control{Kind: fold.ChannelCreated, Channel: "c", ID: 7}, "channel created c, id 7"},
		{fold.Control{Kind: fold.ChannelDeleted, Channel: "c"}, "channel deleted c"},
		{
			fold.Control{Kind: fold.Confirmed, Channel: "c", Ranges: []fold.IDRange{{From: 1, To: 3}}},
			"confirmed c [1, 3)",
		},
		{
			fold.Control{Kind: fold.Deferred, Channel: "c", Deferrals: []fold.Deferral{{ID: 4, DueMs: 9, Attempts: 2}}},
			"deferred c 4 until 9 ms after 2 attempts;",
		},
		{fold.Control{Kind: fold.ChannelPaused, Channel: "c", Flag: true}, "channel paused c: true"},
		{fold.Control{Kind: fold.ChannelSkipped, Channel: "c"}, "channel skipped c: false"},
		{fold.Control{Kind: fold.ChannelReset, Channel: "c", ID: 5}, "channel reset c, id 5"},
		{fold.Control{Kind: fold.TopicPaused, Flag: true, ID: 6}, "topic paused, id 6: true"},
		{fold.Control{Kind: fold.TopicEmptied, ID: 6}, "topic emptied, id 6"},
		{fold.Control{Kind: fold.EpochStart, Epoch: 3}, "epoch start 3"},
		{fold.Control{Kind: fold.Checkpoint, Cursors: new(fold.Cursors)}, "checkpoint of 0 channels"},
		{
			fold.Control{Kind: fold.ChannelConfigured, Channel: "c", Settings: &fold.ChannelSettings{Version: 4}},
			"channel configured c, version 4",
		},
		{
			fold.Control{Kind: fold.DeadLettered, Channel: "c", Dead: []fold.DeadMessage{{ID: 8, Attempts: 5}}},
			"dead letters c 8 after 5 attempts;",
		},
		{
			fold.Control{Kind: fold.DeadLetterMoved, Channel: "c", Ranges: []fold.IDRange{{From: 8, To: 9}}},
			"dead letters moved c [8, 9)",
		},
		{
			fold.Control{Kind: fold.DeferredCarried, Carried: []fold.CarriedMessage{{ID: 2, Record: make([]byte, 12)}}},
			"deferred carried 2 of 12 bytes;",
		},
		{
			fold.Control{Kind: fold.ProducerOpened, Producer: fold.ProducerOpening{ID: 9, Epoch: 2, Name: "p"}},
			`producer opened "p", id 9, epoch 2`,
		},
		{
			fold.Control{
				Kind: fold.ProducerTaken, Producer: fold.ProducerOpening{ID: 9, Epoch: 2, Name: "p", Tenure: 1 << 32},
			},
			`producer taken "p", id 9, epoch 2, tenure 4294967296`,
		},
	} {
		l := describeControl(&x.c)
		if got := l.text(); got != x.want {
			t.Errorf("kind %d: %q, want %q", x.c.Kind, got, x.want)
		}
	}
	for kind := fold.ChannelCreated; kind <= fold.ProducerRemoved; kind++ {
		if controlNames[kind] == "" {
			t.Errorf("kind %d has no name", kind)
		}
	}
}
