package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/cluster"
	"penstock/cmd/engine/internal/operate"
	"penstock/internal/cluster/admin"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/health"
	"penstock/replicate"
)

// stateOfFacts is a state that a test cannot bring about in real nodes at will, such as that of a disk: what node n2
// knows, counts and reports of itself while it holds.
type stateOfFacts struct {
	row   func(s *meta.Snapshot, p *meta.Partition, m replicate.Member) // what the metadata say; m is the copy of n2
	store health.Store
	apart time.Duration // for which n2 has had no connection to n1
	facts health.Facts
	stats node.StorageStats
}

var statesOfFacts = map[string]stateOfFacts{
	"damaged": {
		row:   func(_ *meta.Snapshot, p *meta.Partition, m replicate.Member) { p.SetCopy(m, meta.CopyDamaged) },
		stats: node.StorageStats{DamagedCopies: 1},
	},
	"contested": {
		row:   func(_ *meta.Snapshot, p *meta.Partition, m replicate.Member) { p.SetCopy(m, meta.CopyContested) },
		stats: node.StorageStats{Contested: 1},
	},
	"short": {
		row: func(_ *meta.Snapshot, p *meta.Partition, m replicate.Member) {
			p.State.Short = []replicate.Member{m}
		},
		stats: node.StorageStats{Short: 1},
	},
	"shortened": {
		facts: health.Facts{Shortened: 1, ShortenedFor: time.Minute}, stats: node.StorageStats{Shortened: 1},
	},
	"members apart": {
		store: health.Store{Apart: []string{"n1 (10.0.0.1:4255)"}}, stats: node.StorageStats{StoreMembersApart: 1},
	},
	"member failed": {
		store: health.Store{Fault: "etcd: the embedded member of this node has stopped"},
		stats: node.StorageStats{StoreMemberFailed: 1},
	},
	"not connected": {apart: time.Minute, stats: node.StorageStats{NodesUnconnected: 1}},
	"auth servers silent": {
		facts: health.Facts{AuthSilence: "the auth servers have not answered for 1m0s"},
		stats: node.StorageStats{AuthSilentS: 60},
	},
	"disk slow": {
		row: onDisk(meta.DiskSlow), facts: health.Facts{DiskState: "slow"}, stats: node.StorageStats{DiskState: "slow"},
	},
	"disk hung": {
		row: onDisk(meta.DiskHung), facts: health.Facts{DiskState: "hung"}, stats: node.StorageStats{DiskState: "hung"},
	},
	"disk failed": {
		row: onDisk(meta.DiskFailed), facts: health.Facts{Disk: health.Text(errs.ErrDiskHung), DiskState: "failed"},
		stats: node.StorageStats{DiskState: "failed"},
	},
	"disk full": {
		facts: health.Facts{Full: health.Text(errs.ErrNoSpace)}, stats: node.StorageStats{DiskFull: true},
	},
	"stores nothing": {
		facts: health.Facts{Failure: health.Text(errs.ErrDisk)}, stats: node.StorageStats{Failed: true},
	},
	"clock ahead":  {facts: health.Facts{ClockAhead: time.Minute}, stats: node.StorageStats{ClockAheadMs: 60_000}},
	"clock behind": {facts: health.Facts{ClockAhead: -time.Minute}, stats: node.StorageStats{ClockAheadMs: -60_000}},
	"over its limit of state": {
		facts: health.Facts{StateBytes: 2 << 20, StateLimit: 1 << 20},
		stats: node.StorageStats{StateBytes: 2 << 20, StateLimitBytes: 1 << 20},
	},
	"partitions run out": {
		facts: health.Facts{Partitions: 95, PartitionLimit: 100},
		stats: node.StorageStats{ListedPartitions: 95, PartitionLimit: 100},
	},
	"topics run out": {
		facts: health.Facts{Topics: 95, TopicLimit: 100}, stats: node.StorageStats{ListedTopics: 95, TopicLimit: 100},
	},
	"clock differs": {
		facts: health.Facts{Clock: &health.Clock{Ahead: 5 * time.Second, From: []string{"n1", "n3"}, Wrong: true}},
		stats: node.StorageStats{ClockDiffersMs: 5000},
	},
	"certificate ends": {
		facts: certified(-time.Hour, 10*24*time.Hour), stats: node.StorageStats{CertificatesEnding: 1},
	},
	"certificate refused": {
		facts: certified(-48*time.Hour, -time.Hour), stats: node.StorageStats{CertificatesRefused: 1},
	},
	"starting": {
		row:   func(s *meta.Snapshot, _ *meta.Partition, _ replicate.Member) { s.Nodes[2].Live = false },
		facts: health.Facts{Stage: "reads the commit log: 12.0 MiB"},
	},
}

