package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/internal/server/publish"
)

// B59: tagged messages go to consumers with their tag, if there are any, and otherwise to consumers without a tag. An
// invalid tag is refused.
func TestYouzanTags(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 1)
		lead := nodes[leaderOfPartition(t, nodes, "t", 0)]
		for _, tag := range []string{"with space", "ümlaut", strings.Repeat("x", publish.MaxTagBytes+1)} {
			c := lead.dial(t)
			c.send("IDENTIFY\n" + sized(`{"desired_tag":"`+tag+`"}`))
			c.refusedAs("E_BAD_BODY")
			c.closed()
		}
		red, none := lead.dial(t), lead.dial(t)
		red.send("IDENTIFY\n" + sized(`{"feature_negotiation":true,"extend_support":true,"desired_tag":"red"}`))
		_, d, err := red.frame(patience)
		var reply Negotiated
		if err != nil || json.Unmarshal(d, &reply) != nil || reply.DesiredTag != "red" {
			t.Fatalf("IDENTIFY says %s, %v", d, err)
		}
		none.identify(`{"extend_support":true}`)
		for _, c := range []*client{red, none} {
			c.send("SUB t c 0\n")
			c.ok()
			c.send("RDY 10\n")
		}
		p := nodes[len(nodes)-1].dial(t)
		const ext = `{"##client_dispatch_tag":"red"}`
		p.send("PUB_EXT t 0\n" + sized(withExt(ext, "for red")) + "PUB t 0\n" + sized("for all"))
		p.ok()
		p.ok()
		if m := red.formed(true, false); m.body != "for red" || m.ext != ext {
			t.Errorf("red got %+v", m)
		}
		if m := none.formed(true, false); m.body != "for all" {
			t.Errorf("the other one got %+v", m)
		}
		red.nc.Close() // its messages go to the other one, since no consumer has the tag now
		if m := none.formed(true, false); m.body != "for red" || m.attempts != 2 {
			t.Errorf("then it got %+v", m)
		}
		p.send("PUB_EXT t 0\n" + sized(withExt(ext, "for red again")))
		p.ok()
		if m := none.formed(true, false); m.body != "for red again" {
			t.Errorf("then it got %+v", m)
		}
	})
}

// A tag also works for a consumer at a node that leads nothing of the topic: the leader chooses the messages. B59
func TestYouzanTagsFromElsewhere(t *testing.T) {
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1"})
	leader, other := bystander(t, nodes, "t")
	red, none := other.dial(t), leader.dial(t)
	red.identify(`{"extend_support":true,"desired_tag":"red"}`)
	none.identify(`{"extend_support":true}`)
	for _, c := range []*client{red, none} {
		c.sub("t", "c")
		c.send("RDY 100\n")
	}
	eventually(t, "both to be the leader's consumers", func() bool {
		n := 0
		for _, k := range leader.topicNow(t, "t").Channels[0].Consumers {
			n += k.ReadyCount
		}
		return n == 200
	})
	p := other.dial(t)
	for i := range 20 {
		red := withExt(`{"##client_dispatch_tag":"red"}`, fmt.Sprint("red ", i))
		p.send("PUB_EXT t 0\n" + sized(red) + "PUB t 0\n" + sized(fmt.Sprint("any ", i)))
		p.ok()
		p.ok()
	}
	for i := range 20 {
		if m := red.formed(true, false); m.body != fmt.Sprint("red ", i) {
			t.Errorf("red got %+v", m)
		}
		if m := none.formed(true, false); m.body != fmt.Sprint("any ", i) {
			t.Errorf("the other one got %+v", m)
		}
	}
	red.silent(20 * time.Millisecond)
}
