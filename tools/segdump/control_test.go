package main

import (
	"testing"

	"penstock/engine/core"
)

// Every kind of control entry has a name and shows what it does.
func TestDescribeControl(t *testing.T) {
	for _, x := range []struct {
		c    core.Control
		want string
	}{
		{core.Control{Kind: core.ChannelCreated, Channel: "c", ID: 7}, "channel created c, id 7"},
		{core.Control{Kind: core.ChannelDeleted, Channel: "c"}, "channel deleted c"},
		{core.Control{Kind: core.Confirmed, Channel: "c", Ranges: []core.IDRange{{From: 1, To: 3}}}, "confirmed c [1, 3)"},
		{
			core.Control{Kind: core.Deferred, Channel: "c", Deferrals: []core.Deferral{{ID: 4, DueMs: 9, Attempts: 2}}},
			"deferred c 4 until 9 ms after 2 attempts;",
		},
		{core.Control{Kind: core.ChannelPaused, Channel: "c", Flag: true}, "channel paused c: true"},
		{core.Control{Kind: core.ChannelSkipped, Channel: "c"}, "channel skipped c: false"},
		{core.Control{Kind: core.ChannelReset, Channel: "c", ID: 5}, "channel reset c, id 5"},
		{core.Control{Kind: core.TopicPaused, Flag: true, ID: 6}, "topic paused, id 6: true"},
		{core.Control{Kind: core.TopicEmptied, ID: 6}, "topic emptied, id 6"},
		{core.Control{Kind: core.EpochStart, Epoch: 3}, "epoch start 3"},
		{core.Control{Kind: core.Checkpoint, Cursors: new(core.Cursors)}, "checkpoint of 0 channels"},
		{
			core.Control{Kind: core.ChannelConfigured, Channel: "c", Settings: &core.ChannelSettings{Version: 4}},
			"channel configured c, version 4",
		},
		{
			core.Control{Kind: core.DeadLettered, Channel: "c", Dead: []core.DeadMessage{{ID: 8, Attempts: 5}}},
			"dead letters c 8 after 5 attempts;",
		},
		{
			core.Control{Kind: core.DeadLetterMoved, Channel: "c", Ranges: []core.IDRange{{From: 8, To: 9}}},
			"dead letters moved c [8, 9)",
		},
		{
			core.Control{Kind: core.DeferredCarried, Carried: []core.CarriedMessage{{ID: 2, Record: make([]byte, 12)}}},
			"deferred carried 2 of 12 bytes;",
		},
		{
			core.Control{Kind: core.ProducerOpened, Producer: core.ProducerOpening{ID: 9, Epoch: 2, Name: "p"}},
			`producer opened "p", id 9, epoch 2`,
		},
		{
			core.Control{
				Kind: core.ProducerTaken, Producer: core.ProducerOpening{ID: 9, Epoch: 2, Name: "p", Tenure: 1 << 32},
			},
			`producer taken "p", id 9, epoch 2, tenure 4294967296`,
		},
	} {
		l := describe(&x.c)
		if got := l.text(); got != x.want {
			t.Errorf("kind %d: %q, want %q", x.c.Kind, got, x.want)
		}
	}
	for kind := core.ChannelCreated; kind <= core.ProducerRemoved; kind++ {
		if controlNames[kind] == "" {
			t.Errorf("kind %d has no name", kind)
		}
	}
}
