package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/server/nsq"
	"penstock/tests/support/nsqtest"
)

// In a cluster, the node of the consumer moderates, although another one leads and delivers. Each message comes once.
func TestModeratedConsumerInACluster(t *testing.T) {
	nodes := startCluster(t, 3, Options{Settings: nsq.Settings{ModerationPace: time.Hour}})
	leader, other := bystander(t, nodes, "busy")
	c := other.dial(t)
	numbers := func() {
		var bodies strings.Builder
		for i := range 2000 {
			fmt.Fprintln(&bodies, i)
		}
		other.post(t, "/mpub?topic=busy", bodies.String())
	}
	numbers()
	c.Sub("busy", "c")
	c.Send("RDY 200\n")
	got := c.FinishNext(100, 2000)
	if len(got) != 2000 {
		t.Errorf("%d different messages came", len(got))
	}
	nsqtest.Eventually(t, "a moderated read", func() bool {
		numbers()
		c.FinishNext(100, 2000)
		return other.nsq.Meter().ModeratedReads > 0
	})
	if k := leader.nsq.Meter().ModeratedReads; k != 0 {
		t.Errorf("%d reads of the leader were moderated", k)
	}
	nsqtest.Eventually(t, "all messages are finished", func() bool {
		s := leader.topicNow(t, "busy").Channels[0]
		return s.InFlightCount == 0 && s.Depth == 0
	})
}
