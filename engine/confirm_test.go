package engine_test

import (
	"testing"
	"time"

	"penstock/engine"
	"penstock/segment/aio/faultaio"
)

// Confirmations wait while those before them are on their way to the disk: their memory is that of the others, and what
// is told of the others would be told of them.
func TestConfirmationsWaitForThoseBefore(t *testing.T) {
	disk := newDisk()
	e := openOnDisk(t, disk, func(o *engine.Options) { o.ConfirmInterval = time.Hour })
	topic := topicOf(t, e, "t")
	c := channelOf(t, topic, "c")
	publish(t, topic, "a", "b")
	s := subscribe(t, c, 2)
	first, second := s.next(), s.next()
	disk.Inject(faultaio.Rule{Kind: faultaio.KindAny, Hold: true, Count: -1})
	release := func() {
		disk.ClearRules()
		disk.ReleaseHeld()
	}
	defer release()
	s.finish(first)
	if engine.SendControls(c) {
		t.Fatal("the first confirmation is not written")
	}
	s.finish(second)
	if !engine.SendControls(c) {
		t.Error("the second confirmation is on its way with the first one's memory")
	}
	release()
	eventually(t, "both are written", func() bool { return !engine.SendControls(c) })
}
