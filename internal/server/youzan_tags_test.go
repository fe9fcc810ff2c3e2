package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/server/publish"
	"penstock/tests/support/nsqtest"
)

// B59: tagged messages go to consumers with their tag, if there are any, and otherwise to consumers without a tag. An
// invalid tag is refused.
func TestYouzanTags(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 1)
		lead := nodes[leaderOfPartition(t, nodes, "t", 0)]
		for _, tag := range []string{"with space", "ümlaut", strings.Repeat("x", publish.MaxTagBytes+1)} {
			c := lead.dial(t)
			c.Send("IDENTIFY\n" + nsqtest.Sized(`{"desired_tag":"`+tag+`"}`))
			refusedAs(c, "E_BAD_BODY")
			c.Closed()
		}
		red, none := lead.dial(t), lead.dial(t)
		red.Send("IDENTIFY\n" + nsqtest.Sized(`{"feature_negotiation":true,"extend_support":true,"desired_tag":"red"}`))
		_, d, err := red.Frame(nsqtest.Patience)
		var reply nsqtest.Negotiated
		if err != nil || json.Unmarshal(d, &reply) != nil || reply.DesiredTag != "red" {
			t.Fatalf("IDENTIFY says %s, %v", d, err)
		}
		none.Identify(`{"extend_support":true}`)
		for _, c := range []*nsqtest.Client{red, none} {
			c.Send("SUB t c 0\n")
			c.OK()
			c.Send("RDY 10\n")
		}
		p := nodes[len(nodes)-1].dial(t)
		const ext = `{"##client_dispatch_tag":"red"}`
		p.Send("PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(ext, "for red")) + "PUB t 0\n" + nsqtest.Sized("for all"))
		p.OK()
		p.OK()
		if m := readFormed(red, true, false); m.body != "for red" || m.ext != ext {
			t.Errorf("red got %+v", m)
		}
		if m := readFormed(none, true, false); m.body != "for all" {
			t.Errorf("the other one got %+v", m)
		}
		red.Conn.Close() // its messages go to the other one, since no consumer has the tag now
		if m := readFormed(none, true, false); m.body != "for red" || m.attempts != 2 {
			t.Errorf("then it got %+v", m)
		}
		p.Send("PUB_EXT t 0\n" + nsqtest.Sized(nsqtest.WithExt(ext, "for red again")))
		p.OK()
		if m := readFormed(none, true, false); m.body != "for red again" {
			t.Errorf("then it got %+v", m)
		}
	})
}

// A tag also works for a consumer at a node that leads nothing of the topic: the leader chooses the messages. B59
func TestYouzanTagsFromElsewhere(t *testing.T) {
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1"})
	leader, other := bystander(t, nodes, "t")
	red, none := other.dial(t), leader.dial(t)
	red.Identify(`{"extend_support":true,"desired_tag":"red"}`)
	none.Identify(`{"extend_support":true}`)
	for _, c := range []*nsqtest.Client{red, none} {
		c.Sub("t", "c")
		c.Send("RDY 100\n")
	}
	nsqtest.Eventually(t, "both to be the leader's consumers", func() bool {
		n := 0
		for _, k := range leader.topicNow(t, "t").Channels[0].Consumers {
			n += k.ReadyCount
		}
		return n == 200
	})
	p := other.dial(t)
	for i := range 20 {
		red := nsqtest.WithExt(`{"##client_dispatch_tag":"red"}`, fmt.Sprint("red ", i))
		p.Send("PUB_EXT t 0\n" + nsqtest.Sized(red) + "PUB t 0\n" + nsqtest.Sized(fmt.Sprint("any ", i)))
		p.OK()
		p.OK()
	}
	for i := range 20 {
		if m := readFormed(red, true, false); m.body != fmt.Sprint("red ", i) {
			t.Errorf("red got %+v", m)
		}
		if m := readFormed(none, true, false); m.body != fmt.Sprint("any ", i) {
			t.Errorf("the other one got %+v", m)
		}
	}
	red.Silent(20 * time.Millisecond)
}
