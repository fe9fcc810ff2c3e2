package engine

import (
	"testing"
	"time"

	"penstock/engine/core"
	"penstock/segment/aio/faultaio"

	"penstock/replicate/wire"
)

// Two changes of a channel's settings overtake each other: the later one is in force here, because this node led
// partition 0 when it was made, and the log of another partition has neither. Whoever asks for the earlier one is
// answered only when that log has what is in force: after a power cut a leader of that partition alone would know no
// settings at all.
//
// Seed 2549263.
func TestOvertakenSettingsAreWrittenBeforeTheAnswer(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	open := func(disk *faultaio.Disk) *Engine {
		e, err := Open(t.Context(), Options{Disk: disk, ConfirmInterval: time.Hour, BufferBytes: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	topic, err := open(disk).CreateTopic(t.Context(), "t", 2)
	if err != nil {
		t.Fatal(err)
	}
	c, err := topic.Channel(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	first, second := &ChannelSettings{Version: 1, MaxAttempts: 1}, &ChannelSettings{Version: 2, MaxAttempts: 2}
	c.mu.Lock() // in force, and in no log: nothing is written before ConfirmInterval is over
	c.ev = core.Event{Kind: core.EvConfigure, Settings: second, SharePartsHere: 2, PartsAll: 2}
	c.step()
	c.learnSettings()
	c.mu.Unlock()
	if s, err := c.configureLocal(t.Context(), wire.Operation{Settings: first}); err != nil || s.Version != 2 {
		t.Fatalf("the earlier change was answered with %+v, %v", s, err)
	}
	topic, _ = open(disk.Crash(1)).LookupTopic("t")
	for _, pt := range topic.partitions() {
		if s := pt.fold.Channel("c").Settings; s.Version != 2 || s.MaxAttempts != 2 {
			t.Errorf("after a power cut partition %d has settings %+v", pt.number, s)
		}
	}
}
