package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/cluster/admin"
	"penstock/internal/load"
	"penstock/internal/patience"
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
		{[]string{"topic", "list", "--http-address", at, "--token-file", token}, exitUsage, "--tls-ca"},
		{[]string{"topic", "delete", "orders", "--http-address", at, "--tls-ca", cert}, exitOther, "asks for a token"},
		{[]string{"topic", "list", "--http-address", p.http}, exitOther, "requires TLS"},
		{[]string{
			"bench", "pub", "--nsq-address", p.nsq, "--messages", "1", "--http-address", at, "--tls-ca", cert, "--keep-topic",
		}, exitOther, "E_AUTH_FIRST"},
		{[]string{
			"bench", "pub", "--nsq-address", "192.0.2.1:4150", "--messages", "1", "--http-address", "", "--token-file", token,
		}, exitUsage, "--allow-plaintext-token"},
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
	return strings.Join(sortedKeys(o), " ")
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
	execute(t, "channel", "consumers", "orders", "none").check(t, exitOther, "topic orders has no channel none")
}

// O19: the figures of top, from two looks at all topics.
func TestTopOf(t *testing.T) {
	before := []topicNumbers{
		{Name: "a", MessageCount: 100, Channels: []channelNumbers{
			{Name: "c", Depth: 50, MessageCount: 100, RequeueCount: 2},
		}},
		{Name: "gone", MessageCount: 5},
		{Name: "moved", MessageCount: 1000, Channels: []channelNumbers{{Name: "c", Depth: 9, MessageCount: 1000}}},
	}
	after := []topicNumbers{
		{Name: "a", MessageCount: 140, Channels: []channelNumbers{
			{Name: "c", Depth: 40, MessageCount: 140, RequeueCount: 4, TimeoutCount: 6},
			{Name: "new", Depth: 40, MessageCount: 40, Paused: true},
		}},
		{Name: "moved", MessageCount: 10, Channels: []channelNumbers{{Name: "c", Depth: 9, MessageCount: 10}}},
		{Name: "none", MessageCount: 8, Depth: 8},
	}
	look := topOf(before, after, 2*time.Second, 10)
	want := []topRow{
		{
			Topic: "a", Channel: "c", Published: 20, Entered: 20, Confirmed: 25, Requeued: 1, TimedOut: 3, Depth: 40,
			LagSeconds: 1.6, State: "ok",
		},
		{Topic: "a", Channel: "new", Published: 20, Entered: 20, Depth: 40, LagSeconds: -1, State: "paused", Paused: true},
		{Topic: "none", Published: 4, Depth: 8, State: "ok"},
		{Topic: "moved", Channel: "c", Depth: 9, LagSeconds: -1, State: "ok"},
	}
	if len(look.Rows) != len(want) || look.Published != 24 || look.Depth != 97 || look.RowCount != 4 {
		t.Fatalf("%+v", look)
	}
	for i := range want {
		if look.Rows[i] != want[i] {
			t.Errorf("row %d is\n%+v, want\n%+v", i, look.Rows[i], want[i])
		}
	}
	if look = topOf(before, after, time.Second, 1); len(look.Rows) != 1 || look.RowCount != 4 {
		t.Errorf("not bounded: %+v", look)
	}
}

// Partitions that nobody serves make no rates, neither when they vanish nor when they come back, and no state "ok".
func TestTopOfUnserved(t *testing.T) {
	whole := []topicNumbers{{
		Name: "a", MessageCount: 100, Partitions: 2, Served: []int{1, 0},
		Channels: []channelNumbers{{Name: "c", Depth: 90, MessageCount: 100, Paused: true}},
	}}
	half := []topicNumbers{{
		Name: "a", MessageCount: 40, Partitions: 2, Served: []int{1},
		Channels: []channelNumbers{{Name: "c", Depth: 30, MessageCount: 40, Paused: true}},
	}}
	none := []topicNumbers{{Name: "a", Partitions: 2, Served: []int{}}}
	for _, tc := range []struct {
		before, after []topicNumbers
		want          topRow
	}{
		{whole, half, topRow{Topic: "a", Channel: "c", Depth: 30, Paused: true, LagSeconds: -1, State: "partly served"}},
		{half, whole, topRow{Topic: "a", Channel: "c", Depth: 90, Paused: true, LagSeconds: -1, State: "paused"}},
		{half, none, topRow{Topic: "a", State: "not served"}},
	} {
		if look := topOf(tc.before, tc.after, time.Second, 10); len(look.Rows) != 1 || look.Rows[0] != tc.want {
			t.Errorf("%+v, want %+v", look.Rows, tc.want)
		}
	}
	var out strings.Builder
	must(t, printChannels(&out, half))
	if got := rows(out.String()); len(got) != 2 || !strings.HasSuffix(got[1], "partly served") {
		t.Errorf("the list of channels is %q", got)
	}
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
	execute(t, "top", "--interval", "1ms").check(t, exitUsage, "--interval must be at least 200ms")

	near, far := openTerminal(t)
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
