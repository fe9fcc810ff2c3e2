package native

import (
	"testing"
	"time"

	"penstock/netproto"
	"penstock/tests/support/faultaio"
)

// A client that waits for one batch at a time is served by the reader of its connection. If the disk hangs meanwhile,
// the node still answers the client's pings, and takes its next batch.
func TestLoneProduceWhileDiskHangs(t *testing.T) {
	w := openOnDisk(t, nil)
	disk := w.disk
	c, err := w.try(func(o *netproto.Options) { o.PingEvery = 50 * time.Millisecond })
	if err != nil {
		t.Fatal(err)
	}
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
	before := c.c.Stats().Reads // a Pong is no frame for the handler
	eventually(t, "pings are answered", func() bool { return c.c.Stats().Reads >= before+10 })
	second := c.publish(topic, 0, seal(t, p, 51, 1))
	disk.ClearRules()
	disk.ReleaseHeld()
	if m := c.produced(first); m.First != 50 {
		t.Errorf("%+v", m)
	}
	if m := c.produced(second); m.First != 51 {
		t.Errorf("%+v", m)
	}
}
