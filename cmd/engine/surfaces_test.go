package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"penstock/internal/server/stats"

	"github.com/google/uuid"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/cluster"
	"penstock/cmd/engine/internal/operate"
	"penstock/internal/cluster/admin"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/health"
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
	table, _, _ := strings.Cut(after(t, read("../../docs/operate/operating.md"), "## What a copy can be"), "\n## ")
	for _, tc := range []struct {
		state string
		row   func(p *meta.Partition, m replicate.Member) // of the copy on n2
		facts health.Facts                                // of n2
		stats node.StorageStats                           // of n2
		inRow bool                                        // the list of partitions says it
	}{
		{
			state: "damaged", row: func(p *meta.Partition, m replicate.Member) { p.SetCopy(m, meta.CopyDamaged) },
			stats: node.StorageStats{DamagedCopies: 1}, inRow: true,
		},
		{
			state: "contested", row: func(p *meta.Partition, m replicate.Member) { p.SetCopy(m, meta.CopyContested) },
			stats: node.StorageStats{Contested: 1}, inRow: true,
		},
		{
			state: "short", row: func(p *meta.Partition, m replicate.Member) { p.State.Short = []replicate.Member{m} },
			stats: node.StorageStats{Short: 1}, inRow: true,
		},
		{
			state: "shortened", facts: health.Facts{Shortened: 1, ShortenedFor: time.Minute},
			stats: node.StorageStats{Shortened: 1}, inRow: true,
		},
		{state: "aside", facts: health.Facts{AsideMessages: 1}, stats: node.StorageStats{AsideCuts: 1}},
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
		must(t, cluster.PrintStatus(&status, &st))
		must(t, cluster.PrintTopics(&topics, &all))
		surfaces := map[string]string{
			"health": st.Health, "penstock cluster status": status.String(), "the table of copies": table,
		}
		if tc.inRow {
			surfaces["penstock cluster topics"] = topics.String()
		}
		if tc.state != "aside" {
			surfaces["the metric"] = after(t, read("../../docs/operate/metrics.md"), "`copies{state}`")
			surfaces["the column of the node"] = after(t, lineOf(t, status.String(), "n2 "), "1 "+tc.state)
			surfaces["the console"] = after(t, read("../../internal/server/console/static/nodes.js"), `"damaged contested`)
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
			"health": st.Health, "penstock cluster status": status.String(), "penstock cluster topics": topics.String(),
		} {
			if tc.state != "damaged" && strings.Contains(text, "damaged") {
				t.Errorf("%s calls a %s copy damaged:\n%s", where, tc.state, text)
			}
		}
	}
}

