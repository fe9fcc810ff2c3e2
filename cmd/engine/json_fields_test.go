package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/cluster/admin"
	"penstock/internal/server/api"
	"penstock/tests/support/patience"
)

var updateFields = flag.Bool("update-json-fields", false, "write testdata/json_fields.txt")

// fieldsFile has, for each command, the fields of its JSON with their kinds; "?" marks one that is not always there.
const fieldsFile = "testdata/json_fields.txt"

// fieldsOf adds the fields of a value to out, by their path.
func fieldsOf(out map[string]map[string]bool, path string, v any) {
	note := func(kind string) {
		if out[path] == nil {
			out[path] = map[string]bool{}
		}
		out[path][kind] = true
	}
	switch v := v.(type) {
	case map[string]any:
		note("object")
		for name, e := range v {
			fieldsOf(out, path+"."+name, e)
		}
	case []any:
		note("array")
		for _, e := range v {
			fieldsOf(out, path+"[]", e)
		}
	case string:
		note("string")
	case bool:
		note("bool")
	case float64:
		note("number")
	case nil:
		note("null")
	}
}

// judging are the commands whose exit code says that something is wrong just now, which a busy machine may cause.
var judging = []string{"cluster status", "cluster health", "status", "health"}

// schemaOf returns the fields of a command's JSON, with the kinds of their values.
func schemaOf(t *testing.T, command, document string) map[string]string {
	t.Helper()
	found := map[string]map[string]bool{}
	dec := json.NewDecoder(strings.NewReader(document))
	for n := 0; dec.More(); n++ {
		var v any
		if err := dec.Decode(&v); err != nil || n > 0 {
			t.Errorf("%s --json prints no single JSON document (%v): %.500s", command, err, document)
			return nil
		}
		fieldsOf(found, "", v)
	}
	out := map[string]string{}
	for path, kinds := range found {
		out[path] = strings.Join(slices.Sorted(maps.Keys(kinds)), "|")
	}
	return out
}

