package server

import (
	"fmt"
	"testing"
	"time"
)

// A subscription to one partition gets only messages of that partition, even if a node leads several.
func TestYouzanOnePartition(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		const parts, each = 4, 10
		makeChannel(t, nodes, "t", "c", parts)
		readers := make([]*client, parts)
		for part := range parts {
			c := nodes[leaderOfPartition(t, nodes, "t", part)].dial(t)
			c.send(fmt.Sprintf("SUB t c %d\nRDY 100\n", part))
			c.ok()
			readers[part] = c
		}
		p := nodes[0].dial(t)
		for i := range each {
			for part := range parts {
				p.send(fmt.Sprintf("PUB t %d\n", part) + sized(fmt.Sprint(part, " ", i)))
				p.ok()
			}
		}
		for part, c := range readers {
			for i := range each {
				m := c.formed(false, false)
				if m.body != fmt.Sprint(part, " ", i) || m.id.Partition() != uint32(part) {
					t.Fatalf("the reader of partition %d got %+v", part, m)
				}
				c.send("FIN " + m.full + "\n")
			}
			c.silent(10 * time.Millisecond)
		}
	})
}
