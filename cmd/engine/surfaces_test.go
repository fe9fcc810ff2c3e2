package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/cluster/admin"
	"penstock/engine"
	"penstock/engine/health"
	"penstock/engine/meta"
	"penstock/replicate"
)

// rowsOnly is a meta.Store with a snapshot, and nothing else.
type rowsOnly struct {
	meta.Store
	snap *meta.Snapshot
}

func (s rowsOnly) Snapshot() *meta.Snapshot { return s.snap }

// copyCluster has nodes n1 and n2, and topic orders with one partition, which n1 leads.
func copyCluster() (*meta.Snapshot, *meta.Partition, replicate.Member) {
	s := &meta.Snapshot{
		Nodes: map[replicate.NodeID]*meta.Node{}, Topics: map[uuid.UUID]*meta.Topic{}, Names: map[string]*meta.Topic{},
	}
	topic := &meta.Topic{ID: uuid.UUID{7}, Name: "orders", Partitions: 1, Replicas: 2, MinISR: 1}
	s.Topics[topic.ID], s.Names[topic.Name] = topic, topic
	p := &meta.Partition{ID: meta.PartitionID{Topic: topic.ID}}
	p.State = replicate.State{Epoch: 3, Leader: 1, Boot: uuid.UUID{1}, MinISR: 1, Replicas: []replicate.NodeID{1, 2}}
	for id := replicate.NodeID(1); id <= 2; id++ {
		s.Nodes[id] = &meta.Node{ID: id, Name: "n" + string('0'+rune(id)), Boot: uuid.UUID{byte(id)}, Live: true}
		p.State.ISR = append(p.State.ISR, replicate.Member{Node: id})
	}
	s.Partitions = s.Partitions.With(p.ID, p)
	return s, p, p.State.ISR[1]
}

// Every state that a copy can be in is on every surface, by its name. A copy that is not damaged is called damaged on
// none of them.
func TestStatesOnSurfaces(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(name)
		must(t, err)
		return string(data)
	}
	table, _, _ := strings.Cut(after(t, read("../../docs/operating.md"), "## What a copy can be"), "\n## ")
	for _, tc := range []struct {
		state string
		row   func(p *meta.Partition, m replicate.Member) // of the copy on n2
		facts health.Facts                                // of n2
		stats engine.StorageStats                         // of n2
		inRow bool                                        // the list of partitions says it
	}{
		{
			state: "damaged", row: func(p *meta.Partition, m replicate.Member) { p.SetCopy(m, meta.CopyDamaged) },
			stats: engine.StorageStats{DamagedCopies: 1}, inRow: true,
		},
		{
			state: "contested", row: func(p *meta.Partition, m replicate.Member) { p.SetCopy(m, meta.CopyContested) },
			stats: engine.StorageStats{Contested: 1}, inRow: true,
		},
		{
			state: "short", row: func(p *meta.Partition, m replicate.Member) { p.State.Short = []replicate.Member{m} },
			stats: engine.StorageStats{Short: 1}, inRow: true,
		},
		{
			state: "shortened", facts: health.Facts{Shortened: 1, ShortenedFor: time.Minute},
			stats: engine.StorageStats{Shortened: 1}, inRow: true,
		},
		{state: "aside", facts: health.Facts{AsideMessages: 1}, stats: engine.StorageStats{AsideCuts: 1}},
	} {
		snap, p, m := copyCluster()
		if tc.row != nil {
			tc.row(p, m)
		}
		h := admin.Handler(rowsOnly{snap: snap}, admin.Self{
			Name: "n2",
			Shortened: func(id meta.PartitionID) bool {
				return tc.stats.Shortened > 0 && id == p.ID
			},
			Health: func() *health.Facts {
				f := tc.facts
				f.Node, f.Cluster = "n2", health.Look(snap, health.Trusting(2))
				return &f
			},
		})
		var st admin.Status
		var all admin.Topics
		fetch(t, h, "/cluster/status", &st)
		fetch(t, h, "/cluster/topics", &all)
		for _, f := range tc.stats.Faults() {
			st.Nodes[1].Faults = append(st.Nodes[1].Faults, admin.Fault(f))
		}
		var status, topics bytes.Buffer
		must(t, printStatus(&status, &st))
		must(t, printTopics(&topics, &all))
		surfaces := map[string]string{
			"health": st.Health, "engine cluster status": status.String(), "the table of copies": table,
		}
		if tc.inRow {
			surfaces["engine cluster topics"] = topics.String()
		}
		if tc.state != "aside" {
			surfaces["the metric"] = after(t, read("../../docs/metrics.md"), "penstock_copies{state}")
			surfaces["the column of the node"] = after(t, lineOf(t, status.String(), "n2 "), "1 "+tc.state)
			surfaces["the console"] = after(t, read("../../console/static/nodes.js"), `"damaged contested`)
			surfaces["the alerts"] = read("../../deploy/prometheus/alerts.yml")
			if st.Healthy {
				t.Errorf("%s: the cluster is healthy: %s", tc.state, st.Health)
			}
		}
		for where, text := range surfaces {
			if where != "the column of the node" && !strings.Contains(text, tc.state) {
				t.Errorf("%s does not say %s:\n%s", where, tc.state, text)
			}
		}
		for where, text := range map[string]string{
			"health": st.Health, "engine cluster status": status.String(), "engine cluster topics": topics.String(),
		} {
			if tc.state != "damaged" && strings.Contains(text, "damaged") {
				t.Errorf("%s calls a %s copy damaged:\n%s", where, tc.state, text)
			}
		}
	}
}

// after returns what follows the first occurrence of mark.
func after(t *testing.T, text, mark string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, mark)
	if !ok {
		t.Errorf("there is no %q in\n%s", mark, text)
	}
	return mark + rest
}

// lineOf returns the first line that begins with start.
func lineOf(t *testing.T, text, start string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, start) {
			return line
		}
	}
	t.Errorf("no line begins with %q in\n%s", start, text)
	return ""
}

func fetch(t *testing.T, h http.Handler, path string, v any) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	must(t, json.Unmarshal(w.Body.Bytes(), v))
}