// readFields reads the golden file: command, then path, then kind and whether the field may be missing.
func readFields(t *testing.T) map[string]map[string]string {
	t.Helper()
	data, err := os.ReadFile(fieldsFile)
	if err != nil && !*updateFields {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	for line := range strings.Lines(string(data)) {
		if command, rest, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(line, "#") {
			path, kind, _ := strings.Cut(rest, " ")
			if all[command] == nil {
				all[command] = map[string]string{}
			}
			all[command][strings.TrimSuffix(path, "$")] = kind
		}
	}
	return all
}

// compareFields compares what a command printed with the golden file.
func compareFields(t *testing.T, command string, got, want map[string]string) {
	t.Helper()
	for path, kind := range got {
		wanted, known := want[path]
		if !known {
			t.Errorf("%s prints a new field: %s %s", command, path, kind)
			continue
		}
		for _, k := range strings.Split(kind, "|") {
			if !slices.Contains(strings.Split(strings.TrimSuffix(wanted, "?"), "|"), k) {
				t.Errorf("%s: %s is of kind %s, and was %s", command, path, kind, wanted)
			}
		}
	}
	for path, kind := range want {
		above := path[:max(0, strings.LastIndexAny(path, ".["))]
		if _, there := got[path]; !there && !strings.HasSuffix(kind, "?") && got[above] != "" {
			t.Errorf("%s prints the field %s no more", command, path)
		}
	}
}

// notSteered are the commands that cannot succeed in a healthy cluster: force-leader needs a lost replica, remove-node
// a stopped node, upgrade an older level. They print what move prints; migrate prints text.
var notSteered = []string{"cluster force-leader", "cluster remove-node", "cluster upgrade", "migrate nsqd"}

// Every command that talks to a node prints JSON whose fields do not change, from a cluster of three nodes, over https
// and with a token. O4, O12
func TestJSONFields(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir, "node")
	tokens, token := filepath.Join(dir, "tokens.toml"), filepath.Join(dir, "token")
	must(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	must(t, os.WriteFile(tokens, fmt.Appendf(nil, "[[token]]\nname = \"ops\"\nsha256 = \"%x\"\n[[token.grant]]\n"+
		"topics = [\"*\"]\nchannels = [\"*\"]\npermissions = [\"publish\", \"subscribe\", \"admin\", \"view\"]\n",
		sha256.Sum256([]byte("s3cret"))), 0o600))
	nodes, at := startSecureCluster(t, "--tls-cert", cert, "--tls-key", key, "--auth-file", tokens)
	trusted := []string{"--tls-ca", cert, "--token-file", token, "--json", "--http-address", at}
	golden := readFields(t)
	seen := map[string]map[string]string{}
	check := func(command, document string) {
		t.Helper()
		got := schemaOf(t, command, document)
		if seen[command] == nil {
			seen[command] = got
		}
		if !*updateFields {
			compareFields(t, command, got, golden[command])
		}
	}
	run := func(command string, args ...string) string {
		t.Helper()
		o := execute(t, append(append(strings.Fields(command), args...), trusted...)...)
		if o.code != 0 && !(o.code == cli.ExitUnhealthy && slices.Contains(judging, command)) {
			t.Fatalf("%s: %+v", command, o)
		}
		check(command, o.stdout)
		return o.stdout
	}
	if *updateFields {
		defer func() { writeFields(t, seen, golden) }()
	}

	// A node that has just joined may not have heard of all others yet, and would find too few for three replicas.
	steer(t, append([]string{"cluster", "health", "--wait", "90s"}, trusted...)...)
	run("topic create", "orders", "--partitions", "2", "--replicas", "3")
	run("channel create", "orders", "billing")
	run("channel set", "orders", "billing", "--max-attempts", "9", "--filter", "kind=none", "--filter-invert")
	data := filepath.Join(dir, "data")
	steer(t, append([]string{
		"bench", "pub", "--topic", "orders", "--messages", "8", "--headers", "1", "--keep-topic", "--nsq-address",
		nodes["n1"].NSQ,
	}, trusted...)...)
	run("channel settings", "orders", "billing")
	for _, args := range [][]string{
		{"pub", "imported", "--producer", "import", "--lines", "--json", "--header", "kind=none", "--key", "k"},
		{"read", "imported", "--format", "json", "--count", "1"},
		{"sub", "imported", "checked", "--format", "json", "--count", "1", "--from", "oldest"},
		{"aside", "publish", keepAside(t, data, 2), "--data-path", data, "--topic", "imported", "--yes", "--json"},
	} {
		o := feed(t, "a line\n", append(args, "--nodes", nodes["n1"].Native, "--tls-ca", cert, "--token-file", token)...)
		check(strings.TrimSuffix(args[0]+" "+args[1], " imported"), o.well(t))
	}
	run("producer list", "imported")
	run("producer remove", "imported", "import")
	run("token list")
	run("open", "--print")
	run("config running")
	consumer := holdMessages(t, nodes, cert)
	defer consumer.Stop()
	awaitRows := func(command string) {
		t.Helper()
		for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
			o := execute(t, append(append(strings.Fields(command), "orders", "billing"), trusted...)...)
			var list api.WaitingList
			if o.code == 0 && json.Unmarshal([]byte(o.stdout), &list) == nil && len(list.Messages) > 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %+v", command, o)
			}
		}
		run(command, "orders", "billing")
	}
	awaitRows("channel pending")
	awaitRows("channel deferred")
	run("channel consumers", "orders", "billing")
	run("channel list")
	run("channel peek", "orders", "billing")
	run("top", "--once", "--interval", "200ms")
	run("topic list")
	run("topic set", "orders", "--quota-count", "1000000", "--keep-age", "1h", "--keep-bytes", "1MiB")
	run("topic settings", "orders")
	var list api.PeekList
	must(t, json.Unmarshal([]byte(run("topic peek", "orders")), &list))
	run("channel seek", "orders", "billing", "--to", "oldest")
	run("channel finish", "orders", "billing", list.Messages[0].ID)
	run("channel seek", "orders", "billing", "--to", "newest")
	run("trace", "orders", list.Messages[0].ID)
	run("channel redrive", "orders", "billing")
	run("channel fork", "orders", "billing", "audit")
	run("cluster status")
	run("cluster health")
	run("status")
	run("audit")
	run("reload")
	run("health")
	run("cluster verify", "orders")
	run("cluster expand", "orders", "3")
	run("cluster set-replicas", "orders", "2")
	run("cluster transfer-leader", "orders", "0")
	run("cluster rebalance")
	run("cluster drain", "n3")
	run("cluster drain", "n3", "--off")
	run("definitions export")
	doc := filepath.Join(dir, "d.json")
	must(t, os.WriteFile(doc, []byte(topicsDocument(`{"name":"defined","replicas":2}`)), 0o600))
	run("definitions apply", doc)
	var topics admin.Topics
	must(t, json.Unmarshal([]byte(run("cluster topics")), &topics))
	defined := slices.IndexFunc(topics.Topics, func(t admin.Topic) bool { return t.Name == "defined" })
	on := &topics.Topics[defined].Partitions[0]
	for name := range nodes {
		if !slices.Contains(on.Replicas, name) {
			run("cluster move", "defined", "0", "--from", on.Replicas[1], "--to", name)
		}
	}
	run("backup", filepath.Join(dir, "backup"))
	run("debug bundle", "-o", filepath.Join(dir, "b.tar.gz"), "--cpu-profile", "0")
	for _, mode := range []string{"pub", "sub", "e2e"} {
		args := []string{"--messages", "20", "--nsq-address", nodes["n1"].NSQ, "--topic", "bench"}
		if mode == "e2e" {
			args = append(args, "--rate", "1000")
		}
		if mode != "e2e" {
			args = append(args, "--keep-topic")
		}
		run("bench "+mode, args...)
	}
	native := []string{"--nodes", nodes["n1"].Native, "--topic", "native", "--messages", "20"}
	run("bench read", append(native, "--fill", "--keep-topic")...)
	o := steer(t, append(append([]string{
		"bench", "pub", "--protocol", "native", "--compress", "s2", "--linger", "1ms",
	}, native...), trusted...)...)
	check("bench pub native", o)
	for _, mode := range []string{"sub", "e2e"} {
		args := append([]string{"bench", mode, "--protocol", "native"}, native...)
		if mode == "e2e" {
			args = append(args, "--rate", "1000")
		} else {
			args = append(args, "--fill", "--keep-topic")
		}
		check("bench "+mode+" native", steer(t, append(args, trusted...)...))
	}
	for _, verb := range []string{"skip", "unskip", "pause", "unpause", "empty", "delete"} {
		run("channel "+verb, "orders", "billing")
	}
	for _, verb := range []string{"pause", "unpause", "empty", "delete"} {
		run("topic "+verb, "orders")
	}
	for _, cmd := range leaves(rootCommand()) {
		name := strings.TrimPrefix(cmd.CommandPath(), "penstock ")
		if !slices.Contains(local, cmd.CommandPath()) && seen[name] == nil && !slices.Contains(notSteered, name) {
			t.Errorf("%s talks to a node, and nobody checks its JSON", name)
		}
	}
}

