package native

import (
	"testing"

	"penstock/netproto"
	"penstock/tests/support/faultaio"
)

// On an idle single node, a client that waits for one batch at a time is served by the reader of its connection, which
// writes the batch. If the disk hangs, that connection waits with it, as one of an NSQ client does, and no other one:
// the node answers other clients' questions. What came meanwhile is stored once the disk answers.
func TestLoneProduceWhileDiskHangs(t *testing.T) {
	w := openOnDisk(t, nil)
	disk := w.disk
	c, other := w.dial(), w.dial()
	topic := c.ask(true, "orders").Topics[0].ID
	p := c.openProducer(topic, 0, "")
	for i := range uint32(50) { // they find the commit log idle, and are stored by the reader
		c.produced(c.publish(topic, 0, seal(t, p, i, 1)))
	}
	t.Cleanup(func() { // before the server is stopped
		disk.ClearRules()
		disk.ReleaseHeld()
	})
	disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1})
	first := c.publish(topic, 0, seal(t, p, 50, 1))
	eventually(t, "the write hangs", func() bool { return disk.Blocked() > 0 })
	second := c.publish(topic, 0, seal(t, p, 51, 1))
	if m := other.ask(true, "orders"); len(m.Topics) != 1 || m.Topics[0].Status != netproto.StatusOK {
		t.Errorf("another client is answered %+v", m)
	}
	disk.ClearRules()
	disk.ReleaseHeld()
	if m := c.produced(first); m.First != 50 {
		t.Errorf("%+v", m)
	}
	if m := c.produced(second); m.First != 51 {
		t.Errorf("%+v", m)
	}
}
