package server

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// In a cluster, the node of the consumer moderates, although another one leads and delivers. Each message comes once.
func TestModeratedConsumerInACluster(t *testing.T) {
	nodes := startCluster(t, 3, Options{nsqSettings: nsqSettings{ModerationPace: time.Hour}})
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
	c.sub("busy", "c")
	c.send("RDY 200\n")
	got := c.finishNext(100, 2000)
	if len(got) != 2000 {
		t.Errorf("%d different messages came", len(got))
	}
	eventually(t, "a moderated read", func() bool {
		numbers()
		c.finishNext(100, 2000)
		return other.nsq.Meter().ModeratedReads > 0
	})
	if k := leader.nsq.Meter().ModeratedReads; k != 0 {
		t.Errorf("%d reads of the leader were moderated", k)
	}
	eventually(t, "all messages are finished", func() bool {
		s := leader.topicNow(t, "busy").Channels[0]
		return s.InFlightCount == 0 && s.Depth == 0
	})
}
