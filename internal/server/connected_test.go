package server

import (
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/nsqtest"
)

// Producers are counted while they are connected: one that has gone, that only reads, or of which nothing was stored
// yet, does not count.
func TestConnectedProducers(t *testing.T) {
	disk := faultaio.New(faultaio.Options{Seed: 1})
	n := startNode(t, node.Options{Disk: disk}, Options{})
	count := func() int {
		for _, topic := range n.stats.Collect("", "", false).Topics {
			if topic.Name == "t" {
				return topic.Connected
			}
		}
		return 0
	}
	connected := func(want int) {
		t.Helper()
		nsqtest.Eventually(t, "the connected producers are counted", func() bool { return count() == want })
	}
	reader := n.dial(t)
	reader.Sub("t", "c")
	connected(0)
	one, other := n.dial(t), n.dial(t)
	for _, c := range []*nsqtest.Client{one, other, one} {
		c.Send(nsqtest.Pub("t", "12345"))
		c.OK()
	}
	connected(2)
	if err := one.Conn.Close(); err != nil {
		t.Fatal(err)
	}
	connected(1)
	late := n.dial(t)
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Count: -1, Hold: true})
	late.Send(nsqtest.Pub("t", "12345"))
	nsqtest.Eventually(t, "the message waits for the disk", func() bool { return disk.Blocked() > 0 })
	if got := count(); got != 1 {
		t.Errorf("%d producers before the message was stored, want 1", got)
	}
	disk.ClearRules()
	disk.ReleaseHeld()
	late.OK()
	connected(2)
}
