package settings

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
func loaded(t *testing.T, args, environ []string) (*Config, error) {
	t.Helper()
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c := New(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return c, c.Load(environ)
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
	for _, s := range c.Settings {
		w, ok := want[s.Key()]
		if !ok {
			w = [2]string{s.Value.String(), "default"}
		}
		if got := [2]string{s.Value.String(), c.Source[s.Name]}; got != w {
			t.Errorf("%s is %q, want %q", s.Key(), got, w)
		}
	}
	if n := c.Node; n.Engine.MsgTimeout != 20*time.Second || n.Engine.MaxTopics != 10 || !n.Engine.DisableAutoCreate ||
		n.Engine.MaxMessageBytes != 2<<20 {
		t.Errorf("the options were not set: %+v", n.Engine)
	}
	// A flag takes precedence over the environment for the name of the file.
	other := writeFile(t, "max_topics = 11\n")
	c, err = loaded(t, []string{"--config", other}, environ)
	if err != nil {
		t.Fatal(err)
	}
	if c.Node.Engine.MaxTopics != 11 {
		t.Errorf("--config lost to PENSTOCK_CONFIG: max_topics is %d", c.Node.Engine.MaxTopics)
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
		{name: "wrong value", file: "msg_timeout = 5\n", want: "is not a time such as"},
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
	c := New(pflag.NewFlagSet("", pflag.ContinueOnError))
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
	for _, s := range c.Settings {
		if s.Value.String() != s.Preset {
			t.Errorf("%s is %s from the file and %s by default", s.Name, s.Value, s.Preset)
		}
		if c.Source[s.Name] == "default" {
			t.Errorf("%s is missing in the file", s.Name)
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
	if c.Node.Cluster.EtcdPassword != password || !strings.Contains(c.Node.Offers.authAddresses, inURL) {
		t.Errorf("what is used: %+v, %+v", c.Node.Cluster, c.Node.Offers)
	}
	var table, list bytes.Buffer
	if err := errors.Join(c.printTable(&table), c.printJSON(&list)); err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintln(table.String(), list.String())
	for _, s := range c.Settings {
		v, _ := c.lookup(s.Key())
		shown += fmt.Sprintln(v, s.Value)
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
	for _, s := range Table(new(Options)) {
		if !shape.MatchString(s.Name) || seen[s.Name] || s.Help == "" {
			t.Errorf("setting %q: the name must be in kebab-case and unique, with a help text", s.Name)
		}
		seen[s.Name] = true
	}
}

// What may hold a secret, and holds none, is taken from a command line.
func TestFlagsWithoutSecrets(t *testing.T) {
	if _, err := loaded(t, []string{"--etcd-password", "", "--auth-http-address", "127.0.0.1:1"}, nil); err != nil {
		t.Error(err)
	}
}
