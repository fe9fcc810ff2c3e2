package main

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/cluster/admin"
	"penstock/internal/node/health"
	"penstock/internal/server/api"
	"penstock/tests/support/patience"
)

// stateRow is a row of docs/reference/states.md: by surface, what it shows while the state holds; "": nothing, and the
// page says why.
type stateRow struct {
	state string
	shows map[string]string
}

// begins has what the page leaves out at the beginning of each name.
var begins = map[string]string{"metric": "penstock_", "alert": "Penstock"}

// readStates returns the rows of the page, in its order.
func readStates(t *testing.T) (rows []stateRow) {
	t.Helper()
	data, err := os.ReadFile("../../docs/reference/states.md")
	must(t, err)
	page, why, _ := strings.Cut(string(data), "\n## What is not shown")
	var surfaces []string
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		switch {
		case !strings.HasPrefix(line, "| "):
		case cells[0] == "state":
			surfaces = cells
		default:
			row := stateRow{cells[0], map[string]string{}}
			for i, word := range cells[1:] {
				if word == "–" {
					word = ""
					if !strings.Contains(why, "| "+row.state+" | "+surfaces[i+1]+" |") {
						t.Errorf("the page does not say why %s does not show the state %s", surfaces[i+1], row.state)
					}
				}
				switch word {
				case "":
				case "=":
					word = row.state
				default:
					word = begins[surfaces[i+1]] + word
				}
				row.shows[surfaces[i+1]] = word
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// stateWorld is the cluster of a test of states.
type stateWorld struct {
	t     *testing.T
	p     *devProcess
	nodes map[string]devcluster.Node
	dead  map[string]bool
}

// alive returns the nodes that run.
func (w *stateWorld) alive() (nodes []devcluster.Node) {
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		if !w.dead[name] {
			nodes = append(nodes, w.nodes[name])
		}
	}
	return nodes
}

// command runs a command against a node that runs, and returns what it prints, whatever its exit code.
func (w *stateWorld) command(args ...string) string {
	w.t.Helper()
	return execute(w.t, append(args, "--http-address", w.alive()[0].HTTP)...).stdout
}

// must is command for one that has to succeed.
func (w *stateWorld) must(args ...string) {
	w.t.Helper()
	if o := execute(w.t, append(args, "--http-address", w.alive()[0].HTTP)...); o.code != 0 {
		w.t.Fatalf("%q: %+v", args, o)
	}
}

// get returns the answers of all nodes that run.
func (w *stateWorld) get(path string) (answers []string) {
	w.t.Helper()
	for _, n := range w.alive() {
		reply, err := http.Get("http://" + n.HTTP + path)
		must(w.t, err)
		body, err := io.ReadAll(reply.Body)
		must(w.t, err)
		must(w.t, reply.Body.Close())
		answers = append(answers, string(body))
	}
	return answers
}

// surface returns what a surface shows now.
func (w *stateWorld) surface(name string) string {
	w.t.Helper()
	switch name {
	case "penstock channel list", "penstock topic list", "penstock cluster status", "penstock cluster topics":
		return w.command(strings.Fields(name)[1:]...)
	case "penstock top":
		return w.command("top", "--once", "--interval", "200ms")
	case "health":
		return w.health()
	case "console":
		return w.console()
	}
	w.t.Fatalf("there is no surface %s", name)
	return ""
}

// health returns the sentences of all nodes that run.
func (w *stateWorld) health() (all string) {
	w.t.Helper()
	for _, answer := range w.get("/health") {
		var v health.Verdict
		must(w.t, json.Unmarshal([]byte(answer), &v))
		all += v.Health + "\n"
	}
	return all
}

// console returns the words that the console would show of what the nodes answer. Its words stand in its scripts.
func (w *stateWorld) console() string {
	w.t.Helper()
	read := func(name string) string {
		data, err := os.ReadFile("../../internal/server/console/static/" + name)
		must(w.t, err)
		return string(data)
	}
	var said []string
	marks := regexp.MustCompile(`(\w+): "([a-z ]+)"`).FindAllStringSubmatch(
		after(w.t, read("ui.js"), "const marks = ")[:200], -1)
	var page api.ChannelPage
	must(w.t, json.Unmarshal([]byte(w.get("/channels?topic=orders")[0]), &page))
	for i := range page.Channels {
		data, err := json.Marshal(&page.Channels[i])
		must(w.t, err)
		var fields map[string]any
		must(w.t, json.Unmarshal(data, &fields))
		for _, m := range marks {
			if v := fields[m[1]]; v == true || v != false && v != 0.0 && v != nil {
				said = append(said, m[2])
			}
		}
	}
	return strings.Join(append(said, w.consoleOfCluster(read("nodes.js"), read("ui.js"))...), "\n")
}

// consoleOfCluster returns what the console shows of nodes and topics, by its scripts about nodes and about marks.
func (w *stateWorld) consoleOfCluster(script, marks string) (said []string) {
	w.t.Helper()
	presences := after(w.t, script, "const presences = ")
	var st admin.Status
	must(w.t, json.Unmarshal([]byte(w.get("/cluster/status")[0]), &st))
	for _, n := range st.Nodes {
		m := regexp.MustCompile(string(n.Presence) + `: \["\w+", "([a-z ]+)"\]`).FindStringSubmatch(presences)
		if m == nil {
			w.t.Fatalf("the console has no word for %s", n.Presence)
		}
		said = append(said, m[1])
		if n.Draining && strings.Contains(script, "${n.draining && html`<${Tag} kind=warn>draining<//>`}") {
			said = append(said, "draining")
		}
	}
	var topics api.TopicPage
	must(w.t, json.Unmarshal([]byte(w.get("/topics")[0]), &topics))
	for i := range topics.Topics {
		said = append(said, strings.ReplaceAll(string(topics.Topics[i].State), "_", " "))
		topic := &topics.Topics[i]
		for word, holds := range map[string]bool{"paused": topic.Paused, "over quota": topic.OverQuota} {
			if holds { // the marks of a topic are those of a channel
				said = append(said, word)
			}
		}
		if topics.Topics[i].DelaysRefused > 0 {
			said = append(said, "delays refused")
		}
		if topics.Topics[i].ReadOnly > 0 {
			after(w.t, marks, `read_only_partitions: "read only"`)
			said = append(said, "read only")
		}
	}
	if len(st.Nodes) == 0 { // a single node: the page has its health
		return append(said, w.health())
	}
	return append(said, st.Health)
}

// metric says whether a metric of a node is above 0, or is 0 if text ends in == 0.
func (w *stateWorld) metric(text string) bool {
	w.t.Helper()
	name, zero := strings.CutSuffix(text, " == 0")
	for _, answer := range w.get("/metrics") {
		for line := range strings.Lines(answer) {
			series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			v, err := strconv.ParseFloat(value, 64)
			if (series == name || strings.HasPrefix(series, name+"{")) && err == nil && (v == 0) == zero {
				return true
			}
		}
	}
	return false
}

// shows says whether a surface shows the state.
func (w *stateWorld) shows(surface, word string) bool {
	w.t.Helper()
	if surface == "metric" {
		return w.metric(word)
	}
	return strings.Contains(w.surface(surface), word)
}

// eventually waits until all surfaces of the row show the state, or none.
func (w *stateWorld) eventually(row *stateRow, want bool) {
	w.t.Helper()
	for _, surface := range slices.Sorted(maps.Keys(row.shows)) {
		word := row.shows[surface]
		if word == "" || surface == "alert" {
			continue
		}
		end := time.Now().Add(patience.Or(90 * time.Second))
		for ; w.shows(surface, word) != want; time.Sleep(50 * time.Millisecond) {
			if !time.Now().After(end) {
				continue
			}
			text := word
			if surface != "metric" {
				text = w.surface(surface)
			}
			w.t.Errorf("%s: %s says %q: %v, want %v:\n%s", row.state, surface, word, !want, want, text)
			break
		}
	}
}

// checkAlert compares the alert of a row with the rules, which a real Prometheus tries (tests/prometheus).
func checkAlert(t *testing.T, row *stateRow) {
	t.Helper()
	data, err := os.ReadFile("../../deploy/prometheus/alerts.yml")
	must(t, err)
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	must(t, yaml.Unmarshal(data, &rules))
	metric, _, _ := strings.Cut(row.shows["metric"], "{")
	metric, _, _ = strings.Cut(metric, " ")
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == row.shows["alert"] && (strings.Contains(r.Expr, metric) || strings.Contains(r.Expr, "up{")) {
				return
			}
		}
	}
	if row.shows["alert"] != "" {
		t.Errorf("%s: there is no alert %s about %s", row.state, row.shows["alert"], metric)
	}
}
