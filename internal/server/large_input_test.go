package server

import (
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
)

// A large command costs nothing of the budget before as much of it has arrived as a small one may have: what its head
// announces is only a word.
func TestBegunCommandsTakeNoRoom(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{MaxLargeInputBytes: 8 << 20, MaxCommandTime: patience}})
	var begun []*client
	for range 60 {
		c := n.dial(t)
		c.send(begunMpub(1000))
		begun = append(begun, c)
	}
	begunAll := func() bool {
		incomplete := 0
		n.nsq.each(func(c *conn) {
			if c.commandSince.Load() != 0 {
				incomplete++
			}
		})
		return incomplete == len(begun)
	}
	eventually(t, "all have begun", begunAll)
	if used, waits := n.received.Used(), n.nsq.counts.inputWaits.Load(); used != 0 || waits != 0 {
		t.Errorf("they have taken %d bytes, and %d wait", used, waits)
	}
	another := n.dial(t) // of the same address
	another.send(pub("t", strings.Repeat("x", 1<<20-1000)))
	another.ok()
	if !begunAll() {
		t.Error("one of them has ended")
	}
}

// A client that has taken room for a large command and does not go on sending gives it back soon. One that sends
// steadily has all of MaxCommandTime.
func TestSlowLargeCommandsGiveRoomBack(t *testing.T) {
	t.Parallel()
	n := startNode(t, node.Options{}, Options{nsqSettings: nsqSettings{MaxLargeInputBytes: 8 << 20, MaxCommandTime: 4 * patience, LargeInputGrace: time.Millisecond}})
	began := time.Now()
	stuck := n.dial(t)
	stuck.send(begunMpub(largeInputBytes))
	eventually(t, "it has taken room", func() bool { return n.received.Used() > 0 })
	stuck.closed()
	if took, least := time.Since(began), time.Second*largeInputBytes/minLargeInputRate; took < least {
		t.Errorf("it was closed after %v, and had %v", took, least)
	}
	eventually(t, "the room is free", func() bool { return n.received.Used() == 0 })
	// This one is above the rate all the time, and takes longer than the one that was stuck.
	steady, body := n.dial(t), strings.Repeat("x", 1<<20-1000)
	command := pub("t", body)
	steady.send(command[:2*largeInputBytes])
	pace := time.NewTicker(300 * time.Millisecond)
	defer pace.Stop()
	for rest := command[2*largeInputBytes:]; len(rest) > 0; {
		part := rest[:min(len(rest), 64<<10)]
		steady.send(part)
		rest = rest[len(part):]
		<-pace.C
	}
	steady.ok()
}
