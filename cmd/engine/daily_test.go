package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
	"penstock/internal/load"
	"penstock/tests/support/clitest"
	"penstock/tests/support/patience"
)

// O15: bench deletes the topic that it created, and never one that was there before.
func TestBenchLeavesNoTopic(t *testing.T) {
	n := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
	bench := func(more ...string) {
		t.Helper()
		args := append([]string{"bench", "pub", "--nsq-address", n.nsq, "--http-address", n.http, "--messages=10"}, more...)
		if o := execute(t, args...); o.code != 0 || o.stderr != "" {
			t.Fatalf("%q: %+v", args, o)
		}
	}
	topics := func() string {
		t.Helper()
		return strings.Join(rows(steer(t, "topic", "list", "--http-address", n.http))[1:], "|")
	}
	bench()
	if got := topics(); got != "" {
		t.Errorf("bench leaves %s", got)
	}
	bench("--protocol", "native", "--nodes", n.native())
	if got := topics(); got != "" {
		t.Errorf("bench by the native protocol leaves %s", got)
	}
	bench("--topic", "kept", "--keep-topic")
	steer(t, "topic", "create", "mine", "--http-address", n.http)
	bench("--topic", "mine")
	if got := topics(); !strings.HasPrefix(got, "kept  0  10  ") || !strings.Contains(got, "|mine  0  10  ") {
		t.Errorf("left are %s", got)
	}
}

// O4: every command reaches a node that demands TLS and a token; bench's connections of the NSQ protocol, too.
func TestTLSAndTokenEverywhere(t *testing.T) {
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir, "node")
	tokens, token := filepath.Join(dir, "tokens.toml"), filepath.Join(dir, "token")
	must(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	must(t, os.WriteFile(tokens, fmt.Appendf(nil, "[[token]]\nname = \"ops\"\nsha256 = \"%x\"\n[[token.grant]]\n"+
		"topics = [\"*\"]\nchannels = [\"*\"]\npermissions = [\"publish\", \"subscribe\", \"admin\"]\n",
		sha256.Sum256([]byte("s3cret"))), 0o600))
	p := startNode(t, t.TempDir(), "--tls-cert", cert, "--tls-key", key, "--tls-required", "true", "--https-address",
		"127.0.0.1:0", "--auth-file", tokens, "--native-address", "127.0.0.1:0")
	at := "https://" + httpsAddress.FindStringSubmatch(p.log.String())[1]
	trusted := []string{"--http-address", at, "--tls-ca", cert, "--token-file", token}
	steer(t, append([]string{"topic", "create", "orders"}, trusted...)...)
	steer(t, append([]string{"channel", "create", "orders", "billing"}, trusted...)...)
	for _, connections := range []string{"1", "9"} { // 9 are served by one goroutine, where there is no TLS
		var r load.Report
		must(t, json.Unmarshal([]byte(steer(t, append([]string{
			"bench", "pub", "--nsq-address", p.nsq, "--topic", "orders", "--messages", "90", "--connections",
			connections, "--json",
		}, trusted...)...)), &r))
		if r.Messages != 90 || r.Server.Version == "unknown" {
			t.Errorf("%+v", r)
		}
	}
	steer(t, append([]string{
		"bench", "pub", "--protocol", "native", "--nodes", p.native(), "--messages", "9",
	}, trusted...)...)
	steer(t, append([]string{"bench", "e2e", "--nsq-address", p.nsq, "--messages", "50", "--rate", "1000"}, trusted...)...)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"topic", "list", "--http-address", at, "--token-file", token}, cli.ExitUsage, "--tls-ca"},
		{[]string{"topic", "delete", "orders", "--http-address", at, "--tls-ca", cert}, cli.ExitOther, "asks for a token"},
		{[]string{"topic", "list", "--http-address", p.http}, cli.ExitOther, "requires TLS"},
		{[]string{
			"bench", "pub", "--nsq-address", p.nsq, "--messages", "1", "--http-address", at, "--tls-ca", cert, "--keep-topic",
		}, cli.ExitOther, "E_AUTH_FIRST"},
		{[]string{
			"bench", "pub", "--nsq-address", "192.0.2.1:4150", "--messages", "1", "--http-address", "", "--token-file", token,
		}, cli.ExitUsage, "--allow-plaintext-token"},
	} {
		execute(t, tc.args...).check(t, tc.code, tc.want)
	}
}

// O19: drain --wait says how far it is and, only at the end, that the node may be stopped.
func TestDrainShowsProgress(t *testing.T) {
	n := startClusterNode(t)
	n.answers(func(asked int) admin.Status {
		n1 := admin.Node{ID: 1, Name: "n1", Draining: true, Leaders: max(0, 4-asked)}
		return admin.Status{PartitionCount: 9, Nodes: []admin.Node{n1}}
	})
	want := "it is done\nnode n1 still leads 2 of 9 partitions\nnode n1 still leads 1 of 9 partitions\n" +
		"node n1 leads no partition: it may be stopped now\n"
	if got := steer(t, "cluster", "drain", "n1", "--wait", "20s", "--http-address", n.address); got != want {
		t.Errorf("it prints\n%swant\n%s", got, want)
	}
	n.answers(func(int) admin.Status { return admin.Status{Nodes: []admin.Node{{ID: 1, Name: "n1", Draining: true}}} })
	if got := steer(t, "cluster", "drain", "n1", "--wait", "20s", "--json", "--http-address", n.address); got !=
		"{\n  \"message\": \"node n1 leads no partition: it may be stopped now\"\n}\n" {
		t.Errorf("as JSON it prints %s", got)
	}
	n.answers(func(int) admin.Status {
		return admin.Status{Nodes: []admin.Node{{ID: 1, Name: "n1", Draining: true, Needed: 7}}}
	})
	if got := steer(t, "cluster", "drain", "n1", "--wait", "20s", "--http-address", n.address); got !=
		"it is done\nnode n1 leads no partition, but do not stop it yet: 7 partitions need it for their min_isr, and take "+
			"no messages without it; see penstock cluster health\n" {
		t.Errorf("of a node that is needed it prints %s", got)
	}
	n.answers(func(int) admin.Status {
		return admin.Status{Nodes: []admin.Node{{ID: 1, Name: "n1", Draining: true, Leaders: 5}}}
	})
	o := execute(t, "cluster", "drain", "n1", "--wait", "250ms", "--http-address", n.address)
	if strings.Contains(o.stdout, "may be stopped") {
		t.Errorf("%+v", o)
	}
}