// certified are the facts of a node whose certificate is valid from and until these times from now.
func certified(from, until time.Duration) health.Facts {
	now := time.Now()
	return health.Facts{Wall: now, Certificates: []health.Certificate{
		{Setting: "tls-cert", File: "cert.pem", From: now.Add(from), Until: now.Add(until)},
	}}
}

func onDisk(state meta.DiskState) func(*meta.Snapshot, *meta.Partition, replicate.Member) {
	return func(s *meta.Snapshot, _ *meta.Partition, _ replicate.Member) { s.Nodes[2].Disk = state }
}

// surfaces returns what each surface shows while the state holds; with the zero state, while none does.
func (s *stateOfFacts) surfaces(t *testing.T) map[string]string {
	t.Helper()
	snap, p, m := copyCluster()
	if s.row != nil {
		s.row(snap, p, m)
	}
	facts := func() *health.Facts {
		f := s.facts
		view := health.Trusting(2)
		view.Store = s.store
		view.Connected = map[replicate.NodeID]bool{1: true} // otherwise it is unhealthy anyway
		if s.apart > 0 {
			view.Connected, view.Unconnected = nil, map[replicate.NodeID]time.Duration{1: s.apart}
		}
		f.Node, f.Cluster = "n2", health.Look(snap, view)
		return &f
	}
	h := admin.Handler(rowsOnly{snap: snap}, admin.Self{
		Name: "n1", Health: func() *health.Facts {
			return &health.Facts{Node: "n1", Cluster: health.Look(snap, health.Trusting(1))}
		},
		Shortened: func(meta.PartitionID) bool { return s.stats.Shortened > 0 },
	})
	var st admin.Status
	var all admin.Topics
	fetch(t, h, "/cluster/status", &st)
	fetch(t, h, "/cluster/topics", &all)
	for _, f := range s.stats.Faults() {
		st.Nodes[1].Faults = append(st.Nodes[1].Faults, admin.Fault(f))
	}
	st.Nodes[1].Shortened = s.facts.Shortened
	var status, parts, topics bytes.Buffer
	must(t, cluster.PrintStatus(&status, &st))
	must(t, cluster.PrintTopics(&parts, &all))
	numbers := []cli.TopicNumbers{{Name: "orders", Failed: s.stats.Failed}}
	must(t, operate.PrintTopicNumbers(&topics, numbers))
	v := health.Judge(facts())
	var top bytes.Buffer
	look := operate.TopOf(numbers, numbers, time.Second, 10)
	look.Health = operate.Unwell(&v)
	must(t, operate.PrintTop(&top, &look, false))
	return map[string]string{
		"penstock top":            top.String(),
		"penstock cluster status": status.String(), "penstock cluster topics": parts.String(),
		"penstock topic list": topics.String(), "health": v.Health,
		"console": consoleOfNode(t, &st.Nodes[1]),
	}
}

// consoleOfNode returns the words that the console has on its page of nodes for one.
func consoleOfNode(t *testing.T, n *admin.Node) string {
	t.Helper()
	data, err := os.ReadFile("../../internal/server/console/static/nodes.js")
	must(t, err)
	script := string(data)
	said := []string{string(n.Presence)}
	for _, shown := range []string{
		`n.disk !== "good" && html`, `states.map((w) =>`, "f.count} × ${f.name.replaceAll", `, " ")}: ${f.words}`,
		`states = "damaged contested short shortened unknown_topics"`,
	} {
		after(t, script, shown)
	}
	if n.Disk != "good" {
		said = append(said, "disk "+n.Disk)
	}
	for word, count := range map[string]int{
		"damaged": n.Damaged, "contested": n.Contested, "short": n.Short, "shortened": n.Shortened,
	} {
		if count > 0 {
			said = append(said, fmt.Sprintf("%d %s", count, word))
		}
	}
	for _, f := range n.Faults {
		said = append(said, strings.ReplaceAll(f.Name, "_", " ")+": "+f.Words)
	}
	return strings.Join(said, "\n") + "\n"
}

