package main

import (
	"bytes"
	bigendian "encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
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

func nsqdSettings(t *testing.T, args ...string) (*config, *nsqdLine) {
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
		if got := c.named(name).value.String(); got != want {
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
		{"-max-msg-size=2000000 -max-body-size=1000", "max-message-bytes", "2MB", ""},
		{"-max-msg-size=2000000 -max-body-size=1000", "max-body-bytes", "2MB", ""},
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
		if got := c.named(tc.setting).value.String(); got != tc.want {
			t.Errorf("%s: %s is %s, want %s", tc.args, tc.setting, got, tc.want)
		}
		if w := n.warning(); (w == "") != (tc.warning == "") || !strings.Contains(w, tc.warning) {
			t.Errorf("%s: the warning is %q, want %q", tc.args, w, tc.warning)
		}
	}
}

// An address that is in use is said with the flags that nsqd has, and the variables for what it has no flags for.
func TestNSQDAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	address := taken.Addr().String()
	free := []string{"nsqd", "-data-path", t.TempDir(), "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"}
	for _, args := range [][]string{{"-tcp-address", address}, {"-http-address", address}} {
		o := execute(t, append(free, args...)...)
		o.check(t, exitAddress, address+" is in use by another process: choose another one with --tcp-address, "+
			"--http-address or --https-address")
		for _, strange := range []string{"--nsq-address", "--lookup-address", "--native-address", "--cluster-address"} {
			if strings.Contains(o.stderr, strange) {
				t.Errorf("nsqd has no %s: %s", strange, o.stderr)
			}
		}
	}
	t.Setenv("ENGINE_NATIVE_ADDRESS", address)
	execute(t, free...).check(t, exitAddress, "ENGINE_NATIVE_ADDRESS")
}

func TestNSQDRefuses(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"-no-such-flag", "flag provided but not defined: -no-such-flag"},
		{"-msg-timeout=5", `invalid value "5" for flag -msg-timeout: parse error`},
		{"-mem-queue-size=lots", `invalid value "lots" for flag -mem-queue-size: parse error`},
		{"-tls-required=perhaps", "-tls-required"},
		{"-log-level=loud", "invalid log level 'loud'"},
		{"-e2e-processing-latency-percentile=1.5", "--e2e-processing-latency-percentile: \"1.5\" is not a percentile"},
		{"-tcp-address=/run/nsqd.sock", "Unix sockets"},
		{"-config=/no/such/file", "does not exist"},
		{"-tcp-address", "flag needs an argument: -tcp-address"},
	} {
		execute(t, append([]string{"nsqd"}, strings.Fields(tc.args)...)...).check(t, exitUsage, tc.want)
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
		if got := c.named(name).value.String(); got != want {
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

// startNSQD runs the program in dir under the name nsqd.
func startNSQD(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	link := filepath.Join(t.TempDir(), nsqdName)
	must(t, os.Symlink(binary(t), link))
	return startProcess(t, dir, link, append([]string{"-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"}, args...))
}

// Under the name nsqd the program works in the current directory, leaves the files of an nsqd there unchanged, and logs
// once how to import them.
func TestNSQDServes(t *testing.T) {
	dir := nsqdDir(t, "clean")
	before := tree(t, dir)
	p := startNSQD(t, dir, "-mem-queue-size=0", "--sync-every=1", "-lookupd-tcp-address=127.0.0.1:1")
	if n := strings.Count(p.log.String(), "without effect here"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, p.log)
	}
	if n := strings.Count(p.log.String(), "engine migrate nsqd --data-path . --to penstock"); n != 1 {
		t.Errorf("the way to import is named %d times:\n%s", n, p.log)
	}
	p.publish("mine", 10)
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, p.log)
	}
	for name, was := range before {
		if tree(t, dir)[name] != was {
			t.Errorf("nsqd's file %s changed", name)
		}
	}

	cmd := exec.Command(binary(t), "migrate", "nsqd", "--data-path", ".", "--to", "penstock")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "imported: 53 messages") {
		t.Fatalf("%v: %s", err, out)
	}
	p = startNSQD(t, dir)
	if log := p.log.String(); strings.Contains(log, "WARN") {
		t.Errorf("a warning after the import:\n%s", log)
	}
	if _, stats := p.get("/stats?format=json&topic=orders&channel=audit"); !regexp.MustCompile(`"depth":34\b`).MatchString(
		stats) {
		t.Errorf("%s", stats)
	}
}

// O18: a client that asks for an output buffer timeout of 1 ms gets it, as with a stock nsqd that has this flag.
func TestNSQDMinOutputBufferTimeout(t *testing.T) {
	for _, tc := range []struct{ least, want string }{
		{"1ms", `"output_buffer_timeout":1`},
		{"200us", `"output_buffer_timeout":1`}, // less than clients can ask for
		{"2ms", "E_BAD_BODY IDENTIFY output buffer timeout (1) is invalid"},
	} {
		p := startNSQD(t, t.TempDir(), "-min-output-buffer-timeout", tc.least)
		c, err := net.Dial("tcp", p.nsq)
		must(t, err)
		defer c.Close()
		body := `{"feature_negotiation":true,"output_buffer_timeout":1}`
		_, err = c.Write(append(bigendian.BigEndian.AppendUint32([]byte("  V2IDENTIFY\n"), uint32(len(body))), body...))
		must(t, err)
		must(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		answer := make([]byte, 4<<10)
		n, err := c.Read(answer)
		must(t, err)
		if !strings.Contains(string(answer[:n]), tc.want) {
			t.Errorf("with %s the answer is %q, want %s", tc.least, answer[:n], tc.want)
		}
		if log := p.log.String(); strings.Contains(log, "without effect") {
			t.Errorf("the flag counts as one without effect:\n%s", log)
		}
	}
}

func TestNSQDVersion(t *testing.T) {
	o := execute(t, "nsqd", "-version")
	if o.code != 0 || !regexp.MustCompile(`^nsqd v1\.3\.0\+engine\S* \(built w/go\S+\)\n$`).MatchString(o.stdout) {
		t.Errorf("%+v", o)
	}
	o = execute(t, "nsqd", "--help")
	if o.code != 0 || !bytes.Contains([]byte(o.stderr), []byte("-mem-queue-size")) {
		t.Errorf("%+v", o)
	}
}
