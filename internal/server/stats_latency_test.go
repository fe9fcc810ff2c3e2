package server

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/stats"
	"penstock/tests/support/nsqtest"
)

// The node that leads a topic shows in /stats the latency from publish to FIN of each channel, and of the channels
// together, wherever the consumer is. The text format is nsqd's. A requeued message counts once, from its publish. A
// message that is not finished does not count.
func TestStatsLatency(t *testing.T) {
	test := func(t *testing.T, nodes []*testNode) {
		leader, at := nodes[0], nodes[0]
		if len(nodes) > 1 {
			leader, at = bystander(t, nodes, "t")
		}
		const delay = 1500 * time.Millisecond // the fast channel is faster, on a busy machine, too
		for _, channel := range []string{"slow", "fast"} {
			c := at.dial(t)
			c.Sub("t", channel)
			c.Send("RDY 10\n")
			at.post(t, "/mpub?topic=t", "a\nb\nc\n")
			var ids []string
			for range 3 {
				ids = append(ids, c.Message().ID)
			}
			if channel == "slow" {
				c.Send("REQ " + ids[0] + " 1500\n")
				if m := c.Message(); m.ID != ids[0] {
					t.Fatalf("got %+v", m)
				}
			}
			c.Send("FIN " + ids[0] + "\nFIN " + ids[1] + "\n")
			nsqtest.Eventually(t, "two to be finished", func() bool {
				return len(leader.stats.Collect("t", channel, true).Topics) == 1 &&
					leader.stats.Collect("t", channel, true).Topics[0].Channels[0].Latency.Count == 2
			})
			c.Conn.Close()
		}
		topic := leader.stats.Collect("t", "", false).Topics[0]
		if topic.Latency.Count != 4 || topic.Latency.Percentiles[0].Value < float64(delay) {
			t.Errorf("of the topic: %+v", topic.Latency)
		}
		for _, ch := range topic.Channels {
			if len(ch.Latency.Percentiles) != 2 || ch.Latency.Percentiles[0].Quantile != 1 ||
				ch.Latency.Percentiles[1].Quantile != 0.99 {
				t.Fatalf("of channel %s: %+v", ch.Name, ch.Latency)
			}
			top := time.Duration(ch.Latency.Percentiles[0].Value)
			if top < delay != (ch.Name == "fast") || top == 0 {
				t.Errorf("the longest of channel %s took %v", ch.Name, top)
			}
		}
		_, body := leader.do(t, "GET", "/stats?format=json&topic=t&channel=slow", "")
		var reply struct {
			Topics []struct {
				Channels []struct {
					Latency struct {
						Count       int
						Percentiles []map[string]float64
					} `json:"e2e_processing_latency"`
				}
			}
		}
		if err := json.Unmarshal([]byte(body), &reply); err != nil || reply.Topics[0].Channels[0].Latency.Count != 2 ||
			reply.Topics[0].Channels[0].Latency.Percentiles[1]["quantile"] != 0.99 {
			t.Errorf("%s, %v", body, err)
		}
		_, text := leader.do(t, "GET", "/stats?topic=t&channel=slow", "")
		if all := regexp.MustCompile(`e2e%: [1-9][0-9.]*s, `).FindAllString(text, -1); len(all) != 2 {
			t.Errorf("in text:\n%s", text)
		}
	}
	made, err := stats.Latencies([]float64{1, 0.99}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	eo := node.Options{Latencies: made}
	t.Run("one node", func(t *testing.T) { test(t, []*testNode{startNode(t, eo, Options{})}) })
	t.Run("three nodes", func(t *testing.T) { test(t, startClusterOf(t, 3, eo, Options{BroadcastAddress: "127.0.0.1"})) })
}
