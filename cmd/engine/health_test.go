package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
	"penstock/internal/node/health"
	"penstock/tests/support/patience"
)

// ask returns the status and the body of a path of a node's HTTP API; 0 if it does not answer.
func ask(t *testing.T, address, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// machineLateness measures, until the test ends, how late goroutines that sleep are woken. The function that it returns
// says what the worst was.
func machineLateness(t *testing.T) func() time.Duration {
	t.Helper()
	const nap = 5 * time.Millisecond
	var worst atomic.Int64
	var wg sync.WaitGroup
	quit := make(chan struct{})
	wg.Go(func() {
		for {
			began := time.Now()
			select {
			case <-quit:
				return
			case <-time.After(nap):
				worst.Store(max(worst.Load(), int64(time.Since(began)-nap)))
			}
		}
	})
	t.Cleanup(func() { close(quit); wg.Wait() })
	return func() time.Duration { return time.Duration(worst.Load()) }
}

// O1: two of three nodes are killed. Within 5 s the survivor says everywhere that it cannot serve, and that the other
// two are dead; the age of what the metadata store said grows. It takes 2.4 s on a quiet machine. A busy one that wakes
// goroutines late gets more time.
func TestOutageIsSaid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startDevAs(t, realNodes, dir)
	nodes := p.ready(3)
	survivor := nodes["n1"].HTTP
	if code, text := ask(t, survivor, "/topic/create?topic=orders&partitions=4"); code != http.StatusMethodNotAllowed {
		t.Errorf("%d %s", code, text)
	}
	resp, err := http.Post("http://"+survivor+"/topic/create?topic=orders&partitions=4", "", nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	resp.Body.Close()
	if o := execute(t, "cluster", "health", "--wait", "20s", "--http", survivor); o.code != 0 ||
		!strings.Contains(o.stdout, "healthy: all 3 nodes are live, all 4 partitions are led and in sync") {
		t.Fatalf("before: %+v", o)
	}
	if o := execute(t, "cluster", "status", "--http", survivor); o.code != 0 || !strings.Contains(o.stdout, "as of") {
		t.Errorf("before: %+v", o)
	}
	for path, want := range map[string]string{
		"/ping": "OK", "/livez": "ok", "/readyz": "ok", "/startupz": "ok",
		"/readyz?verbose": "[+]lease ok: the node has a lease\n",
	} {
		if code, text := ask(t, survivor, path); code != 200 || !strings.Contains(text, want) {
			t.Errorf("before: %s answers %d %s", path, code, text)
		}
	}
	p.signal(nodes["n2"].PID, syscall.SIGKILL)
	p.signal(nodes["n3"].PID, syscall.SIGKILL)
	killed, late := time.Now(), machineLateness(t)
	most := func() time.Duration { return 5*time.Second + 10*late() }
	for {
		code, text := ask(t, survivor, "/readyz")
		if code == http.StatusServiceUnavailable && strings.Contains(text, "[-]lease failed") {
			break
		}
		if took := time.Since(killed); took > most() {
			t.Fatalf("%v later /readyz answers %d %s", took, code, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if code, text := ask(t, survivor, "/ping"); code != 500 || !strings.Contains(text, "NOK - this node has no lease") {
		t.Errorf("/ping answers %d %s", code, text)
	}
	if code, text := ask(t, survivor, "/livez"); code != 200 {
		t.Errorf("a restart cures nothing, and /livez answers %d %s", code, text)
	}
	var stats struct{ Health string }
	if _, text := ask(t, survivor, "/stats?format=json"); json.Unmarshal([]byte(text), &stats) != nil ||
		!strings.HasPrefix(stats.Health, "NOK - this node has no lease") {
		t.Errorf("/stats says %q", stats.Health)
	}
	o := execute(t, "cluster", "health", "--http", survivor)
	for _, want := range []string{
		"unhealthy: this node has no lease and serves nothing", "the metadata store has not answered for",
		"4 partitions without a live leader", `nodes? n2(, n3)? (is|are) (dead|unknown since)`,
		`(n3|n2, n3) (is|are) (dead|unknown since)`, // unknown: it was not seen to end, only to fall silent
	} {
		if o.code != cli.ExitUnhealthy || !regexp.MustCompile(want).MatchString(o.stdout) {
			t.Errorf("%q is missing: %+v", want, o)
		}
	}
	o = execute(t, "cluster", "status", "--http", survivor)
	if took := time.Since(killed); took > most() {
		t.Errorf("it took %v until penstock cluster health and status said so, want %v at most", took, most())
	}
	for _, want := range []string{
		`(?m)^n2 +\d +(dead|unknown since)`, `(?m)^n3 +\d +(dead|unknown since)`,
		`(?m)^n1 +\d +no lease  `, "no live member", `controller +nobody`,
		`(?m)^health +unhealthy: this node has no lease`, `(?m)^as of +\d+\.\ds ago`,
	} {
		if o.code != cli.ExitUnhealthy || !regexp.MustCompile(want).MatchString(o.stdout) {
			t.Errorf("%q is missing: %+v", want, o)
		}
	}
	first, second := storeAge(t, survivor), time.Duration(0)
	time.Sleep(300 * time.Millisecond)
	if second = storeAge(t, survivor); second < first+300*time.Millisecond {
		t.Errorf("the age of the last answer went from %v to %v in 300 ms", first, second)
	}
}

func storeAge(t *testing.T, address string) time.Duration {
	t.Helper()
	o := execute(t, "cluster", "health", "--json", "--http", address)
	var v health.Verdict
	if err := json.Unmarshal([]byte(o.stdout), &v); err != nil {
		t.Fatalf("%v in %+v", err, o)
	}
	return time.Duration(v.StoreAgeMs) * time.Millisecond
}

// penstock cluster health asks a single node, too. A node that does not answer is unhealthy, and --wait waits for it.
func TestHealthOfASingleNode(t *testing.T) {
	p := startNode(t, t.TempDir(), "--node-id", "solo")
	o := execute(t, "cluster", "health", "--http", p.http)
	if o.code != 0 || o.stdout != "healthy: the node serves\n" && lasts(t, t.TempDir()) {
		t.Errorf("%+v", o)
	}
	if code, text := p.get("/readyz?verbose"); code != 200 || strings.Contains(text, "lease") ||
		!strings.HasSuffix(text, "readyz check passed\n") {
		t.Errorf("%d %s", code, text)
	}
	p.end(syscall.SIGTERM)
	began := time.Now()
	o = execute(t, "cluster", "health", "--http", p.http, "--wait", "700ms")
	if o.code != cli.ExitUnhealthy || !strings.Contains(o.stdout, "unhealthy: the node at "+p.http+" does not answer") ||
		time.Since(began) < 700*time.Millisecond {
		t.Errorf("after %v: %+v", time.Since(began), o)
	}
	execute(t, "cluster", "health", "--http-address", "a b").check(t, cli.ExitUsage, "is neither a URL")
	execute(t, "cluster", "health", "--wait", "-1s").check(t, cli.ExitUsage, "-1s is less than 0s")
}

// cluster health --wait ends in time when the node hangs, and after an interruption says what the node said last.
func TestHealthWaitEnds(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, and nobody answers
	must(t, err)
	defer hangs.Close()
	began := time.Now()
	o := execute(t, "cluster", "health", "--http", hangs.Addr().String(), "--wait", "100ms")
	if o.code != cli.ExitUnhealthy || !strings.Contains(o.stdout, "does not answer") ||
		time.Since(began) > 10*time.Second {
		t.Errorf("after %v: %+v", time.Since(began), o)
	}
}

// /startupz answers before recovery, with the progress; everything else but /livez says that the node is starting. The
// node waits for the other members of its etcd here, which are not there.
func TestStartIsShown(t *testing.T) {
	t.Parallel()
	base := freeBasePort(t)
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", base+n) }
	log := &logBuffer{more: make(chan struct{}, 1)}
	cmd := exec.Command(binary(t), "serve", "--data-path", t.TempDir(), "--node-id", "a", "--nsq-address", at(0),
		"--http-address", at(1), "--lookup-address", at(2), "--cluster-address", at(4),
		"--cluster-peers", fmt.Sprintf("a=%s,b=%s,c=%s", at(4), at(14), at(24)))
	cmd.Stderr = log
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	const want = "the node is starting: waits for a majority of the metadata store's members"
	for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		if code, text := ask(t, at(1), "/startupz"); code == 503 && text == want {
			break
		} else if time.Now().After(end) {
			t.Fatalf("/startupz answers %d %s\n%s", code, text, log)
		}
	}
	if code, text := ask(t, at(1), "/livez"); code != 200 {
		t.Errorf("/livez answers %d %s", code, text)
	}
	for _, path := range []string{"/readyz", "/ping", "/stats", "/cluster/status"} {
		if code, text := ask(t, at(1), path); code != 503 || !strings.Contains(text, want) {
			t.Errorf("%s answers %d %s", path, code, text)
		}
	}
	if o := execute(t, "cluster", "health", "--http", at(1)); o.code != cli.ExitUnhealthy ||
		o.stdout != "unhealthy: "+want+"\n" {
		t.Errorf("%+v", o)
	}
}

// O10: MESSAGES counts what was ever published, also after a restart. What is counted since the start says so.
func TestMessagesSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	p := startNode(t, dir)
	p.publish("orders", 100)
	if code, text := post(p.http, "/channel/create?topic=orders&channel=c", ""); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	list := func() []string {
		t.Helper()
		o := execute(t, "topic", "list", "--http-address", p.http)
		if o.code != 0 {
			t.Fatalf("%+v", o)
		}
		return rows(o.stdout)
	}
	// The size is what the node holds: a restart does not change it, and an empty topic has none.
	stored := func(got []string, row string) (n int) {
		t.Helper()
		if _, err := fmt.Sscanf(got[1], row, &n); err != nil {
			t.Errorf("%q, want %q: %v", got, row, err)
		}
		return n
	}
	got := list()
	if got[0] != "TOPIC  CHANNELS  DEPTH  MESSAGES  BYTES STORED  PRODUCERS  STATE" {
		t.Errorf("%q", got)
	}
	before := stored(got, "orders  1  0  100  %d  0  ok")
	if before < 10000 || before > 30000 {
		t.Errorf("100 messages of 100 bytes are %d bytes", before)
	}
	p.end(syscall.SIGKILL)
	p = startNode(t, dir)
	if now := stored(list(), "orders  1  0  100  %d  0  ok"); now != before {
		t.Errorf("%d bytes are stored, and after a restart %d", before, now)
	}
	p.publish("orders", 10)
	if now := stored(list(), "orders  1  0  110  %d  0  ok"); now < before+1000 {
		t.Errorf("%d bytes are stored, and after ten more messages %d", before, now)
	}
	// Nobody consumes the channel: it has got ten messages since the start, and has delivered none.
	if got := rows(execute(t, "channel", "list", "--http-address", p.http).stdout); !strings.HasPrefix(got[1],
		"orders  c  110  0  0  10  0  0  0") || !strings.Contains(got[0], "DEFERRED  RECEIVED SINCE START  REQUEUED") {
		t.Errorf("the channel: %q", got)
	}
}

// O11: a node that does not answer is named, the figures of the others are shown, and the exit code says that they are
// not all. The node stands still here, and its lease lives.
func TestPartialResults(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir(), "--", "--lease", "20s")
	nodes := p.ready(3)
	for i := range 6 { // some of them are led by each node
		if code, text := post(nodes["n1"].HTTP, fmt.Sprintf("/topic/create?topic=t%d", i), ""); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
	}
	if o := execute(t, "topic", "list", "--http-address", nodes["n1"].HTTP); o.code != 0 || len(rows(o.stdout)) != 7 {
		t.Fatalf("before: %+v", o)
	}
	p.signal(nodes["n3"].PID, syscall.SIGSTOP)
	defer p.signal(nodes["n3"].PID, syscall.SIGCONT)
	for _, what := range []string{"topic", "channel"} {
		o := execute(t, what, "list", "--http-address", nodes["n1"].HTTP)
		o.check(t, cli.ExitPartial, "the result is partial: node n3 does not say its numbers")
		if what == "topic" && len(rows(o.stdout)) != 7 {
			t.Errorf("the others say %q", o.stdout)
		}
	}
}

// O11: a partition whose leader is not ready is named, although all live nodes answer: what channels have in it is not
// in the lists. Of three replicas, the new leader lacks one that min_isr demands, and cannot begin its epoch.
func TestUnservedPartitionsAreNamed(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir())
	nodes := p.ready(3)
	n1 := nodes["n1"].HTTP
	if code, text := post(n1, "/topic/create?topic=orders&partitions=1&replicas=3", ""); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	for _, args := range []string{
		"channel create orders billing", "topic set orders --min-isr 3", "channel list",
	} {
		o := execute(t, append(strings.Fields(args), "--http-address", n1)...)
		if o.code != 0 {
			t.Fatalf("%s: %+v", args, o)
		}
	}
	if o := execute(t, "cluster", "health", "--wait", "20s", "--http", n1); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	var all admin.Topics
	_, text := ask(t, n1, "/cluster/topics")
	must(t, json.Unmarshal([]byte(text), &all))
	dead := all.Topics[0].Partitions[0].Leader
	p.signal(nodes[dead].PID, syscall.SIGKILL)
	alive := "n1"
	if dead == alive {
		alive = "n2"
	}
	waitUntil(t, "another node leads", func() bool {
		_, text := ask(t, nodes[alive].HTTP, "/cluster/topics")
		must(t, json.Unmarshal([]byte(text), &all))
		leader := all.Topics[0].Partitions[0].Leader
		return leader != dead && leader != ""
	})
	o := execute(t, "channel", "list", "--http-address", nodes[alive].HTTP)
	o.check(t, cli.ExitPartial, "the result is partial: nobody serves partition 0 of topic orders")
	o = execute(t, "topic", "list", "--http-address", nodes[alive].HTTP)
	o.check(t, cli.ExitPartial, "the result is partial: nobody serves partition 0 of topic orders")
	if got := rows(o.stdout); !strings.HasSuffix(got[1], "  not served") {
		t.Errorf("a topic that nobody serves: %q", got[1])
	}
	o = execute(t, "definitions", "export", "--http-address", nodes[alive].HTTP)
	o.check(t, cli.ExitOther, "penstock: nothing was exported or changed, because a part of the definitions would look "+
		"like all")
	if o.stdout != "" {
		t.Errorf("a part is exported: %s", o.stdout)
	}
	for _, list := range []string{"/topics", "/channels?topic=orders"} {
		if _, text := ask(t, nodes[alive].HTTP, list); !strings.Contains(text, `"unserved_partitions":[0]`) {
			t.Errorf("%s: %s", list, text)
		}
	}
}

