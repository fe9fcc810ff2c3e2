package offline

import (
	"testing"

	"penstock/internal/node/machine"
)

// Every kind of control entry has a name and shows what it does.
func TestDescribeControl(t *testing.T) {
	for _, x := range []struct {
		c    machine.Control
		want string
	}{
		{machine.Control{Kind: machine.ChannelCreated, Channel: "c", ID: 7}, "channel created c, id 7"},
		{machine.Control{Kind: machine.ChannelDeleted, Channel: "c"}, "channel deleted c"},
		{
			machine.Control{Kind: machine.Confirmed, Channel: "c", Ranges: []machine.IDRange{{From: 1, To: 3}}},
			"confirmed c [1, 3)",
		},
		{
			machine.Control{Kind: machine.Deferred, Channel: "c", Deferrals: []machine.Deferral{{ID: 4, DueMs: 9, Attempts: 2}}},
			"deferred c 4 until 9 ms after 2 attempts;",
		},
		{machine.Control{Kind: machine.ChannelPaused, Channel: "c", Flag: true}, "channel paused c: true"},
		{machine.Control{Kind: machine.ChannelSkipped, Channel: "c"}, "channel skipped c: false"},
		{machine.Control{Kind: machine.ChannelReset, Channel: "c", ID: 5}, "channel reset c, id 5"},
		{machine.Control{Kind: machine.TopicPaused, Flag: true, ID: 6}, "topic paused, id 6: true"},
		{machine.Control{Kind: machine.TopicEmptied, ID: 6}, "topic emptied, id 6"},
		{machine.Control{Kind: machine.EpochStart, Epoch: 3}, "epoch start 3"},
		{machine.Control{Kind: machine.Checkpoint, Cursors: new(machine.Cursors)}, "checkpoint of 0 channels"},
		{
			machine.Control{Kind: machine.ChannelConfigured, Channel: "c", Settings: &machine.ChannelSettings{Version: 4}},
			"channel configured c, version 4",
		},
		{
			machine.Control{Kind: machine.DeadLettered, Channel: "c", Dead: []machine.DeadMessage{{ID: 8, Attempts: 5}}},
			"dead letters c 8 after 5 attempts;",
		},
		{
			machine.Control{Kind: machine.DeadLetterMoved, Channel: "c", Ranges: []machine.IDRange{{From: 8, To: 9}}},
			"dead letters moved c [8, 9)",
		},
		{
			machine.Control{Kind: machine.DeferredCarried, Carried: []machine.CarriedMessage{{ID: 2, Record: make([]byte, 12)}}},
			"deferred carried 2 of 12 bytes;",
		},
		{
			machine.Control{Kind: machine.ProducerOpened, Producer: machine.ProducerOpening{ID: 9, Epoch: 2, Name: "p"}},
			`producer opened "p", id 9, epoch 2`,
		},
		{
			machine.Control{
				Kind: machine.ProducerTaken, Producer: machine.ProducerOpening{ID: 9, Epoch: 2, Name: "p", Tenure: 1 << 32},
			},
			`producer taken "p", id 9, epoch 2, tenure 4294967296`,
		},
	} {
		l := describeControl(&x.c)
		if got := l.text(); got != x.want {
			t.Errorf("kind %d: %q, want %q", x.c.Kind, got, x.want)
		}
	}
	for kind := machine.ChannelCreated; kind <= machine.ProducerRemoved; kind++ {
		if controlNames[kind] == "" {
			t.Errorf("kind %d has no name", kind)
		}
	}
}
