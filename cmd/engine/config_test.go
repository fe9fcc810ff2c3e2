package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"penstock/internal/cluster/admin"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func writeFile(t *testing.T, data string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "engine.toml")
	if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// load makes a config from a command line, an environment and a file.
func loaded(t *testing.T, args, environ []string) (*config, error) {
	t.Helper()
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c := newConfig(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return c, c.load(environ)
}

func TestPrecedence(t *testing.T) {
	file := writeFile(t, "max_topics = 10\nmsg_timeout = \"10s\"\nio = \"pwrite\"\ndisable_auto_create = "+
		"true\nmax_message_bytes = \"2MiB\"\nretention_bytes = 4096\n")
	environ := []string{
		"PENSTOCK_CONFIG=" + file, "PENSTOCK_MSG_TIMEOUT=20s", "PENSTOCK_IO=uring", "OTHER_IO=pwrite",
		"PENSTOCK_MAX_CHANNELS=",
	}
	c, err := loaded(t, []string{"--io", "auto", "--data-path=/d"}, environ)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]string{
		"data_path":           {"/d", "flag --data-path"},
		"io":                  {"auto", "flag --io"},
		"msg_timeout":         {"20s", "environment PENSTOCK_MSG_TIMEOUT"},
		"max_topics":          {"10", "file " + file},
		"disable_auto_create": {"true", "file " + file},
		"max_message_bytes":   {"2MiB", "file " + file},
		"retention_bytes":     {"4KiB", "file " + file},
		"max_channels":        {"1000", "default"}, // an empty variable counts as not set
	}
	for _, s := range c.settings {
		w, ok := want[s.key()]
		if !ok {
			w = [2]string{s.value.String(), "default"}
		}
		if got := [2]string{s.value.String(), c.source[s.name]}; got != w {
			t.Errorf("%s is %q, want %q", s.key(), got, w)
		}
	}
	if n := c.node; n.engine.MsgTimeout != 20*time.Second || n.engine.MaxTopics != 10 || !n.engine.DisableAutoCreate ||
		n.engine.MaxMessageBytes != 2<<20 {
		t.Errorf("the options were not set: %+v", n.engine)
	}
	// A flag takes precedence over the environment for the name of the file.
	other := writeFile(t, "max_topics = 11\n")
	c, err = loaded(t, []string{"--config", other}, environ)
	if err != nil {
		t.Fatal(err)
	}
	if c.node.engine.MaxTopics != 11 {
		t.Errorf("--config lost to PENSTOCK_CONFIG: max_topics is %d", c.node.engine.MaxTopics)
	}
}

func TestConfigErrors(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		args, env  []string
		want       string
	}{
		{name: "unknown key", file: "dta_path = \"x\"\n", want: "unknown key dta_path; the nearest one is data_path"},
		{name: "dashes", file: "data-path = \"x\"\n", want: "unknown key data-path; the nearest one is data_path"},
		{name: "table", file: "[engine]\ndata_path = \"x\"\n", want: "unknown key engine"},
		{name: "bad TOML", file: "data_path = \n", want: "not valid TOML at line 1"},
		{name: "wrong type", file: "max_topics = [1]\n", want: "max_topics: the value must be"},
		{name: "wrong value", file: "msg_timeout = 5\n", want: "is not a time with a unit"},
		{
			name: "unknown variable", env: []string{"PENSTOCK_MAX_TOPIC=1"},
			want: "PENSTOCK_MAX_TOPIC is not a setting; the nearest one is PENSTOCK_MAX_TOPICS",
		},
		{
			name: "wrong variable", env: []string{"PENSTOCK_MAX_TOPICS=many"},
			want: "environment PENSTOCK_MAX_TOPICS: \"many\" is not a whole number",
		},
		{
			name: "unknown old variable", env: []string{"ENGINE_MAX_TOPIC=1"},
			want: "ENGINE_MAX_TOPIC is not a setting; the nearest one is PENSTOCK_MAX_TOPICS",
		},
		{name: "too small", env: []string{"PENSTOCK_MAX_TOPICS=0"}, want: "0 is less than 1"},
		{name: "no file", args: []string{"--config", "/nonexistent/engine.toml"}, want: "does not exist"},
		{name: "a folder", args: []string{"--config", "/"}, want: "not a regular file"},
		{name: "wrong flag value", args: []string{"--io", "mmap"}, want: "not one of auto, uring, pwrite"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := tc.args
			if tc.file != "" {
				args = append(args, "--config", writeFile(t, tc.file))
			}
			_, err := loaded(t, args, tc.env)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is more than a line: %q", err)
			}
		})
	}
}

