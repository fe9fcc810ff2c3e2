package nsq

import (
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// A large command costs nothing of the budget before as much of it has arrived as a small one may have: what its head
// announces is only a word.
func TestBegunCommandsTakeNoRoom(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Settings{MaxLargeInputBytes: 8 << 20, MaxCommandTime: nsqtest.Patience})
	var begun []*nsqtest.Client
	for range 60 {
		c := n.dial(t)
		c.Send(nsqtest.BegunMpub(1000))
		begun = append(begun, c)
	}
	begunAll := func() bool {
		incomplete := 0
		n.each(func(c *conn) {
			if c.commandSince.Load() != 0 {
				incomplete++
			}
		})
		return incomplete == len(begun)
	}
	nsqtest.Eventually(t, "all have begun", begunAll)
	if used, waits := n.opts.Received.Used(), n.counts.inputWaits.Load(); used != 0 || waits != 0 {
		t.Errorf("they have taken %d bytes, and %d wait", used, waits)
	}
	another := n.dial(t) // of the same address
	another.Send(nsqtest.Pub("t", strings.Repeat("x", 1<<20-1000)))
	another.OK()
	if !begunAll() {
		t.Error("one of them has ended")
	}
}

// A client that has taken room for a large command and does not go on sending gives it back soon. One that sends
// steadily has all of MaxCommandTime.
func TestSlowLargeCommandsGiveRoomBack(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Settings{
		MaxLargeInputBytes: 8 << 20, MaxCommandTime: 4 * nsqtest.Patience,
		LargeInputGrace: time.Millisecond,
	})
	began := time.Now()
	stuck := n.dial(t)
	stuck.Send(nsqtest.BegunMpub(largeInputBytes))
	nsqtest.Eventually(t, "it has taken room", func() bool { return n.opts.Received.Used() > 0 })
	stuck.Closed()
	if took, least := time.Since(began), time.Second*largeInputBytes/minLargeInputRate; took < least {
		t.Errorf("it was closed after %v, and had %v", took, least)
	}
	nsqtest.Eventually(t, "the room is free", func() bool { return n.opts.Received.Used() == 0 })
	// This one is above the rate all the time, and takes longer than the one that was stuck.
	steady, body := n.dial(t), strings.Repeat("x", 1<<20-1000)
	command := nsqtest.Pub("t", body)
	steady.Send(command[:2*largeInputBytes])
	pace := time.NewTicker(300 * time.Millisecond)
	defer pace.Stop()
	for rest := command[2*largeInputBytes:]; len(rest) > 0; {
		part := rest[:min(len(rest), 64<<10)]
		steady.Send(part)
		rest = rest[len(part):]
		<-pace.C
	}
	steady.OK()
}
