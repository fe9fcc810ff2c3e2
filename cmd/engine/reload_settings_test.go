package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/settings"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/server/api"
	"penstock/tests/support/patience"
)

// settingsNode is a node with a configuration file.
type settingsNode struct {
	*process
	file string
}

func startWithFile(t *testing.T, text string, args ...string) *settingsNode {
	t.Helper()
	dir := t.TempDir()
	n := &settingsNode{file: filepath.Join(dir, "penstock.toml")}
	must(t, os.WriteFile(n.file, []byte(text), 0o600))
	n.process = startNode(t, t.TempDir(), append([]string{"--config", n.file}, args...)...)
	return n
}

// reload writes the file and makes the node read it.
func (n *settingsNode) reload(t *testing.T, text string) (r api.Reload, o outcome) {
	t.Helper()
	must(t, os.WriteFile(n.file, []byte(text), 0o600))
	o = execute(t, "reload", "--http-address", n.http, "--json")
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
		t.Fatalf("%v: %+v", err, o)
	}
	return r, o
}

func named(all []api.SettingChange) string {
	var names []string
	for _, c := range all {
		names = append(names, c.Setting)
	}
	return strings.Join(names, " ")
}

// config returns the settings of a node by their keys.
func (n *settingsNode) config(t *testing.T) map[string]api.Setting {
	t.Helper()
	var all api.Settings
	o := execute(t, "config", "running", "--http-address", n.http, "--json")
	must(t, json.Unmarshal([]byte(o.stdout), &all))
	rows := map[string]api.Setting{}
	for _, s := range all.Settings {
		rows[s.Setting] = s
	}
	return rows
}

// another returns another valid value of a setting, in the notation of the file.
func another(s *settings.Setting) string {
	switch v := s.Value.(type) {
	case values.NumberValue:
		switch s.Name {
		case "token-share":
			return "40"
		case "max-deflate-level":
			return "5"
		case "replicas":
			return "2"
		case "min-output-buffer-timeout":
			return `"26ms"`
		case "max-heartbeat-interval":
			return `"59s"`
		case "heartbeat-interval":
			return `"31s"`
		case "retention-age":
			return `"999h"`
		}
		switch {
		case v.Kind == "count":
			return fmt.Sprint(v.Least + 3000)
		case v.Kind == "duration":
			return `"7m"`
		case v.Least > 80<<10:
			return `"80MiB"`
		}
		return `"80KiB"`
	case values.ChoiceValue:
		return `"` + v.Of[slices.IndexFunc(v.Of, func(word string) bool { return word != s.Preset })] + `"`
	}
	switch s.Name {
	case "statsd-address":
		return `"127.0.0.1:9"`
	case "statsd-prefix":
		return `"here"`
	case "http-allowed-hosts":
		return `"broker.example"`
	}
	switch s.Value.Type() {
	case "bool":
		return map[string]string{"true": "false", "false": "true"}[s.Preset]
	case "count": // a port
		return "7"
	case "addresses":
		return `"127.0.0.1:9"`
	}
	return ""
}

