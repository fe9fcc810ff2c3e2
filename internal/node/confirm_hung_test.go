package node_test

import (
	"fmt"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// A channel reads a segment and the device hangs. The channel's lock is held for as long as that takes, and its own
// confirmations wait. Those of other channels do not: they are written to the log, and publishing goes on. When the
// device answers, nothing is missing.
func TestHungReadHoldsUpOneChannel(t *testing.T) {
	t.Parallel()
	disk, ids := closedDirectory(t, 300)
	e := openOnDisk(t, disk, func(o *node.Options) {
		o.ConfirmInterval = time.Second
		o.ReadAheadBytes = 1 // one batch: the next message has to be read
	})
	c := channelOf(t, topicOf(t, e, "bad"), "c")
	k := subscribe(t, c, 4)
	k.finish(k.next()) // the channel is on the list of those that have something to write
	release := func() {
		disk.ClearRules()
		disk.ReleaseHeld()
	}
	t.Cleanup(release)
	for _, f := range segmentFiles(t, disk, "bad") {
		disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: f, Hold: true, Count: -1})
	}
	second := k.next()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		k.finish(second)
	}()
	eventually(t, "the channel reads, and its lock is held", func() bool {
		free := make(chan struct{})
		go func() {
			c.Settings()
			close(free)
		}()
		select {
		case <-free:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	})
	good := topicOf(t, e, "good")
	g := subscribe(t, channelOf(t, good, "c"), 20)
	if len(g.take(10)) != 10 {
		t.Fatal("another channel waits")
	}
	// The first round is in the same list as the channel that is held, the second in a later one.
	for round := range uint64(2) {
		publish(t, good, fmt.Sprint("meanwhile ", round))
		g.take(1)
		eventually(t, "the confirmations of another channel are in the log", func() bool {
			return node.ConfirmedInLog(good, 0) >= 11+round
		})
	}
	select {
	case <-finished:
		t.Error("the device does not hang")
	default:
	}
	release()
	<-finished
	for range len(ids) - 2 {
		k.finish(k.next())
	}
	k.expectNothing("all were finished")
	bad := topicOf(t, e, "bad")
	eventually(t, "the confirmations of the channel that waited are in the log", func() bool {
		return node.ConfirmedInLog(bad, 0) >= uint64(len(ids))
	})
}