// O3: losing a replica, and its return, is one line at the leader, with the ISR before and after by name. A new leader
// names the members of the ISR that are alive.
func TestReplicaLossIsLogged(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir())
	nodes := p.ready(3)
	if code, text := post(nodes["n1"].HTTP, "/topic/create?topic=orders", ""); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	if o := execute(t, "cluster", "health", "--wait", "20s", "--http", nodes["n1"].HTTP); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	var all admin.Topics
	_, text := ask(t, nodes["n1"].HTTP, "/cluster/topics")
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	leader := all.Topics[0].Partitions[0].Leader
	p.signal(nodes[leader].PID, syscall.SIGKILL)
	want := regexp.MustCompile(`level=WARN msg="a replica left the in-sync replicas: [^\n]*` +
		` replica=` + leader + ` topic=orders partition=0 isr_before=\S*` + leader + `\S* isr_after=(n\d),(n\d) others=0`)
	led := regexp.MustCompile(`msg="leads a partition" [^\n]*live_isr=(\S+) isr=(\S+)`)
	for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		found := 0
		for name := range nodes {
			log := p.log(name)
			if name == leader || !want.MatchString(log) {
				continue
			}
			found++
			m := led.FindStringSubmatch(log)
			if m == nil || strings.Contains(m[1], leader) || !strings.Contains(m[2], leader) {
				t.Errorf("the new leader %s says %q", name, m)
			}
			if strings.Contains(log, "connected to a node") {
				t.Errorf("%s says twice that it is connected", name)
			}
		}
		if found == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d leaders say that they lost a replica\n%s", found, p.log("n1"))
		}
	}
}