// Every setting of which the table says so changes while the node runs, all at once: the node says so, and uses it.
// Every other one is named as needing a restart, and stays; for a limit, a size or an interval the table says why. A
// file with a mistake changes nothing.
func TestEverySettingOfTheTableChanges(t *testing.T) {
	t.Parallel()
	n := startWithFile(t, "")
	before := n.config(t)
	var text, change, restart []string
	for _, s := range settings.New(pflag.NewFlagSet("", pflag.ContinueOnError)).Settings {
		live := s.WhileRunning == settings.ChangesAtOnce || s.WhileRunning == settings.NewConnections
		value := another(s)
		if before[s.Key()].Source != "default" || strings.HasPrefix(s.Name, "cluster-") {
			continue // a flag of the test's node wins; a single node takes no settings of a cluster's connections
		}
		switch {
		case !live && (s.Value.Type() != "count" && s.Value.Type() != "bytes" && s.Value.Type() != "duration"):
			continue
		case value == "":
			t.Fatalf("the test knows no other value of %s", s.Name)
		case live:
			change = append(change, s.Key())
		default:
			if restart = append(restart, s.Key()); s.Running() == s.WhileRunning && !strings.HasPrefix(s.Name, "broadcast-") {
				t.Errorf("%s needs a restart, and the table does not say why", s.Name)
			}
		}
		text = append(text, s.Key()+" = "+value)
	}
	if len(change) < 80 || len(restart) < 10 {
		t.Fatalf("%d settings change and %d need a restart", len(change), len(restart))
	}
	r, o := n.reload(t, strings.Join(text, "\n"))
	if named(r.Changed) != strings.Join(change, " ") || named(r.Restart) != strings.Join(restart, " ") {
		t.Errorf("changed %s, want %s; restart %s, want %s: %s", named(r.Changed), change, named(r.Restart), restart,
			o.stderr)
	}
	after := n.config(t)
	for _, key := range change {
		if row := after[key]; fmt.Sprint(row.Value) == fmt.Sprint(before[key].Value) || row.Says != "" {
			t.Errorf("%s was %v and is %+v", key, before[key].Value, row)
		}
	}
	for _, key := range restart {
		if row := after[key]; fmt.Sprint(row.Value) != fmt.Sprint(before[key].Value) || row.Says == "" {
			t.Errorf("%s was %v and is %+v", key, before[key].Value, row)
		}
	}
	table := execute(t, "config", "running", "--http-address", n.http)
	if !strings.Contains(table.stdout, "running 2, file says 3001") {
		t.Errorf("the table: %s", table.stdout)
	}
	must(t, os.WriteFile(n.file, []byte("max_topics = \"many\"\n"), 0o600))
	execute(t, "reload", "--http-address", n.http).check(t, cli.ExitOther, "is not a whole number")
	if now := n.config(t)["max_topics"]; fmt.Sprint(now.Value) != fmt.Sprint(after["max_topics"].Value) {
		t.Errorf("after a file with a mistake: %+v", now)
	}
	must(t, os.WriteFile(n.file, []byte("heartbeat_interval = \"2m\"\n"), 0o600))
	execute(t, "reload", "--http-address", n.http).check(t, cli.ExitOther, "HeartbeatInterval is 2m0s")
}