// writeFields writes the golden file. A field that was optional stays so.
func writeFields(t *testing.T, seen, before map[string]map[string]string) {
	var b strings.Builder
	b.WriteString("# The fields of the commands' JSON: go test ./cmd/engine -run JSONFields -update-json-fields\n" +
		"# A field with ? is not always there.\n")
	for _, command := range slices.Sorted(maps.Keys(seen)) {
		for path, kind := range before[command] {
			if _, there := seen[command][path]; !there && strings.HasSuffix(kind, "?") {
				seen[command][path] = kind
			}
		}
		for _, path := range slices.Sorted(maps.Keys(seen[command])) {
			kind := seen[command][path]
			if old := before[command][path]; strings.HasSuffix(old, "?") {
				kind = old
			}
			fmt.Fprintf(&b, "%s: %s %s\n", command, path+map[bool]string{true: "$"}[path == ""], kind)
		}
	}
	must(t, os.WriteFile(fieldsFile, []byte(b.String()), 0o600))
}

// holdMessages consumes channel billing of topic orders: it requeues the first message for an hour, and holds others.
func holdMessages(t *testing.T, nodes map[string]devcluster.Node, ca string) *nsq.Consumer {
	t.Helper()
	pem, err := os.ReadFile(ca)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	cfg := nsq.NewConfig()
	cfg.TlsV1, cfg.TlsConfig, cfg.AuthSecret, cfg.MaxInFlight = true, &tls.Config{RootCAs: pool}, "s3cret", 6
	c, err := nsq.NewConsumer("orders", "billing", cfg)
	must(t, err)
	c.SetLogger(nil, nsq.LogLevelMax)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	c.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		m.DisableAutoResponse()
		select {
		case <-first:
			m.RequeueWithoutBackoff(time.Hour)
		default:
		}
		return nil
	}))
	for _, n := range nodes {
		must(t, c.ConnectToNSQD(n.NSQ))
	}
	return c
}

// startSecureCluster runs three nodes as dev-cluster would, but with these flags and an HTTPS address of its own for
// each. It returns the nodes and the URL of one of them.
func startSecureCluster(t *testing.T, flags ...string) (nodes map[string]devcluster.Node, at string) {
	t.Helper()
	p := startDevAs(t, standIns, t.TempDir()) // it chooses ports and says how to start the nodes
	nodes = p.ready(3)
	p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
	p.wait()
	var running []*process
	t.Cleanup(func() {
		for _, n := range running {
			_ = n.cmd.Process.Signal(syscall.SIGTERM)
		}
		for _, n := range running {
			select {
			case <-n.exited:
			case <-time.After(patience.Or(90 * time.Second)):
				t.Error("a node does not end")
				_ = n.cmd.Process.Kill()
			}
		}
	})
	for _, name := range []string{"n1", "n2", "n3"} {
		host, port, err := net.SplitHostPort(nodes[name].NSQ)
		must(t, err)
		first, err := strconv.Atoi(port)
		must(t, err)
		https := net.JoinHostPort(host, strconv.Itoa(first+7)) // dev-cluster leaves this port free
		n := &process{t: t, log: &logBuffer{more: make(chan struct{}, 1)}, exited: make(chan error, 1)}
		n.cmd = exec.Command(binary(t), slices.Concat(nodes[name].Args, flags, []string{
			"--https-address", https, "--backup-path", "/",
		})...)
		n.cmd.Stderr = n.log
		must(t, n.cmd.Start())
		go func() { n.exited <- n.cmd.Wait() }()
		running = append(running, n)
		at = "https://" + https
	}
	for _, n := range running {
		end := time.Now().Add(patience.Or(120 * time.Second))
		for ; !readyLine.MatchString(n.log.String()); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("a node is not ready:\n%s", n.log)
			}
		}
	}
	return nodes, at
}