// The states that TestStatesPage cannot bring about are on the surfaces of docs/reference/states.md by what nodes know
// then, and on none otherwise. The metrics and alerts that the page names exist.
func TestStatesOfFactsPage(t *testing.T) {
	metrics, err := os.ReadFile("../../docs/operate/metrics.md")
	must(t, err)
	none := (&stateOfFacts{}).surfaces(t)
	seen := map[string]bool{}
	for _, row := range readStates(t) {
		s, ok := statesOfFacts[row.state]
		if !ok {
			continue
		}
		seen[row.state] = true
		checkAlert(t, &row)
		now := s.surfaces(t)
		for _, surface := range slices.Sorted(maps.Keys(row.shows)) {
			word := row.shows[surface]
			switch {
			case surface == "alert" || word == "":
			case surface == "metric":
				name, _, _ := strings.Cut(word, "{")
				name, _, _ = strings.Cut(name, " ")
				if !strings.Contains(string(metrics), "`"+strings.TrimPrefix(name, "penstock_")) {
					t.Errorf("%s: there is no metric %s", row.state, name)
				}
			case !strings.Contains(now[surface], word):
				t.Errorf("%s: %s does not say %q:\n%s", row.state, surface, word, now[surface])
			case strings.Contains(none[surface], word):
				t.Errorf("%s: %s always says %q:\n%s", row.state, surface, word, none[surface])
			}
		}
	}
	for state := range statesOfFacts {
		if !seen[state] {
			t.Errorf("the page has no state %s", state)
		}
	}
}

// What the page says that health says is there whatever the count: an operator may look for it, and a busy machine has
// more dead letters aside than another.
func TestStatesPageOfAnyCount(t *testing.T) {
	said := func(c *health.Channel, words func(*health.Channel) string) func(int) string {
		return func(n int) string {
			c.Count, c.More = n, n-1
			return words(c)
		}
	}
	copies := func(count func(f *health.Facts, n int)) func(int) string {
		return func(n int) string {
			snap, _, _ := copyCluster()
			f := health.Facts{Node: "n2", ShortenedFor: time.Minute, Cluster: health.Look(snap, health.Trusting(2))}
			count(&f, n)
			return health.Judge(&f).Health
		}
	}
	at := &health.Copy{Topic: "orders", Node: "n2", Leader: "n1"}
	sentences := map[string]func(count int) string{
		"paused":             said(&health.Channel{Topic: "t", Name: "c"}, (*health.Channel).PausedWords),
		"skipping":           said(&health.Channel{Topic: "t", Name: "c"}, (*health.Channel).SkippingWords),
		"starved":            said(&health.Channel{Topic: "t", Name: "c"}, (*health.Channel).StarvedWords),
		"full":               said(&health.Channel{Topic: "t", Name: "c"}, (*health.Channel).FullWords),
		"dead letters aside": said(&health.Channel{Topic: "t", Name: "c"}, (*health.Channel).AsideWords),
		"dropping":           said(&health.Channel{Topic: "t", Name: "c"}, (*health.Channel).DroppingWords),
		"topic paused":       said(&health.Channel{Topic: "t"}, (*health.Channel).PausedWords),
		"over quota":         said(&health.Channel{Topic: "t"}, (*health.Channel).QuotaWords),
		"read only":          said(&health.Channel{Topic: "t"}, (*health.Channel).ReadOnlyWords),
		"delays refused":     said(&health.Channel{Topic: "t"}, (*health.Channel).DelaysRefusedWords),
		"under replicated":   copies(func(f *health.Facts, n int) { f.Cluster.UnderReplicated = n }),
		"below min_isr":      copies(func(f *health.Facts, n int) { f.Cluster.BelowMinISR = n }),
		"leaderless":         copies(func(f *health.Facts, n int) { f.Cluster.Leaderless = n }),
		"damaged":            copies(func(f *health.Facts, n int) { f.Cluster.Damaged = n }),
		"contested":          copies(func(f *health.Facts, n int) { f.Cluster.Contested, f.Cluster.FirstContested = n, at }),
		"short":              copies(func(f *health.Facts, n int) { f.Cluster.Short, f.Cluster.FirstShort = n, at }),
		"shortened":          copies(func(f *health.Facts, n int) { f.Shortened = n }),
	}
	for state, sentence := range sentences {
		cell := rowOf(t, state).shows["health"]
		for _, count := range []int{1, 2, 11} {
			if text := sentence(count); !strings.Contains(text, cell) {
				t.Errorf("%s: health does not say %q of %d:\n%s", state, cell, count, text)
			}
		}
	}
}
