package server

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/history"
	"penstock/tests/support/nsqtest"
)

// depths returns the points of a field of which something is known.
func depths(p history.Points) (known []float32) {
	for _, v := range p {
		if !math.IsNaN(float64(v)) {
			known = append(known, v)
		}
	}
	return known
}

// What a node remembers is not lost with it: two others keep it, and the sums of the past stay what they were.
func TestHistoryOfANodeThatIsGone(t *testing.T) {
	nodes := startCluster(t, 3, Options{})
	for _, n := range nodes {
		nsqtest.Eventually(t, "all nodes are connected", func() bool {
			return len(answer[api.TopicPage](t, n, "/topics").Missing) == 0
		})
	}
	nodes[0].post(t, "/topic/create?topic=t&partitions=6", "")
	nodes[0].post(t, "/channel/create?topic=t&channel=c", "")
	for range 18 {
		nodes[0].post(t, "/pub?topic=t", "x")
	}
	nsqtest.Eventually(t, "all messages wait", func() bool {
		c := answer[api.ChannelPage](t, nodes[0], "/channels?topic=t")
		return len(c.Channels) == 1 && c.Channels[0].Depth == 18 && len(c.Missing) == 0
	})
	for i := range 3 { // as the clock would do
		for _, n := range nodes {
			n.api.Look(time.Now().Add(time.Duration(30+i) * history.Interval))
		}
	}
	for _, n := range nodes {
		n.api.FetchRecords(t.Context())
		if k := len(n.api.KeptNodes()); k != 2 {
			t.Errorf("%s keeps the history of %d nodes", n.api.Name(), k)
		}
	}
	for _, path := range []string{"/history", "/history?topic=t", "/history?topic=t&channel=c"} {
		before := answer[api.Histories](t, nodes[0], path)
		nodes[2].e.OnQuestion(nil)
		after := answer[api.Histories](t, nodes[0], path)
		nodes[2].e.OnQuestion(nodes[2].api.AnswerQuestion)
		was, is := depths(before.Total.Fields["depth"]), depths(after.Total.Fields["depth"])
		if len(was) < 3 || was[len(was)-1] != 18 || was[len(was)-3] != 18 || !slices.Equal(was, is) {
			t.Errorf("%s: the depth was %v, and is %v without a node", path, was, is)
		}
		if len(after.Missing) != 1 || len(after.Nodes) != 3 || after.Nodes[2].KeptBy == "" || after.Nodes[2].Node != "n3" {
			t.Errorf("%s: missing %v, nodes %v", path, after.Missing, after.Nodes)
		}
	}
}

// A process has the history of the one before.
func TestHistoryAfterARestart(t *testing.T) {
	dir := t.TempDir()
	before, at := history.New(history.Interval), time.Now().Add(-5*time.Minute).Truncate(history.Interval)
	before.Add(&history.Look{At: at})
	file := filepath.Join(dir, "history", "points.jsonl")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(before.Newest(), '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, node.Options{}, Options{DataPath: dir})
	nsqtest.Eventually(t, "the history of before", func() bool {
		known := answer[api.Histories](t, n, "/history").Nodes[0].Known
		return len(known) > 0 && known[0][0] == at.Unix()
	})
}
