package serve

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/settings"
)

// The list was taken from `nsqd -h` of nsqd 1.3.0.
func TestNSQDFlagsAreComplete(t *testing.T) {
	data, err := os.ReadFile("testdata/nsqd-1.3.0-flags.txt")
	must(t, err)
	want := strings.Fields(string(data))
	got := []string{"config", "version"}
	for _, f := range nsqdFlags() {
		got = append(got, f.name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("flags %q\nwant %q", got, want)
	}
}

func nsqdSettings(t *testing.T, args ...string) (*settings.Config, *nsqdLine) {
	t.Helper()
	n := newNSQDLine()
	must(t, n.parse(args, os.Stderr))
	c, err := n.config(nil)
	must(t, err)
	return c, n
}

func TestNSQDFlags(t *testing.T) {
	c, n := nsqdSettings(t)
	for name, want := range map[string]string{
		"nsq-address": "0.0.0.0:4150", "http-address": "0.0.0.0:4151", "lookup-address": "off", "data-path": "penstock",
		"msg-timeout": "1m", "max-req-timeout": "1h", "max-defer": "1h", "max-message-bytes": "1MiB",
		"max-body-bytes": "5MiB",
	} {
		if got := c.Named(name).Value.String(); got != want {
			t.Errorf("%s is %s without flags, want %s", name, got, want)
		}
	}
	if n.warning() != "" {
		t.Errorf("a warning without flags: %s", n.warning())
	}
	for _, tc := range []struct {
		args    string
		setting string
		want    string
		warning string
	}{
		{"-tcp-address 127.0.0.1:5", "nsq-address", "127.0.0.1:5", ""},
		{"--tcp-address=127.0.0.1:5", "nsq-address", "127.0.0.1:5", ""},
		{"-tcp-address=:1 -tcp-address=:2", "nsq-address", ":2", ""},
		{"-http-address=", "http-address", "off", ""},
		{"--data-path=/var/lib/nsq", "data-path", "/var/lib/nsq/penstock", ""},
		{"--data-path=", "data-path", "penstock", ""},
		{"-max-msg-size=0x100000", "max-message-bytes", "1MiB", ""},
		{"-max-msg-size=2000000 -max-body-size=1000", "max-message-bytes", "2000000", ""},
		{"-max-msg-size=2000000 -max-body-size=1000", "max-body-bytes", "2000000", ""},
		{"-max-body-size=10485760", "max-batch-bytes", "12MiB", ""},
		{"-max-body-size=100000000", "max-body-bytes", "12MiB", "sizes above 12MiB"},
		{"-max-req-timeout=24h", "max-req-timeout", "24h", ""},
		{"-max-req-timeout=24h", "max-defer", "24h", ""},
		{"-max-heartbeat-interval=10s", "heartbeat-interval", "10s", ""},
		{"-max-rdy-count 7", "max-rdy-count", "7", ""},
		{"-max-output-buffer-size=1024", "max-output-buffer-bytes", "1KiB", ""},
		{"-max-channel-consumers=3", "max-consumers", "3", ""},
		{"-log-level=FATAL", "log-level", "error", ""},
		{"-log-level=debug", "log-level", "debug", ""},
		{"-broadcast-address=example.org", "broadcast-address", "example.org", ""},
		{"-broadcast-tcp-port=32150 -broadcast-http-port 0x7d97", "broadcast-http-port", "32151", ""},
		{"-broadcast-tcp-port=32150 -broadcast-http-port 0x7d97", "broadcast-tcp-port", "32150", ""},
		{"-mem-queue-size=0 --sync-every 1 -verbose", "msg-timeout", "1m", "--verbose, --mem-queue-size, --sync-every"},
		{
			"-statsd-mem-stats=false -e2e-processing-latency-percentile=1.0,0.99 -e2e-processing-latency-percentile 0.5",
			"e2e-processing-latency-percentile", "1,0.99,0.5", "",
		},
		{"-statsd-mem-stats=false", "statsd-mem-stats", "false", ""},
		{"-statsd-address=127.0.0.1:8125 -statsd-interval=10s", "statsd-interval", "10s", ""},
		{"-statsd-prefix=a.%s -statsd-udp-packet-size=0x200", "statsd-udp-packet-size", "512", ""},
		{"-statsd-exclude-ephemeral", "statsd-exclude-ephemeral", "true", ""},
		{"-e2e-processing-latency-window-time=1m", "e2e-processing-latency-window-time", "1m", ""},
		{
			"-node-id=5 leftover -tcp-address=:1", "nsq-address", "0.0.0.0:4150",
			`the arguments ["leftover" "-tcp-address=:1"], --node-id`,
		},
	} {
		c, n := nsqdSettings(t, strings.Fields(tc.args)...)
		if got := c.Named(tc.setting).Value.String(); got != tc.want {
			t.Errorf("%s: %s is %s, want %s", tc.args, tc.setting, got, tc.want)
		}
		if w := n.warning(); (w == "") != (tc.warning == "") || !strings.Contains(w, tc.warning) {
			t.Errorf("%s: the warning is %q, want %q", tc.args, w, tc.warning)
		}
	}
}

func TestNSQDNotations(t *testing.T) {
	for _, tc := range []struct {
		convert    func(string) (string, error)
		said, want string // "": an error
	}{
		{tlsRequired, "true", "true"},
		{tlsRequired, "1", "true"},
		{tlsRequired, "TCP-HTTPS", "tcp-https"},
		{tlsRequired, "false", "false"},
		{tlsRequired, "no", ""},
		{tlsVersion, "tls1.3", "1.3"},
		{tlsVersion, "TLS1.2", "1.2"},
		{tlsVersion, "tls1.0", "1.2"},
		{tlsVersion, "tls2", ""},
		{nsqdLevel, "WARN", "warn"},
		{nsqdLevel, "fatal", "error"},
		{nsqdLevel, "warning", ""},
		{optionalAddress, "", "off"},
		{optionalAddress, "[::]:1", "[::]:1"},
		{optionalAddress, "/run/x", ""},
		{tcpAddress, "", ":0"},
	} {
		got, err := tc.convert(tc.said)
		if (err == nil) != (tc.want != "") || err == nil && got != tc.want {
			t.Errorf("%q becomes %q, %v; want %q", tc.said, got, err, tc.want)
		}
	}
}

func TestNSQDConfigFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nsqd.cfg")
	must(t, os.WriteFile(file, []byte(`
log_level = "warn"
id = 515
tcp_address = "0.0.0.0:1"
http_address = "0.0.0.0:2"
nsqlookupd_tcp_addresses = ["127.0.0.1:4160", "127.0.0.1:4170"]
mem_queue_size = 10000
msg_timeout = "30s"
max_msg_timeout = 120000
max_rdy_count = 100
e2e_processing_latency_percentiles = [1.0, 0.99]
tls_required = false
snappy = true
colour = "green"
`), 0o600))
	c, n := nsqdSettings(t, "-config", file, "-tcp-address=127.0.0.1:9")
	for name, want := range map[string]string{
		"nsq-address": "127.0.0.1:9", "http-address": "0.0.0.0:2", "msg-timeout": "30s", "max-msg-timeout": "2m",
		"max-rdy-count": "100", "log-level": "warn",
		"lookupd-tcp-address": "127.0.0.1:4160,127.0.0.1:4170", "e2e-processing-latency-percentile": "1,0.99",
	} {
		if got := c.Named(name).Value.String(); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for _, key := range []string{"the key colour", "the key id", "the key mem_queue_size"} {
		if !strings.Contains(n.warning(), key) {
			t.Errorf("the warning %q does not name %s", n.warning(), key)
		}
	}
	must(t, os.WriteFile(file, []byte("msg_timeout = true"), 0o600))
	n = newNSQDLine()
	must(t, n.parse([]string{"-config", file}, os.Stderr))
	if _, err := n.config(nil); err == nil || !strings.Contains(err.Error(), "msg_timeout") {
		t.Errorf("%v", err)
	}
}