func TestDefaultsFile(t *testing.T) {
	c := newConfig(pflag.NewFlagSet("", pflag.ContinueOnError))
	var out bytes.Buffer
	if err := c.printDefaults(&out); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "defaults.toml")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("the defaults changed; run the test with -update if that is meant:\n%s", out.String())
	}
	// With every key uncommented, the file must be accepted and must not change any setting.
	key := regexp.MustCompile(`(?m)^# ([a-z0-9_]+ = )`)
	c, err = loaded(t, []string{"--config", writeFile(t, key.ReplaceAllString(out.String(), "$1"))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.settings {
		if s.value.String() != s.preset {
			t.Errorf("%s is %s from the file and %s by default", s.name, s.value, s.preset)
		}
		if c.source[s.name] == "default" {
			t.Errorf("%s is missing in the file", s.name)
		}
	}
}

// A secret is used and never shown, wherever it was set.
func TestSecretsAreNotShown(t *testing.T) {
	const password, inURL, inQuery = "hunter2", "swordfish", "sesame"
	c, err := loaded(t, nil, []string{
		"PENSTOCK_AUTH_HTTP_ADDRESS=127.0.0.1:1,http://me:" + inURL + "@127.0.0.1:2/auth?key=" + inQuery +
			"@,https://127.0.0.1:3/a@b", "PENSTOCK_ETCD_PASSWORD=" + password,
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.node.cluster.etcdPassword != password || !strings.Contains(c.node.offers.authAddresses, inURL) {
		t.Errorf("what is used: %+v, %+v", c.node.cluster, c.node.offers)
	}
	var table, list bytes.Buffer
	if err := errors.Join(c.printTable(&table), c.printJSON(&list)); err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintln(table.String(), list.String())
	for _, s := range c.settings {
		v, _ := c.lookup(s.key())
		shown += fmt.Sprintln(v, s.value)
	}
	if strings.Contains(shown, password) || strings.Contains(shown, inURL) || strings.Contains(shown, inQuery) {
		t.Errorf("a secret is shown:\n%s", shown)
	}
	for key, want := range map[string]string{
		"etcd_password":     "(set)",
		"etcd_user":         "",
		"auth_http_address": "127.0.0.1:1,http://(set)@127.0.0.1:2/auth?(set),https://127.0.0.1:3/a@b",
	} {
		if got, _ := c.lookup(key); got != want {
			t.Errorf("%s is shown as %q, want %q", key, got, want)
		}
	}
	if c, err = loaded(t, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := c.lookup("etcd_password"); got != "" {
		t.Errorf("a password that nobody set is shown as %q", got)
	}
}

func TestSettingNames(t *testing.T) {
	shape := regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z]+)*$`)
	seen := map[string]bool{}
	for _, s := range settings(new(options)) {
		if !shape.MatchString(s.name) || seen[s.name] || s.help == "" {
			t.Errorf("setting %q: the name must be in kebab-case and unique, with a help text", s.name)
		}
		seen[s.name] = true
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "64 KiB": 64 << 10, "1MiB": 1 << 20, "1.5GiB": 3 << 29, "2TiB": 2 << 40,
		"10MB": 10e6, "1kB": 1000, "7B": 7,
	} {
		if got, err := parseBytes(in); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "B", "-1", "1.5", "1.5B", "1 MiB extra", "1e30GiB", "9223372036854775807KiB", "NaNMiB", "infMiB", "0.3KiB",
	} {
		if got, err := parseBytes(in); err == nil {
			t.Errorf("parseBytes(%q) = %d, want an error", in, got)
		}
	}
	for in, want := range map[int64]string{
		0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1 << 20: "1MiB", 3 << 29: "1536MiB", 5 << 40: "5TiB",
	} {
		got := formatBytes(in)
		if got != want {
			t.Errorf("formatBytes(%d) = %s, want %s", in, got, want)
		}
		if back, err := parseBytes(got); err != nil || back != in {
			t.Errorf("parseBytes(formatBytes(%d)) = %d, %v", in, back, err)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"data_path", "io", "max_topics"}
	for in, want := range map[string]string{
		"datapath": "data_path", "i": "io", "max_topic": "max_topics", "tls_ca": "", "xyz": "", // O12: nothing is near
	} {
		if got := nearest(in, known); got != want {
			t.Errorf("nearest(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "0s", time.Hour: "1h", 90 * time.Second: "1m30s", 15 * time.Minute: "15m", 10 * time.Second: "10s",
		5 * time.Millisecond: "5ms", time.Hour + 30*time.Second: "1h0m30s",
	} {
		if got := formatDuration(in); got != want {
			t.Errorf("formatDuration(%v) = %s, want %s", in, got, want)
		}
	}
}

// A sentence about one thing is not in the plural.
func TestCounted(t *testing.T) {
	for _, x := range []struct{ got, want string }{
		{counted(0, "message"), "0 messages"},
		{counted(1, "message"), "1 message"},
		{counted(uint64(2), "message"), "2 messages"},
		{inNumber(1, "copy is", "copies are"), "1 copy is"},
		{inNumber(3, "copy is", "copies are"), "3 copies are"},
		{
			rebalancing(&admin.Rebalancing{State: "running", MoveCount: 1, RemainingCount: 1}),
			"running, 1 move under way, 1 step remains",
		},
	} {
		if x.got != x.want {
			t.Errorf("%q, want %q", x.got, x.want)
		}
	}
}
