package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/meta"
	"penstock/internal/node/fold"
	"penstock/internal/server/api"
)

// publishRush publishes a message with the header kind=rush to the topic orders.
func publishRush(t *testing.T, address, body string) {
	t.Helper()
	r, err := http.NewRequest("POST", "http://"+address+"/pub?topic=orders", strings.NewReader(body))
	must(t, err)
	r.Header.Set("X-Penstock-Header-Kind", "rush")
	reply, err := http.DefaultClient.Do(r)
	must(t, err)
	must(t, reply.Body.Close())
	if reply.StatusCode != 200 {
		t.Fatal(reply.Status)
	}
}

// steer runs a command that must succeed, and returns its output.
func steer(t *testing.T, args ...string) string {
	t.Helper()
	o := execute(t, args...)
	if o.code != 0 || o.stderr != "" {
		t.Fatalf("%q: %+v", args, o)
	}
	return o.stdout
}

// rows returns the lines of a table, with each gap between columns reduced to one space.
func rows(table string) []string {
	gaps := regexp.MustCompile(` {2,}`)
	out := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	for i := range out {
		out[i] = strings.TrimRight(gaps.ReplaceAllString(out[i], "  "), " ")
	}
	return out
}

// The commands against a lone node, as operators run them.
func TestChannelAndTopicCommands(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	if got := steer(t, "topic", "create", "orders", "--partitions", "2"); got != "topic orders exists\n" {
		t.Errorf("create prints %q", got)
	}
	steer(t, "topic", "create", "orders")
	steer(t, "topic", "create", "orders", "--partitions", "2")
	execute(t, "topic", "create", "orders", "--partitions", "3").check(t, cli.ExitOther,
		"topic orders existed before, with 2 partitions and not 3; nothing was changed: penstock topic set")
	execute(t, "topic", "create", "orders", "--partitions", "1").check(t, cli.ExitOther, "partitions cannot be taken away")
	if got := steer(t, "channel", "create", "orders", "billing"); got != "channel billing of topic orders exists\n" {
		t.Errorf("create prints %q", got)
	}
	execute(t, "channel", "create", "orders", "other", "--from", "noon").check(t, cli.ExitUsage,
		"neither oldest nor newest")
	execute(t, "channel", "fork", "orders", "billing", "other", "--at", "noon").check(t, cli.ExitUsage,
		"neither oldest nor newest")
	execute(t, "channel", "fork", "orders", "billing").check(t, cli.ExitUsage, "accepts 3 arg(s)")
	execute(t, "channel", "fork", "orders", "billing", "billing").check(t, cli.ExitOther, "of that name already")
	if got := steer(t, "channel", "fork", "orders", "billing", "audit"); got !=
		"channel audit of topic orders exists, with the settings of channel billing, and starts where channel billing "+
			"stands\n" {
		t.Errorf("fork prints %q", got)
	}
	if got := steer(t, "channel", "fork", "orders", "billing", "again", "--at", "oldest"); !strings.HasSuffix(got,
		"and starts at oldest\n") {
		t.Errorf("fork prints %q", got)
	}
	steer(t, "channel", "delete", "orders", "audit")
	steer(t, "channel", "delete", "orders", "again")
	for i := range 6 {
		publishRush(t, n.http, fmt.Sprint("order\n", i))
	}
	if got := rows(steer(t, "topic", "list")); len(got) != 2 ||
		got[0] != "TOPIC  CHANNELS  DEPTH  MESSAGES  BYTES STORED  PRODUCERS  STATE" ||
		!regexp.MustCompile(`^orders  1  0  6  [1-9][0-9]+  0  ok$`).MatchString(got[1]) {
		t.Errorf("topic list prints %q", got)
	}
	steer(t, "channel", "pause", "orders", "billing")
	if got := rows(steer(t, "channel", "list", "orders")); len(got) != 2 ||
		got[1] != "orders  billing  6  0  0  6  0  0  0  0  paused" {
		t.Errorf("channel list prints %q", got)
	}
	steer(t, "channel", "unpause", "orders", "billing")
	got := rows(steer(t, "channel", "peek", "orders", "billing", "--count", "3", "--partition", "1"))
	if len(got) != 4 || !strings.HasPrefix(got[1], "0001000000000000  1  0  ") ||
		!strings.Contains(got[1], `  -  7  kind=rush  "order\n`) {
		t.Errorf("peek prints %q", got)
	}
	var list api.PeekList
	must(t, json.Unmarshal([]byte(steer(t, "topic", "peek", "orders", "--json", "--from", "0001000000000001", "--count",
		"1")), &list))
	if len(list.Messages) != 1 || list.Messages[0].ID != "0001000000000001" || list.Messages[0].Number != 1 {
		t.Errorf("topic peek --json is %+v", list)
	}
	for search, want := range map[string]int{
		"--header kind=rush": 6, "--contains order --partition 1": 3, "--contains order --count 4": 4, "--since 1h": -1,
		"--key none": 0, "--header kind=slow": 0, "--since 2099-01-01": 0,
	} {
		list = api.PeekList{}
		out := execute(t, append([]string{"topic", "peek", "orders", "--json"}, strings.Fields(search)...)...)
		if want < 0 {
			out.check(t, cli.ExitUsage, "is not a time")
			continue
		}
		if must(t, json.Unmarshal([]byte(out.well(t)), &list)); len(list.Messages) != want || list.Messages == nil {
			t.Errorf("topic peek %s finds %d messages, not %d", search, len(list.Messages), want)
		}
	}
	for place, want := range map[string]string{
		"oldest": "the oldest message", "1h ago": "or later", "0001000000000001": "message 0001000000000001",
		"newest": "the next message that is published",
	} {
		if got := steer(t, "channel", "seek", "orders", "billing", "--to", place); !strings.HasSuffix(got, want+"\n") {
			t.Errorf("seek to %s prints %q", place, got)
		}
	}
	steer(t, "channel", "seek", "orders", "billing", "--to", "newest")
	if got := steer(t, "channel", "seek", "orders", "billing", "--to", "-2"); !strings.HasSuffix(got,
		"at 2 messages back\n") {
		t.Errorf("seek prints %q", got)
	}
	must(t, json.Unmarshal([]byte(steer(t, "channel", "peek", "orders", "billing", "--json")), &list))
	if len(list.Messages) != 4 {
		t.Errorf("after a seek 2 back in each of 2 partitions %d messages wait", len(list.Messages))
	}
	for _, what := range []string{"pending", "deferred"} {
		if got := rows(steer(t, "channel", what, "orders", "billing")); len(got) != 1 ||
			!strings.HasPrefix(got[0], "ID  PARTITION") {
			t.Errorf("%s prints %q", what, got)
		}
	}
	if got := steer(t, "channel", "redrive", "orders", "billing", "--json"); strings.Join(strings.Fields(got),
		"") != `{"moved":0}` {
		t.Errorf("redrive prints %q", got)
	}
	for _, verb := range []string{"skip", "unskip", "empty", "delete"} {
		if got := steer(t, "channel", verb, "orders", "billing"); !strings.HasPrefix(got,
			"channel billing of topic orders ") {
			t.Errorf("%s prints %q", verb, got)
		}
	}
	for _, verb := range []string{"pause", "unpause", "empty", "delete"} {
		var said struct{ Message string }
		must(t, json.Unmarshal([]byte(steer(t, "topic", verb, "orders", "--json")), &said))
		if !strings.HasPrefix(said.Message, "topic orders ") {
			t.Errorf("%s prints %q", verb, said.Message)
		}
	}
	execute(t, "topic", "list", "orders").check(t, cli.ExitOther, "there is no topic orders")
}