// O2: when two of three nodes are gone, publishers at the third wait because there is no lease or no leader; its log
// says so, and does not blame the disk.
func TestStallIsExplained(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir())
	nodes := p.ready(3)
	if code, text := post(nodes["n1"].HTTP, "/topic/create?topic=orders&partitions=6", ""); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	if o := execute(t, "cluster", "health", "--wait", "20s", "--http", nodes["n1"].HTTP); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	for _, name := range []string{"n2", "n3"} {
		p.signal(nodes[name].PID, syscall.SIGKILL)
	}
	told := regexp.MustCompile(`level=WARN msg="nothing could be stored for a while[^"]*` +
		`(no lease|have fewer live|no live leader)[^"]*"`)
	for end := time.Now().Add(patience.Or(90 * time.Second)); !told.MatchString(p.log("n1")); {
		if time.Now().After(end) {
			t.Fatalf("the log does not say why nothing is stored:\n%s", p.log("n1"))
		}
		post(nodes["n1"].HTTP, "/pub?topic=orders", "x") // it waits, and is refused
	}
	if log := p.log("n1"); strings.Contains(log, "The device is slow") {
		t.Errorf("the disk is blamed:\n%s", log)
	}
}

// A node that stands still is dead for as long as nothing was heard of it, not since the store answered last.
func TestDeadSinceItWasHeardOf(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir())
	nodes := p.ready(3)
	n3 := func() (found admin.Node) {
		t.Helper()
		var st admin.Status
		_, text := ask(t, nodes["n1"].HTTP, "/cluster/status")
		must(t, json.Unmarshal([]byte(text), &st))
		for _, n := range st.Nodes {
			if n.Name == "n3" {
				found = n
			}
		}
		return found
	}
	if n := n3(); n.Presence != health.Live {
		t.Fatalf("before: %+v", n)
	}
	p.signal(nodes["n3"].PID, syscall.SIGSTOP)
	defer p.signal(nodes["n3"].PID, syscall.SIGCONT)
	stopped := time.Now()
	for end := stopped.Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		silent := time.Since(stopped)
		n := n3()
		said := time.Duration(n.PresenceMs) * time.Millisecond
		if n.Presence == health.Dead && said > 4*time.Second {
			if said < silent-3*time.Second || said > silent+2*time.Second { // its lease counts as heard of, too
				t.Errorf("it is silent for %v, and dead for %v", silent, said)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it is silent for %v: %+v", silent, n)
		}
	}
}
