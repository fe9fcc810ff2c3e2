package server

import (
	"fmt"
	"testing"
	"time"

	"penstock/tests/support/nsqtest"
)

// A subscription to one partition gets only messages of that partition, even if a node leads several.
func TestYouzanOnePartition(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		const parts, each = 4, 10
		makeChannel(t, nodes, "t", "c", parts)
		readers := make([]*nsqtest.Client, parts)
		for part := range parts {
			c := nodes[leaderOfPartition(t, nodes, "t", part)].dial(t)
			c.Send(fmt.Sprintf("SUB t c %d\nRDY 100\n", part))
			c.OK()
			readers[part] = c
		}
		p := nodes[0].dial(t)
		for i := range each {
			for part := range parts {
				p.Send(fmt.Sprintf("PUB t %d\n", part) + nsqtest.Sized(fmt.Sprint(part, " ", i)))
				p.OK()
			}
		}
		for part, c := range readers {
			for i := range each {
				m := readFormed(c, false, false)
				if m.body != fmt.Sprint(part, " ", i) || m.id.Partition() != uint32(part) {
					t.Fatalf("the reader of partition %d got %+v", part, m)
				}
				c.Send("FIN " + m.full + "\n")
			}
			c.Silent(10 * time.Millisecond)
		}
	})
}