// keysOf returns the sorted names of the fields of a JSON object.
func keysOf(t *testing.T, data []byte) string {
	t.Helper()
	var o map[string]json.RawMessage
	must(t, json.Unmarshal(data, &o))
	return strings.Join(slices.Sorted(maps.Keys(o)), " ")
}

// O19: the consumers of a channel are listed. What they call themselves cannot do anything to the terminal.
func TestConsumers(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders")
	steer(t, "channel", "create", "orders", "billing")
	if got := steer(t, "channel", "consumers", "orders", "billing", "--json"); got != "[]\n" {
		t.Errorf("nobody consumes: %s", got)
	}
	c, err := net.Dial("tcp", n.nsq)
	must(t, err)
	defer c.Close()
	body := `{"client_id":"me\u001b[2J","hostname":"here\nx","user_agent":"test/1\u0007\u202e"}`
	_, err = fmt.Fprintf(c, "  V2IDENTIFY\n\x00\x00\x00%c%sSUB orders billing\nRDY 7\n", len(body), body)
	must(t, err)
	var list []json.RawMessage
	for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		must(t, json.Unmarshal([]byte(steer(t, "channel", "consumers", "orders", "billing", "--json")), &list))
		if len(list) == 1 && strings.Contains(string(list[0]), `"ready_count": 7`) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s", list)
		}
	}
	if got, want := keysOf(t, list[0]), "client_id connect_ts finish_count hostname in_flight_count leader message_count "+
		"ready_count remote_address requeue_count tls user_agent"; got != want {
		t.Errorf("the fields are\n%s, want\n%s", got, want)
	}
	if got := rows(steer(t, "channel", "consumers", "orders", "billing")); len(got) != 2 ||
		!strings.HasPrefix(got[1], `me\u001b[2J  here\u000ax  `+c.LocalAddr().String()+"  "+n.http+"  7  0  0  0  0  20") {
		t.Errorf("%q", got)
	}
	reply, err := http.Get("http://" + n.http + "/stats")
	must(t, err)
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	must(t, err)
	if !strings.Contains(string(text), `here\u000ax:`) || !strings.Contains(string(text), `test/1\u0007\u202e`) ||
		strings.ContainsAny(string(text), "\a\x1b\u202e") {
		t.Errorf("/stats as text: %q", text)
	}
	execute(t, "channel", "consumers", "orders", "none").check(t, cli.ExitOther, "topic orders has no channel none")
}

// O19: top prints lines where there is no terminal, JSON on request, and redraws on a terminal until q is typed.
func TestTop(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders")
	steer(t, "channel", "create", "orders", "billing")
	publishRush(t, n.http, "one")
	if got := rows(steer(t, "top", "--once", "--interval", "200ms")); len(got) != 3 ||
		got[2] != "orders  billing  0  0  0  0  1  0  0  0  stands still  ok" {
		t.Errorf("%q", got)
	}
	out := []byte(steer(t, "top", "--once", "--interval", "200ms", "--json"))
	if got := keysOf(t, out); got != "depth published_per_second row_count rows seconds time" {
		t.Errorf("the fields are %s", got)
	}
	var look struct{ Rows []json.RawMessage }
	must(t, json.Unmarshal(out, &look))
	if got := keysOf(t, look.Rows[0]); got != "channel client_count confirmed_per_second deferred_count depth "+
		"entered_per_second in_flight_count lag_seconds paused published_per_second requeued_per_second "+
		"state timed_out_per_second topic" {
		t.Errorf("the fields of a row are %s", got)
	}
	execute(t, "top", "--interval", "1ms").check(t, cli.ExitUsage, "--interval must be at least 200ms")

	near, far := clitest.OpenTerminal(t)
	p := &process{t: t, log: &logBuffer{more: make(chan struct{}, 1)}, exited: make(chan error, 1)}
	p.cmd = topProcess(t, far, p.log)
	go func() { p.exited <- p.cmd.Wait() }()
	buf := make([]byte, 4096)
	k, err := near.Read(buf)
	must(t, err)
	if got := string(buf[:k]); !strings.HasPrefix(got, "\x1b[H\x1b[2J") {
		t.Errorf("on a terminal it prints %q", got)
	}
	_, err = near.WriteString("q")
	must(t, err)
	select {
	case err := <-p.exited:
		if err != nil {
			t.Errorf("after q: %v %s", err, p.log)
		}
	case <-time.After(patience.Or(90 * time.Second)):
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		t.Error("q does not end it")
	}
}

// topProcess starts top on a terminal.
func topProcess(t *testing.T, tty *os.File, log *logBuffer) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t), "top", "--interval", "200ms")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, log
	must(t, cmd.Start())
	return cmd
}
