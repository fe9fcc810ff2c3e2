package main

import (
	"bytes"
	bigendian "encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
)

// An address that is in use is said with the flags that nsqd has, and the variables for what it has no flags for.
func TestNSQDAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	address := taken.Addr().String()
	free := []string{"nsqd", "-data-path", t.TempDir(), "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"}
	for _, args := range [][]string{{"-tcp-address", address}, {"-http-address", address}} {
		o := execute(t, append(free, args...)...)
		o.check(t, cli.ExitAddress, address+" is in use by another process: choose another one with --tcp-address, "+
			"--http-address or --https-address")
		for _, strange := range []string{"--nsq-address", "--lookup-address", "--native-address", "--cluster-address"} {
			if strings.Contains(o.stderr, strange) {
				t.Errorf("nsqd has no %s: %s", strange, o.stderr)
			}
		}
	}
	t.Setenv("PENSTOCK_NATIVE_ADDRESS", address)
	execute(t, free...).check(t, cli.ExitAddress, "PENSTOCK_NATIVE_ADDRESS")
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
		execute(t, append([]string{"nsqd"}, strings.Fields(tc.args)...)...).check(t, cli.ExitUsage, tc.want)
	}
}

// startNSQD runs the program in dir under the name nsqd.
func startNSQD(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	link := filepath.Join(t.TempDir(), "nsqd")
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
	if n := strings.Count(p.log.String(), "penstock migrate nsqd --data-path . --to penstock"); n != 1 {
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