func TestSettingsCommands(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders")
	steer(t, "channel", "create", "orders", "billing")
	if got := rows(steer(t, "channel", "settings", "orders", "billing")); got[0] != "version  0: never configured" ||
		got[1] != "order  none" {
		t.Errorf("settings print %q", got)
	}
	out := steer(t, "channel", "set", "orders", "billing", "--order", "key", "--key-header", "key", "--max-attempts",
		"5", "--rate", "100",
		"--filter", "kind=rush", "--filter", "region^=eu-", "--filter", "vip", "--filter-invert")
	want := []string{
		"version  1", "order  key", "key header  key", "max attempts  5", "dead letter  TOPIC.DLQ", "rate  100",
		"rate bytes  no limit", "max in flight  what consumers ask for", "sample rate  all",
		"filter  kind=rush, region^=eu-, vip", "filter invert  true",
	}
	if got := rows(out); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("set prints\n%s", out)
	}
	var s fold.ChannelSettings
	must(t, json.Unmarshal([]byte(steer(t, "channel", "set", "orders", "billing", "--no-filter", "--max-in-flight", "9",
		"--json")), &s))
	if s.Version != 2 || s.MaxInFlight != 9 || s.MaxAttempts != 5 || s.Order != fold.OrderKey ||
		len(s.Filter.Rules) != 0 {
		t.Errorf("set --json prints %+v", s)
	}
	file := filepath.Join(t.TempDir(), "settings.json")
	must(t, os.WriteFile(file, []byte(`{"sample_rate":10}`), 0o600))
	must(t, json.Unmarshal([]byte(steer(t, "channel", "set", "orders", "billing", "--file", file, "--json")), &s))
	if s.Version != 3 || s.SampleRate != 10 || s.MaxAttempts != 0 {
		t.Errorf("set --file prints %+v", s)
	}
	must(t, os.WriteFile(file, []byte(`{"version":1,"sample_rate":11}`), 0o600))
	execute(t, "channel", "set", "orders", "billing", "--file", file).check(t, cli.ExitOther,
		"changed by somebody else meanwhile")
	must(t, os.WriteFile(file, []byte(`{"samplerate":11}`), 0o600))
	execute(t, "channel", "set", "orders", "billing", "--file", file).check(t, cli.ExitUsage, "samplerate")

	out = steer(t, "topic", "set", "orders", "--retention-bytes", "1GiB", "--retention-age", "72h", "--retention-count",
		"none", "--keep-age", "24h", "--keep-bytes", "none", "--quota-count", "1000", "--quota-mode", "drop-oldest")
	want = []string{
		"version  1", "retention bytes  1GiB", "retention count  none", "retention age  72h", "keep bytes  none",
		"keep age  24h", "quota bytes  no limit", "quota count  1000",
		"quota mode  drop-oldest", "min isr  majority of the replicas", "partitions  1", "durability  synced",
	}
	if got := rows(out); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("topic set prints\n%s", out)
	}
	if got := steer(t, "topic", "settings", "orders"); got != out {
		t.Errorf("topic settings prints\n%s", got)
	}
	var ts meta.TopicSettings
	must(t, json.Unmarshal([]byte(steer(t, "topic", "set", "orders", "--partitions", "3", "--durability", "synced",
		"--json")), &ts))
	if ts.Version != 2 || ts.Partitions != 3 || ts.Durability != "synced" || ts.QuotaCount != 1000 || ts.KeepBytes != -1 {
		t.Errorf("topic set --json prints %+v", ts)
	}
	if got := rows(steer(t, "topic", "set", "orders", "--keep-bytes", "0")); got[4] != "keep bytes  not set" {
		t.Errorf("topic set --keep-bytes 0 prints %q", got)
	}
	ts = meta.TopicSettings{}
	must(t, os.WriteFile(file, []byte(`{"quota_count":5}`), 0o600))
	must(t, json.Unmarshal([]byte(steer(t, "topic", "set", "orders", "--file", file, "--json")), &ts))
	if ts.Version != 4 || ts.Partitions != 3 || ts.QuotaCount != 5 || ts.RetentionBytes != 0 || ts.KeepAgeMs != 0 {
		t.Errorf("topic set --file prints %+v", ts)
	}
	execute(t, "topic", "set", "orders", "--partitions", "2").check(t, cli.ExitUsage,
		"the topic has 3, and none can be taken away")
}

