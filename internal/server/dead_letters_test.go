package server

import (
	"slices"
	"testing"

	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/tests/support/nsqtest"
)

// The overview's page says how many dead letters wait for a redrive, and where; a redrive ends that. The row of a
// channel names the topic of its dead letters.
func TestDeadLettersThatWait(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.post(t, "/topic/create?topic=t", "")
	n.post(t, "/channel/create?topic=t&channel=c", "")
	waits := func() []api.DeadLetters { return answer[api.TopicPage](t, n, "/topics?dead_letters=true").DeadLetters }
	if got := waits(); len(got) != 0 {
		t.Errorf("before: %+v", got)
	}
	n.post(t, "/channel/settings?topic=t&channel=c", `{"version":0,"max_attempts":1}`)
	c := n.dial(t)
	c.Sub("t", "c")
	c.Send("RDY 1\n")
	for range 3 {
		n.post(t, "/pub?topic=t", "x")
		c.Send("REQ " + c.Message().ID + " 0\n")
	}
	want := []api.DeadLetters{{Topic: "t.DLQ", Count: 3}}
	nsqtest.Eventually(t, "three dead letters wait", func() bool { return slices.Equal(waits(), want) })
	if row := answer[api.ChannelPage](t, n, "/channels?topic=t").Channels[0]; row.DeadLetterTopic != "t.DLQ" {
		t.Errorf("%+v", row)
	}
	if got := answer[api.TopicPage](t, n, "/topics").DeadLetters; got != nil {
		t.Errorf("nobody asked, and it says %+v", got)
	}
	c.Send("RDY 0\n")
	n.post(t, "/channel/redrive?topic=t&channel=c", "")
	nsqtest.Eventually(t, "none waits after the redrive", func() bool { return len(waits()) == 0 })
}