// A channel that does not go on by itself says so on every surface: its dead letters are aside, or it is full.
func TestStatesOfChannelsOnSurfaces(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(name)
		must(t, err)
		return string(data)
	}
	table, _, _ := strings.Cut(after(t, read("../../docs/reference/states.md"), "## Channels"), "\n## ")
	for _, tc := range []struct {
		state, field, metric string
		fault                string // the end of the words in penstock cluster status
		channel              cli.ChannelNumbers
		facts                health.Facts
		stats                node.StorageStats
	}{
		{
			"dead letters aside", "aside_count", "penstock_channel_aside_messages", "penstock channel list says why",
			cli.ChannelNumbers{Name: "billing", Trouble: stats.Trouble{OutboxCount: 3, AsideCount: 2, AsideWhy: "too big"}},
			health.Facts{AsideLetters: &health.Channel{Topic: "orders", Name: "billing", Count: 2, Why: "too big"}},
			node.StorageStats{AsideChannels: 1},
		},
		{
			"full", "full_partitions", "penstock_channel_full_partitions", "penstock channel list names them",
			cli.ChannelNumbers{Name: "billing", Trouble: stats.Trouble{FullPartitions: 2}},
			health.Facts{FullChannel: &health.Channel{Topic: "orders", Name: "billing", Count: 2}},
			node.StorageStats{FullChannels: 1},
		},
		{
			"dropping", "dropped_count", "penstock_channel_dropped_total", "penstock channel list says how many",
			cli.ChannelNumbers{Name: "billing", Trouble: stats.Trouble{DroppedCount: 2, Dropping: true}},
			health.Facts{DroppingChannel: &health.Channel{Topic: "orders", Name: "billing", Count: 2}},
			node.StorageStats{DroppingChannels: 1},
		},
		{
			"paused", "paused", "penstock_channel_paused", "penstock channel list names them",
			cli.ChannelNumbers{Name: "billing", Paused: true},
			health.Facts{PausedChannel: &health.Channel{Topic: "orders", Name: "billing"}},
			node.StorageStats{PausedChannels: 1},
		},
		{
			"skipping", "skipped_count", "penstock_channel_skipping",
			"names them; altogether 2 messages since 2026-01-31T12:00:00Z",
			cli.ChannelNumbers{Name: "billing", Trouble: stats.Trouble{
				SkippedCount: 2, Skipping: true, SkippingSince: "2026-01-31T12:00:00Z",
			}},
			health.Facts{SkippingChannel: &health.Channel{
				Topic: "orders", Name: "billing", Count: 2, Why: "2026-01-31T12:00:00Z",
			}},
			node.StorageStats{SkippingChannels: 1, SkippedMessages: 2, SkippingSince: "2026-01-31T12:00:00Z"},
		},
		{
			"starved", "starved", "penstock_channel_starved", "penstock channel list names them",
			cli.ChannelNumbers{Name: "billing", Trouble: stats.Trouble{Starved: true}},
			health.Facts{StarvedChannel: &health.Channel{Topic: "orders", Name: "billing"}},
			node.StorageStats{StarvedChannels: 1},
		},
	} {
		all := []cli.TopicNumbers{{Name: "orders", Channels: []cli.ChannelNumbers{tc.channel, {Name: "fine"}}}}
		v := health.Judge(&tc.facts)
		if !v.Healthy {
			t.Errorf("%s: it is a note, and the node is unhealthy: %s", tc.state, v.Health)
		}
		st := &admin.Status{Node: "n1", Nodes: []admin.Node{{ID: 1, Name: "n1", Live: true}}}
		for _, f := range tc.stats.Faults() {
			st.Nodes[0].Faults = append(st.Nodes[0].Faults, admin.Fault(f))
		}
		family := "`" + strings.TrimPrefix(tc.metric, "penstock_") + "`"
		var list, status, top, asJSON bytes.Buffer
		must(t, operate.PrintChannels(&list, all))
		must(t, cluster.PrintStatus(&status, st))
		look := operate.TopOf(all, all, time.Second, 10)
		must(t, operate.PrintTop(&top, &look, false))
		must(t, cli.PrintJSON(&asJSON, cli.ChannelsOf(all)))
		for where, found := range map[string]bool{
			"penstock channel list": strings.Contains(list.String(), "  "+tc.state+"\n"),
			"the line below it": tc.channel.Paused || // the column says all
				strings.Contains(list.String(), strings.TrimPrefix(v.Health, "healthy: the node serves; ")+"\n"),
			"penstock channel list --json": strings.Contains(asJSON.String(), `"`+tc.field+`": 2`) ||
				strings.Contains(asJSON.String(), `"`+tc.field+`": true`),
			"penstock top":             strings.Contains(top.String(), "  "+tc.state+"\n"),
			"health":                   strings.Contains(v.Health, tc.state),
			"penstock cluster status":  strings.Contains(status.String(), tc.fault),
			"the HTTP interface":       strings.Contains(read("../../docs/openapi.yaml"), tc.field+":"),
			"the metrics":              strings.Contains(read("../../docs/operate/metrics.md"), family),
			"the alerts":               strings.Contains(read("../../deploy/prometheus/alerts.yml"), tc.metric),
			"the console":              strings.Contains(read("../../internal/server/console/static/channel.js"), "."+tc.field),
			"the marks of the console": strings.Contains(read("../../internal/server/console/static/ui.js"), `"`+tc.state+`"`),
			"the boards":               strings.Contains(read("../../deploy/grafana/topics.json"), tc.metric),
			"the table of the states":  strings.Contains(table, "| "+tc.state+" |"),
		} {
			if !found {
				t.Errorf("%s does not say %s:\n%s%s%s%s", where, tc.state, list.String(), top.String(), v.Health, status.String())
			}
		}
	}
}

// What an operator deletes with a channel is said.
func TestDeleteSaysWhatGoes(t *testing.T) {
	outbox := 3
	n := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/stats" && r.URL.Query().Get("topic") == "orders":
			must(t, json.NewEncoder(w).Encode(cli.NodeStats{Topics: []cli.TopicNumbers{{
				Name: "orders",
				Channels: []cli.ChannelNumbers{
					{Name: "other", Trouble: stats.Trouble{OutboxCount: 9}},
					{Name: "billing", Trouble: stats.Trouble{OutboxCount: outbox}},
				},
			}}}))
		case r.Method == http.MethodPost && r.URL.Path == "/channel/delete":
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"message":"NOT_FOUND"}`)
		}
	}))
	defer n.Close()
	t.Setenv("PENSTOCK_SERVER", n.URL)
	for _, want := range []string{
		"channel billing of topic orders was deleted, with 3 dead letters that its dead-letter topic did not have yet\n",
		"channel billing of topic orders was deleted\n",
	} {
		if got := steer(t, "channel", "delete", "orders", "billing"); got != want {
			t.Errorf("delete prints %q, want %q", got, want)
		}
		outbox = 0
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
