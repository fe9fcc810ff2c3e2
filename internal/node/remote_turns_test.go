package node_test

import (
	"testing"
	"time"

	"penstock/internal/node"
)

// A consumer with RDY 1 waits for an empty leader only for a short time again and again, while another leader has
// messages. Before, each had the credit half of the time.
func TestRemoteReadyAtAnEmptyLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	p, _ := tc.nodeWithoutLeadership()
	g := tc.subscribeAt(p, "t", "c", 1)
	topic := tc.topic(p, "t")
	key := "k"
	for topic.PartitionFor([]byte(key)) != 1 {
		key += "k"
	}
	batch := make([]node.Outgoing, 1000)
	for i := range batch {
		batch[i] = node.Outgoing{Body: []byte("m"), Headers: headers("key", key)}
	}
	// The machine may be busy, so the test waits for a while in which little time was lost.
	const while, long = 300 * time.Millisecond, 20 * time.Millisecond
	best := 0.0
	for began := time.Now(); time.Since(began) < patience; {
		for range 8 {
			if _, err := topic.PublishMessages(ctxBg, batch); err != nil {
				t.Fatal(err)
			}
		}
		g.finish(g.next())
		from, last, lost := time.Now(), time.Now(), time.Duration(0)
		for range 8*len(batch) - 1 {
			g.finish(g.next())
			now := time.Now()
			if gap := now.Sub(last); gap > long {
				lost += gap
			}
			if last = now; now.Sub(from) < while {
				continue
			}
			if best = max(best, 1-lost.Seconds()/now.Sub(from).Seconds()); best > 0.7 {
				return
			}
			from, lost = now, 0
		}
	}
	t.Errorf("at best it waited for the empty leader for %.0f %% of the time", 100-100*best)
}
