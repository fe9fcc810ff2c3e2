package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"penstock/tests/support/nsqtest"
)

// Tests of youzan's own Go client, beyond the single commands in youzan_test.go.

// The client opens a connection for each partition, even if one node leads all of them, and gives each connection its
// own place in the log. The consumer of one partition does not count as one that would lose its place in another
// partition.
func TestYouzanPlaceOfEachPartition(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		const parts, each = 4, 10
		makeChannel(t, nodes, "t", "c", parts)
		p := nodes[0].dial(t)
		for i := range each {
			for part := range parts {
				p.Send(fmt.Sprintf("PUB t %d\n", part) + nsqtest.Sized(fmt.Sprint(part, " ", i)))
				p.OK()
			}
		}
		readers := make([]*nsqtest.Client, parts)
		for part := range parts {
			c := nodes[leaderOfPartition(t, nodes, "t", part)].dial(t)
			c.Send(fmt.Sprintf("SUB_ADVANCED t c %d virtual_queue:%d\n", part, each-1-part))
			c.OK()
			readers[part] = c
		}
		for part, c := range readers {
			c.Send("RDY 100\n")
			for i := each - 1 - part; i < each; i++ {
				if m := readFormed(c, false, true); m.body != fmt.Sprint(part, " ", i) || m.place != uint64(i) {
					t.Fatalf("partition %d: want %d, got %+v", part, i, m)
				}
			}
		}
		// A consumer of all partitions would lose its place in each of them.
		for _, sub := range []string{"SUB t d", "SUB_ADVANCED t d"} {
			lead := nodes[leaderOfPartition(t, nodes, "t", 0)]
			all := lead.dial(t)
			all.Send(sub + "\n")
			all.OK()
			c := lead.dial(t)
			c.Send("SUB_ADVANCED t d 0 virtual_queue:3\nRDY 1\n")
			c.OK()
			c.Silent(30 * time.Millisecond)
			all.Conn.Close()
			nsqtest.Eventually(t, "it to leave", func() bool { return len(lead.topicNow(t, "t").Channels[1].Consumers) == 1 })
			c.Conn.Close()
			nsqtest.Eventually(t, "both to leave", func() bool { return len(lead.topicNow(t, "t").Channels[1].Consumers) == 0 })
		}
	})
}

// Consumers of all partitions subscribe at the same time. No consumer may get a second message before it has finished
// the first, whichever of them made the channel ordered, and at whichever node. B57
func TestYouzanOrderedAtOnce(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		const parts, each, channels = 6, 3, 8
		makeChannel(t, nodes, "t", "c0", parts)
		for i := range channels {
			nodes[0].post(t, fmt.Sprintf("/channel/create?topic=t&channel=c%d", i), "")
		}
		p := nodes[0].dial(t)
		leads := make([]*testNode, parts)
		for part := range parts {
			leads[part] = nodes[leaderOfPartition(t, nodes, "t", part)]
			for i := range each {
				p.Send(fmt.Sprintf("PUB t %d\n", part) + nsqtest.Sized(fmt.Sprint(part, " ", i)))
				p.OK()
			}
		}
		for channel := range channels {
			readers := make([]*nsqtest.Client, parts)
			for part, n := range leads {
				readers[part] = n.dial(t)
			}
			for part, c := range readers {
				c.Send(fmt.Sprintf("SUB_ORDERED t c%d %d\nRDY 10\n", channel, part))
			}
			for part, c := range readers {
				c.OK()
				first := readFormed(c, false, true)
				c.Silent(5 * time.Millisecond)
				c.Send("FIN " + first.full + "\n")
				if second := readFormed(c, false, true); first.place != 0 || second.place != 1 {
					t.Fatalf("channel %d, partition %d: %+v, then %+v", channel, part, first, second)
				}
				c.Conn.Close()
			}
		}
	})
}

// Programs that create topics for youzan's clients use another parameter for the number of partitions.
func TestYouzanTopicCreate(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		const others = "&replicator=1&extend=true&orderedmulti=true&syncdisk=1"
		for _, x := range []struct {
			query string
			want  int
			body  string
		}{
			{"?topic=t&partition_num=3" + others, 200, ""},
			{"?topic=u&partition_num=0" + others, 400, "INVALID_ARG_TOPIC_PARTITION_NUM"},
			{"?topic=u&partition_num=x", 400, "INVALID_ARG_TOPIC_PARTITION_NUM"},
			{"?topic=u&partition_num=", 400, "INVALID_ARG_TOPIC_PARTITION_NUM"},
			{"?topic=u&partition_num=999999999", 400, "INVALID_ARG_TOPIC_PARTITION_NUM"},
			{"?topic=u&replicator=0", 400, "INVALID_ARG_TOPIC_REPLICATOR"},
			{"?topic=u&replicas=x", 400, "INVALID_REPLICAS"},
			{"?topic=u&replicas=17", 400, "INVALID_REPLICAS"},
		} {
			reply, body := nodes[0].lookupDo(t, "POST", "/topic/create"+x.query)
			if reply.StatusCode != x.want || !strings.Contains(body, x.body) {
				t.Errorf("%s: %d %s", x.query, reply.StatusCode, body)
			}
		}
		for _, n := range nodes {
			nsqtest.Eventually(t, "the topic to be known", func() bool {
				top, ok := n.e.Catalog().LookupTopic("t")
				return ok && top.Partitions() == 3
			})
			if _, ok := n.e.Catalog().LookupTopic("u"); ok {
				t.Error("a topic was made with a number of partitions that is refused")
			}
		}
	})
}
