package server

import (
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/server/api"
	"penstock/internal/server/history"
	"penstock/tests/support/nsqtest"
)

// What a person should look at is in one list, the worst first; a channel that others consume is not in it.
func TestAttention(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		n := nodes[0]
		for _, n := range nodes {
			nsqtest.Eventually(t, "all nodes are connected", func() bool {
				return len(answer[api.TopicPage](t, n, "/topics").Missing) == 0
			})
		}
		n.post(t, "/topic/create?topic=t&partitions=3", "")
		for _, c := range []string{"alone", "served", "skips", "paused"} {
			n.post(t, "/channel/create?topic=t&channel="+c, "")
		}
		n.post(t, "/channel/skip?topic=t&channel=skips", "")
		n.post(t, "/channel/pause?topic=t&channel=paused", "")
		for _, n := range nodes {
			c := n.dial(t)
			c.Sub("t", "served")
		}
		for range 12 {
			n.post(t, "/pub?topic=t", "x")
		}
		nsqtest.Eventually(t, "all messages wait", func() bool {
			c := answer[api.ChannelPage](t, n, "/channels?topic=t&channel=alone")
			return len(c.Channels) == 1 && c.Channels[0].Depth == 12
		})
		for _, n := range nodes { // as the clock would do
			n.api.Look(time.Now().Add(history.Interval))
		}
		for _, n := range nodes {
			p := answer[api.AttentionPage](t, n, "/attention")
			var got []string
			for _, c := range p.Channels {
				got = append(got, c.Topic+"/"+c.Name+": "+strings.Join(c.Why, ", "))
			}
			want := []string{"t/skips: skipping", "t/alone: no consumers", "t/paused: no consumers, paused"}
			if !slices.Equal(got, want) || p.Count != 3 || len(p.Missing) != 0 || p.Channels[1].Depth != 12 {
				t.Errorf("%q, want %q; %+v", got, want, p)
			}
			p = answer[api.AttentionPage](t, n, "/attention?offset=1&count=1")
			if len(p.Channels) != 1 || p.Channels[0].Name != "alone" {
				t.Errorf("the second row: %+v", p)
			}
		}
	})
}

// Any node says of all since when they run, and how much room they have left.
func TestVitals(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		nsqtest.Eventually(t, "all nodes say it", func() bool {
			v := answer[api.VitalsList](t, nodes[0], "/vitals")
			ok := len(v.Nodes) == len(nodes) && len(v.Missing) == 0
			for _, n := range v.Nodes {
				ok = ok && n.Node != "" && n.MemoryBytes > 1<<20 && n.UptimeSeconds > 0 && !n.Started.IsZero() && n.Version != ""
			}
			return ok
		})
	})
}

// A channel's row says, if it is asked, what waits in each partition, and behind which message of an ordered channel.
// That message can be finished by its id.
func TestLagOfPartitions(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		n := nodes[len(nodes)-1]
		n.post(t, "/topic/create?topic=t", "")
		n.post(t, "/channel/create?topic=t&channel=c", "")
		n.post(t, "/channel/settings?topic=t&channel=c", `{"version":0,"order":"key"}`)
		c := n.dial(t)
		c.Sub("t", "c")
		c.Send("RDY 10\n")
		for range 3 {
			n.post(t, "/pub?topic=t&key=k", "x")
		}
		held := c.Message().ID
		lag := func() (row api.PartitionLag) {
			p := answer[api.ChannelPage](t, n, "/channels?topic=t&channel=c&partitions=true")
			if len(p.Channels) != 1 || len(p.Channels[0].Partitions) != 1 {
				return row
			}
			return p.Channels[0].Partitions[0]
		}
		nsqtest.Eventually(t, "two wait behind the first", func() bool {
			l := lag()
			return l.Depth == 2 && l.InFlightCount == 1 && l.BlockedBy == held && l.BlockedCount == 2 && l.Leader != ""
		})
		n.refused(t, "POST", "/channel/finish?topic=t&channel=c", "", 400, "say one id")
		n.refused(t, "POST", "/channel/finish?topic=t&channel=c&id=x", "", 400, "is not a message id")
		n.post(t, "/channel/finish?topic=t&channel=c&id="+held, "")
		n.refused(t, "POST", "/channel/finish?topic=t&channel=c&id="+held, "", 404, "does not wait")
		if next := c.Message().ID; next == held {
			t.Errorf("%s came again", next)
		}
		nsqtest.Eventually(t, "one waits", func() bool { return lag().Depth == 1 })
	})
}

// The points of hours are of the same kind as those of minutes, and every node has them.
func TestHistoryOfHours(t *testing.T) {
	nodes := startCluster(t, 3, Options{})
	for _, n := range nodes {
		nsqtest.Eventually(t, "all nodes are connected", func() bool {
			return len(answer[api.TopicPage](t, n, "/topics").Missing) == 0
		})
	}
	for i := range 2 { // as the clock would do
		for _, n := range nodes {
			n.api.Look(time.Now().Add(time.Duration(1+i) * history.HoursInterval))
		}
	}
	for _, n := range nodes {
		n.api.FetchRecords(t.Context())
	}
	h := answer[api.Histories](t, nodes[0], "/history?hours=true")
	if len(h.Nodes) != 3 || h.Total.Step != 480 || len(h.Total.Known) == 0 ||
		len(h.Total.Fields["depth"]) != history.Length {
		t.Errorf("%+v", h.Total)
	}
	nodes[2].e.OnQuestion(nil)
	h = answer[api.Histories](t, nodes[0], "/history?hours=true")
	nodes[2].e.OnQuestion(nodes[2].api.AnswerQuestion)
	if len(h.Nodes) != 3 || h.Nodes[2].Node != "n3" || h.Nodes[2].KeptBy == "" || h.Nodes[2].Step != 480 {
		t.Errorf("nobody keeps the hours of the others: %+v", h.Nodes)
	}
	if h := answer[api.Histories](t, nodes[0], "/history"); h.Total.Step != 10 {
		t.Errorf("without hours the step is %d", h.Total.Step)
	}
}
