package server

import (
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/internal/server/api"
	"penstock/tests/support/nsqtest"
)

// The life of a message, over HTTP, from every node.
func TestTopicTraceHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 2)
		nodes[0].post(t, "/pub?topic=t", "hello")
		var list api.PeekList
		nsqtest.Eventually(t, "the message", func() bool {
			nodes[0].ask(t, "GET", "/topic/peek?topic=t", "", &list)
			return len(list.Messages) == 1
		})
		m := &list.Messages[0]
		for _, n := range nodes {
			var tr node.Trace
			n.ask(t, "GET", "/topic/trace?topic=t&id="+m.ID, "", &tr)
			if tr.ID != m.ID || tr.Partition != m.Partition || tr.Stored == nil || tr.Stored.BodyBytes != 5 ||
				tr.Stored.Leader == "" || len(tr.Channels) != 1 || tr.Channels[0].State != fold.StateWaiting {
				t.Errorf("%+v", tr)
			}
			unknown := m.ID[:12] + "0fff"
			n.refused(t, "GET", "/topic/trace?topic=t&id="+unknown, "", 404, "no message was ever published with this id")
			for _, id := range []string{"", "7", strings.ToUpper("000000000000000a"), m.ID + "0"} {
				n.refused(t, "GET", "/topic/trace?topic=t&id="+id, "", 400, "16 lower-case hex digits")
			}
			n.refused(t, "GET", "/topic/trace?topic=t&id=0007000000000000", "", 404, "it names partition 7, and topic t has")
			n.refused(t, "GET", "/topic/trace?topic=nothing&id="+m.ID, "", 404, "TOPIC_NOT_FOUND")
			n.refused(t, "POST", "/topic/trace?topic=t&id="+m.ID, "", 405, "METHOD_NOT_ALLOWED")
		}
	})
}
