package nsq

import (
	"testing"

	"penstock/engine"
)

// Producers are counted while they are connected: one that has gone, or that only reads, does not count.
func TestConnectedProducers(t *testing.T) {
	n := startNode(t, engine.Options{}, Options{})
	connected := func(want int) {
		t.Helper()
		eventually(t, "the connected producers are counted", func() bool {
			for _, topic := range n.stats("", "", false).Topics {
				if topic.Name == "t" {
					return topic.Connected == want
				}
			}
			return want == 0
		})
	}
	reader := n.dial(t)
	reader.sub("t", "c")
	connected(0)
	one, other := n.dial(t), n.dial(t)
	for _, c := range []*client{one, other, one} {
		c.send(pub("t", "12345"))
		c.ok()
	}
	connected(2)
	if err := one.nc.Close(); err != nil {
		t.Fatal(err)
	}
	connected(1)
}