func TestChannelUsage(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders")
	for _, tc := range []struct {
		args string
		code int
		want string
	}{
		{"channel pause orders none", cli.ExitOther, "topic orders has no channel none"},
		{"channel pause none none", cli.ExitOther, "there is no topic none"},
		{"channel pause a:b none", cli.ExitUsage, `"a:b" is not the name of a topic`},
		{"channel pause orders", cli.ExitUsage, "accepts 2 arg"},
		{"channel paws orders c", cli.ExitUsage, "unknown command"},
		{"channel seek orders c", cli.ExitUsage, `"to" not set`},
		{"channel set orders c", cli.ExitUsage, "say what to set"},
		{"channel set orders c --json", cli.ExitUsage, "say what to set"},
		{"topic set orders", cli.ExitUsage, "say what to set"},
		{"topic set orders --quota-mode sometimes", cli.ExitUsage, "is not one of reject, drop-oldest"},
		{"topic set orders --retention-age soon", cli.ExitUsage, "is not a time"},
		{"topic set orders --min-isr 3", cli.ExitUsage, "a single node is one replica"},
		{"topic set orders --partitions -1", cli.ExitUsage, `"-1" is not a whole number of 0 or more`},
		{"topic set orders --partitions 70000", cli.ExitUsage, "65536 are the most"},
		{"topic set orders --durability memory", cli.ExitUsage, `"memory" is not one of synced`},
		{"topic peek orders --from x", cli.ExitUsage, "neither a message id"},
		{"topic create orders --partitions -3", cli.ExitUsage, "not a possible number of partitions"},
		{"topic list --http-adress x", cli.ExitUsage, "the nearest one is --http-address"},
		{"channel redrive orders c --count -1", cli.ExitUsage, "is not a number of messages"},
	} {
		execute(t, strings.Fields(tc.args)...).check(t, tc.code, tc.want)
	}
	steer(t, "channel", "create", "orders", "c")
	for _, tc := range []struct{ args, want string }{
		{"channel set orders c --order sideways", `"sideways" is not one of none, partition, key, declared`},
		{"channel set orders c --sample-rate 100", "--sample-rate: it must be 0 to 99"},
		{"channel set orders c --filter x=1 --no-filter", "none of the others can be"},
		{"channel set orders c --filter-all --no-filter", "none of the others can be"},
		{"channel set orders c --filter-invert --no-filter", "none of the others can be"},
		{"channel set orders c --filter x~=(", "nothing was changed"},
		{"channel seek orders c --to nowhere", "neither oldest nor newest"},
	} {
		execute(t, strings.Fields(tc.args)...).check(t, cli.ExitUsage, tc.want)
	}
	execute(t, "topic", "list", "--http-address", "a b").check(t, cli.ExitUsage, "is neither a URL")
	execute(t, "topic", "list", "--http-address", "127.0.0.1:1").check(t, cli.ExitOther,
		"does not answer: say another one with --http-address")
}
