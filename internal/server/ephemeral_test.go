package server

import (
	"fmt"
	"testing"

	"penstock/tests/support/nsqtest"
)

// An ephemeral channel gets what waits at a topic without channels, as in nsqd. What an earlier ephemeral channel has
// had, or could have had, and what was there before a second one of another name, comes to no other ephemeral channel.
func TestEphemeralChannelsBeginAtTheEnd(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		nodes[0].post(t, "/topic/create?topic=t", "")
		for _, n := range nodes {
			nsqtest.Eventually(t, "the topic to be known", func() bool { _, ok := n.e.Catalog().LookupTopic("t"); return ok })
		}
		lead := nodes[leaderOfPartition(t, nodes, "t", 0)]
		for i := range 2 * len(nodes) {
			n := nodes[i%len(nodes)]
			n.post(t, "/pub?topic=t", fmt.Sprint("waits ", i))
			c := n.dial(t)
			c.Sub("t", "tail#ephemeral")
			c.Send("RDY 1\n")
			next := func(c *nsqtest.Client, want string) {
				t.Helper()
				m := c.Message()
				if m.Body != want || m.Attempts != 1 {
					t.Fatalf("round %d: got %q for the %d. time, want %q", i, m.Body, m.Attempts, want)
				}
				c.Send("FIN " + m.ID + "\n")
			}
			next(c, fmt.Sprint("waits ", i))
			second := n.dial(t)
			second.Sub("t", "other#ephemeral")
			second.Send("RDY 1\n")
			n.post(t, "/pub?topic=t", fmt.Sprint("live ", i))
			next(c, fmt.Sprint("live ", i))
			next(second, fmt.Sprint("live ", i))
			c.Conn.Close()
			second.Conn.Close()
			nsqtest.Eventually(t, "the channels to vanish", func() bool { return len(lead.topicNow(t, "t").Channels) == 0 })
		}
		// A channel that is not ephemeral is the topic's first one in the log.
		c := lead.dial(t)
		c.Sub("t", "c")
		c.Send("RDY 1\n")
		if m := c.Message(); m.Body != "waits 0" {
			t.Errorf("the first channel begins with %q", m.Body)
		}
	})
}
