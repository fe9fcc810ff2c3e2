//go:build prometheus

package prometheus

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/support/porttest"
)

const (
	rules  = "../../deploy/prometheus"
	boards = "../../deploy/grafana"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := harness.Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(t *testing.T, in io.Reader, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// Each alert is silent before its fault, fires during it and is silent after it, with its delays.
func TestRules(t *testing.T) {
	run(t, nil, "promtool", "check", "config", filepath.Join(rules, "prometheus.yml"))
	run(t, nil, "promtool", "test", "rules", filepath.Join(rules, "alerts_test.yml"))
	all, err := os.ReadFile(filepath.Join(rules, "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(rules, "alerts_test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllSubmatch(all, -1) {
		if !bytes.Contains(tests, append([]byte("alertname: "), m[1]...)) {
			t.Errorf("no test of the alert %s", m[1])
		}
	}
}

// server is a running Prometheus.
type server struct {
	t    *testing.T
	base string
}

// startPrometheus starts a Prometheus that scrapes the nodes each second. The rules are those of deploy without their
// delays, with the pairs of old and new in change replaced.
func startPrometheus(t *testing.T, nodes []*harness.Node, change []string) *server {
	t.Helper()
	dir := t.TempDir()
	alerts, err := os.ReadFile(filepath.Join(rules, "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	alerts = []byte(strings.NewReplacer(change...).Replace(string(alerts)))
	alerts = regexp.MustCompile(`for: \S+`).ReplaceAll(alerts, []byte("for: 1s"))
	var targets []string
	for _, n := range nodes {
		targets = append(targets, n.HTTP)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [alerts.yml]\n"+
		"scrape_configs:\n- job_name: penstock\n  static_configs: [{targets: [%s]}]\n", strings.Join(targets, ", "))
	for name, data := range map[string][]byte{"alerts.yml": alerts, "prometheus.yml": []byte(config)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := porttest.Address(t)
	var log bytes.Buffer
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	s := &server{t, "http://" + address}
	s.eventually("Prometheus answers", func() bool {
		reply, err := http.Get(s.base + "/-/ready")
		if err != nil {
			return false
		}
		_ = reply.Body.Close()
		return reply.StatusCode == 200
	})
	return s
}

// patience bounds what must happen, also on a machine that gives a process little of its time.
const patience = 2 * time.Minute

func (s *server) eventually(what string, holds func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("after %v not yet: %s; firing: %v", patience, what, s.firing())
		}
	}
}

func (s *server) get(path string, into any) {
	s.t.Helper()
	reply, err := http.Get(s.base + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil || reply.StatusCode != 200 {
		s.t.Fatalf("%s: %s %v %s", path, reply.Status, err, body)
	}
}

// series returns how many series a query has now.
func (s *server) series(query string) int {
	s.t.Helper()
	var answer struct{ Data struct{ Result []any } }
	s.get("/api/v1/query?query="+url.QueryEscape(query), &answer)
	return len(answer.Data.Result)
}

// firing returns the names of the alerts that fire, sorted.
func (s *server) firing() []string {
	s.t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	s.get("/api/v1/alerts", &answer)
	names := []string{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" && !slices.Contains(names, a.Labels["alertname"]) {
			names = append(names, a.Labels["alertname"])
		}
	}
	slices.Sort(names)
	return names
}

// query is a query of a panel.
type query struct{ board, panel, expr string }

// boardQueries returns the queries of all panels, with the boards' variables filled in.
func boardQueries(t *testing.T) (all []query) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(boards, "*.json"))
	if err != nil || len(files) != 4 {
		t.Fatalf("%d boards, %v", len(files), err)
	}
	fill := strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$topic", ".*", "$channel", ".*")
	for _, file := range files {
		var board struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &board)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, p := range board.Panels {
			if len(p.Targets) == 0 {
				t.Errorf("%s: the panel %s has no query", file, p.Title)
			}
			for _, q := range p.Targets {
				all = append(all, query{filepath.Base(file), p.Title, fill.Replace(q.Expr)})
			}
		}
	}
	return all
}

// Every panel shows something, no alert fires on a healthy cluster, and when a node is killed its alerts fire and end
// after its return.
func TestBoardsAndFaults(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := harness.Dev(ctx, harness.Options{Dir: t.TempDir(), Nodes: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, err := range []error{
		c.CreateTopic(ctx, "orders"), c.CreateChannel(ctx, "orders", "mail"), c.CreateTopic(ctx, "strict"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tools, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	run(t, nil, tools, "topic", "set", "strict", "--min-isr", "3", "--http-address", c.Nodes[0].HTTP)
	s := startPrometheus(t, c.Nodes, freeBytesOnly)
	for range 20 {
		reply, err := http.Post("http://"+c.Nodes[0].HTTP+"/pub?topic=orders", "", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		_ = reply.Body.Close()
	}
	s.eventually("three nodes are scraped, three times", func() bool {
		return s.series(`up{job="penstock"} == 1 and count_over_time(up[10s]) >= 3`) == 3
	})
	lintMetrics(t, c.Nodes[0])
	for _, q := range boardQueries(t) {
		if s.series(q.expr) == 0 {
			t.Errorf("%s, panel %s: no series of %s", q.board, q.panel, q.expr)
		}
	}
	s.eventually("no alert fires", func() bool { return len(s.firing()) == 0 })

	has := func(name string) bool { return slices.Contains(s.firing(), name) }
	if err := c.Nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	s.eventually("PenstockNodeDown, PenstockUnderReplicated and PenstockBelowMinISR fire", func() bool {
		return has("PenstockNodeDown") && has("PenstockUnderReplicated") && has("PenstockBelowMinISR")
	})
	if err := c.Nodes[1].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	s.eventually("no alert fires any more", func() bool { return len(s.firing()) == 0 })

	// Without a majority the survivor has no lease, and says so.
	for _, n := range c.Nodes[1:] {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	s.eventually("PenstockStoreDown and PenstockLeaderless fire", func() bool {
		return has("PenstockStoreDown") && has("PenstockLeaderless")
	})
	for _, n := range c.Nodes[1:] {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	s.eventually("no alert fires after the return of both", func() bool { return len(s.firing()) == 0 })
}

// lintMetrics runs promtool's check of names and help texts over our metrics.
func lintMetrics(t *testing.T, n *harness.Node) {
	t.Helper()
	reply, err := http.Get("http://" + n.HTTP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	run(t, bytes.NewReader(body), "promtool", "check", "metrics")
}