// What a reload changes has its effect: on the log, on connections, on what a token may take, on how often something is
// done, on topics that have no setting of their own, and on what new topics get.
func TestChangedSettingsHaveEffect(t *testing.T) {
	t.Parallel()
	statsd, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer statsd.Close()
	const admin = "admin-token"
	dir := t.TempDir()
	tokens, mine := filepath.Join(dir, "tokens.toml"), filepath.Join(dir, "mine")
	must(t, os.WriteFile(mine, []byte(admin), 0o600))
	write := func(shop string) {
		t.Helper()
		text := ""
		for _, who := range [][3]string{{"ann", admin, "admin"}, {"shop", shop, "publish"}} {
			text += fmt.Sprintf("[[token]]\nname = %q\nsha256 = \"%x\"\n[[token.grant]]\npermissions = [%q]\ntopics = "+
				"[\"*\"]\n", who[0], sha256.Sum256([]byte(who[1])), who[2])
		}
		must(t, os.WriteFile(tokens, []byte(text), 0o600))
	}
	write("shop-token")
	n := startWithFile(t, "statsd_interval = \"1h\"\n", "--auth-file", tokens, "--statsd-address",
		statsd.LocalAddr().String())
	reload := func(text string) {
		t.Helper()
		must(t, os.WriteFile(n.file, []byte(text), 0o600))
		o := execute(t, "reload", "--http-address", n.http, "--token-file", mine)
		if o.code != 0 || !strings.Contains(o.stdout, "changed: ") {
			t.Fatalf("%+v", o)
		}
	}
	publish := func(token, topic string) int {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+n.http+"/pub?topic="+topic,
			strings.NewReader("x"))
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		reply, err := http.DefaultClient.Do(r)
		must(t, err)
		must(t, reply.Body.Close())
		return reply.StatusCode
	}
	for _, topic := range []string{"t1", "t2"} {
		if code := publish("shop-token", topic); code != 200 {
			t.Fatalf("%s: %d", topic, code)
		}
	}

	reload("log_level = \"debug\"\n")
	nc, err := net.Dial("tcp", n.nsq)
	must(t, err)
	_, err = fmt.Fprint(nc, "  V2BAD\n")
	must(t, err)
	n.waitLog(t, "level=DEBUG")
	nc.Close()

	reload("max_topics = 6\n")
	if a, b := publish("shop-token", "t3"), publish("shop-token", "t4"); a != 200 || b == 200 {
		t.Errorf("a share of half of 6 topics: %d and %d", a, b)
	}
	reload("max_topics = 6\ntoken_share = 100\n")
	if code := publish("shop-token", "t4"); code != 200 {
		t.Errorf("without shares: %d", code)
	}

	reload("max_message_bytes = 1\n")
	if code := publish("shop-token", "t1"); code != 200 {
		t.Errorf("a message of one byte: %d", code)
	}
	reload("max_message_bytes = \"1MiB\"\n")

	reload("statsd_interval = \"50ms\"\n")
	must(t, statsd.SetReadDeadline(time.Now().Add(patience.Or(90*time.Second))))
	if _, _, err := statsd.ReadFrom(make([]byte, 64<<10)); err != nil {
		t.Errorf("nothing is pushed: %v", err)
	}

	reload("default_partitions = 3\nretention_count = 1\nretention_interval = \"10ms\"\nmin_segment_bytes = \"4KiB\"\n")
	if code := publish("shop-token", "wide"); code != 200 {
		t.Errorf("wide: %d", code)
	}
	list := execute(t, "topic", "list", "wide", "--http-address", n.http, "--token-file", mine, "--json")
	if !strings.Contains(list.stdout, `"partition_count": 3`) {
		t.Errorf("a new topic: %+v", list)
	}

	write("other-token")
	if o := execute(t, "reload", "--http-address", n.http, "--token-file", mine); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	if a, b := publish("shop-token", "t1"), publish("other-token", "t1"); a != 401 || b != 200 {
		t.Errorf("the old token: %d, the new one: %d", a, b)
	}

	known := execute(t, "token", "list", "--http-address", n.http, "--token-file", mine)
	for _, want := range []string{"ann    admin    *       *", "shop   publish  *       *"} {
		if !strings.Contains(known.stdout, want) {
			t.Errorf("no %q: %+v", want, known)
		}
	}

	metrics := func() int { code, _ := n.get("/metrics"); return code }
	if code := metrics(); code != 401 {
		t.Fatalf("without a token: %d", code)
	}
	reload("open_pages = true\nmax_batch_bytes = 1\nmax_message_bytes = 1\nmax_header_bytes = 1\n")
	if code := metrics(); code != 200 {
		t.Errorf("open pages: %d", code)
	}
	if code := publish("other-token", "t1"); code == 200 {
		t.Error("a batch of more than a byte is stored")
	}
	reload("statsd_interval = \"1h\"\n")
	if a, b := metrics(), publish("other-token", "t1"); a != 401 || b != 200 {
		t.Errorf("as before: %d, %d", a, b)
	}

	held, err := net.Dial("tcp", n.nsq)
	must(t, err)
	defer held.Close()
	_, err = fmt.Fprint(held, "  V2")
	must(t, err)
	reload("max_connections = 1\n")
	waitUntil(t, "a second connection to be refused", func() bool {
		second, err := net.Dial("tcp", n.nsq)
		must(t, err)
		defer second.Close()
		must(t, second.SetReadDeadline(time.Now().Add(time.Second)))
		_, err = second.Read(make([]byte, 1))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	})
}
