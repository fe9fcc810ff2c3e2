package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"penstock/cluster/etcd"
)

// A node listens on the address of cluster-address, and others know it by a host name: the embedded etcd binds to
// neither a name nor to what cluster-peers says.
func TestPeersByHostName(t *testing.T) {
	name := ownName(t)
	port := freeBasePort(t) + devPeer
	n := startNode(t, filepath.Join(t.TempDir(), "data"), "--node-id", "n_1", "--broadcast-address", "127.0.0.1",
		"--cluster-address", fmt.Sprintf("127.0.0.1:%d", port), "--cluster-peers", fmt.Sprintf("n_1=%s:%d", name, port),
		"--replicas", "1")
	if code := n.end(syscall.SIGTERM); code != 0 {
		t.Errorf("it ends with %d", code)
	}
}

// ownName returns a name of this machine that resolves to 127.0.0.1, and is not localhost, for which etcd has a rule.
func ownName(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if all, err := net.LookupHost(name); err != nil || name == "localhost" || !slices.Contains(all, "127.0.0.1") {
		t.Skipf("this machine's name, %s, is no name of 127.0.0.1: %v, %v", name, all, err)
	}
	return name
}

// The port that is listened on is beside cluster-address's own: cluster-peers may have one that is mapped to it.
func TestEtcdListens(t *testing.T) {
	v := etcd.Voter{Name: "a", Peer: "n1.example:14255", Client: "n1.example:14256"}
	for _, tc := range []struct{ address, peer, client, wantPeer, wantClient string }{
		{"10.0.0.1:4254", "", "", "10.0.0.1:4255", "10.0.0.1:4256"},
		{":4254", "", "", ":4255", ":4256"},
		{"[::]:4254", "", "10.0.0.9:9", "[::]:4255", "10.0.0.9:9"},
		{"127.0.0.1:0", "", "", v.Peer, v.Client},
		{"127.0.0.1:0", "h:1", "h:2", "h:1", "h:2"},
	} {
		c := clusterSettings{address: tc.address, etcdPeer: tc.peer, etcdClient: tc.client}
		if peer, client := c.etcdListens(v); peer != tc.wantPeer || client != tc.wantClient {
			t.Errorf("%+v: %s and %s", tc, peer, client)
		}
	}
}

// What no retry heals ends the start at once, before anything is made.
func TestNamesAreJudgedAtTheStart(t *testing.T) {
	for flags, says := range map[string]string{
		"--broadcast-address [::1]":                          "has brackets",
		"--broadcast-address fe80::1%eth0":                   `has the zone "eth0"`,
		"--broadcast-address 0.0.0.0":                        "nobody can dial it",
		"--broadcast-address broker:4150":                    "without a port",
		"--http-allowed-hosts a,b:1":                         "without a port",
		"--cluster-peers a=b=c:1":                            "neither an IP address nor a host name",
		"--cluster-peers a/b=c:1":                            "cannot be the name of a node",
		"--cluster-peers a=[fe80::1%eth0]:4254":              "has the zone",
		"--cluster-peers a=0.0.0.0:4254":                     "nobody can dial it",
		"--etcd-endpoints 10.0.0.1":                          "is not HOST:PORT of an etcd",
		"--etcd-endpoints http://10.0.0.1:2379,10.0.0.300:1": "is no IP address",
	} {
		dir := filepath.Join(t.TempDir(), "data")
		args := append([]string{
			"serve", "--data-path", dir, "--node-id", "a", "--cluster-address", "127.0.0.1:0",
		}, strings.Fields(flags)...)
		execute(t, args...).check(t, exitUsage, says)
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a data directory was made", flags)
		}
	}
}

// Clients are told the ports that are mapped to those of the node, by every door that tells them, and also where nsqd's
// flags say so.
func TestMappedPortsAreAnnounced(t *testing.T) {
	t.Parallel()
	cluster := fmt.Sprintf("127.0.0.1:%d", freeBasePort(t)+devPeer)
	p := startNode(t, t.TempDir(), "--node-id", "a", "--cluster-address", cluster, "--cluster-peers", "a="+cluster,
		"--replicas", "1", "--native-address", "127.0.0.1:0", "--broadcast-address", "broker.example",
		"--broadcast-tcp-port", "32150", "--broadcast-http-port", "32151", "--broadcast-native-port", "32250")
	says := func(p *process, path string, want ...string) {
		t.Helper()
		_, text := p.get(path)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s lacks %s:\n%s", path, w, text)
			}
		}
	}
	says(p, "/info", `"http_port":32151`, `"tcp_port":32150`, `"broadcast_address":"broker.example"`)
	says(p, "/cluster/status", `"broker.example:32150"`, `"broker.example:32151"`, `"broker.example:32250"`)

	n := launch(t, t.TempDir(), binary(t), []string{
		"nsqd", "-data-path", t.TempDir(), "-tcp-address", "127.0.0.1:0", "-http-address", "127.0.0.1:0",
		"-broadcast-address", "broker.example", "-broadcast-tcp-port", "32150", "-broadcast-http-port", "32151",
	})
	n.ready()
	says(n, "/info", `"http_port":32151`, `"tcp_port":32150`)
}

func TestReachable(t *testing.T) {
	for _, tc := range []struct {
		address string
		told    int
		want    string
	}{
		{"off", 0, ""},
		{"off", 9, ""},
		{"10.0.0.1:4150", 0, "10.0.0.1:4150"},
		{"10.0.0.1:4150", 9, "b:9"},
		{":4150", 0, "b:4150"},
		{"0.0.0.0:4150", 0, "b:4150"},
		{"[::]:4150", 0, "b:4150"},
		{"[fe80::1%eth0]:4150", 0, "b:4150"},
		{"[2001:db8::1]:4150", 0, "[2001:db8::1]:4150"},
	} {
		if got := reachable(tc.address, "b", tc.told); got != tc.want {
			t.Errorf("%s with port %d is announced as %q, want %q", tc.address, tc.told, got, tc.want)
		}
	}
}

// watchedEvery is how often a node looks whether it was woken late.
const watchedEvery = 250 * time.Millisecond

// A process that was stopped for a while says that it was not scheduled, and not that its disk is slow.
func TestNotScheduled(t *testing.T) {
	t.Parallel()
	p := startNode(t, t.TempDir())
	for tries := 0; p.metric("unscheduled_seconds_total") < 1; tries++ { // the first stop may come before it watches
		if tries == 5 {
			t.Fatal("it does not notice that it was stopped")
		}
		p.signalSelf(syscall.SIGSTOP)
		time.Sleep(1500 * time.Millisecond) // this is what it does not notice
		p.signalSelf(syscall.SIGCONT)
		time.Sleep(2 * watchedEvery)
	}
	p.waitLog(t, "this process was not scheduled for ")
}

func (p *process) signalSelf(s syscall.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(s))
}

// startStore runs an etcd that is no node's own, with the sixth of the ports from base.
func startStore(t *testing.T, base int) {
	t.Helper()
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+i) }
	shared, err := etcd.Start(etcd.MemberOptions{
		Name: "e", Voters: []etcd.Voter{{Name: "e", Peer: at(5), Client: at(6)}}, Dir: t.TempDir(),
		UnsafeNoFsync: true, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() { _ = shared.Close() })
	must(t, shared.Ready(t.Context()))
}

// An etcd of its own takes no changes: the node says so before it needs one, with the commands that help, until it is
// cured.
func TestExternalStoreIsFull(t *testing.T) {
	t.Parallel()
	base := freeBasePort(t)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+i) }
	startStore(t, base)
	p := startNode(t, t.TempDir(), "--node-id", "n1", "--cluster-address", at(4), "--etcd-endpoints", at(6), "--replicas",
		"1", "--cluster-insecure")
	etcd := clientv3.Config{Endpoints: []string{at(6)}}
	for _, x := range []struct {
		action etcdserverpb.AlarmRequest_AlarmAction
		full   bool
	}{{etcdserverpb.AlarmRequest_ACTIVATE, true}, {etcdserverpb.AlarmRequest_DEACTIVATE, false}} {
		alarmAt(t, etcd, x.action)
		waitUntil(t, fmt.Sprint("the store is full: ", x.full), func() bool {
			_, text := p.get("/health")
			says := strings.Contains(text, "takes no changes") && strings.Contains(text, "etcdctl compact REVISION") &&
				strings.Contains(text, "etcdctl alarm disarm` at http://"+at(6))
			return says == x.full && p.metric("store_full") == map[bool]float64{true: 1}[x.full]
		})
	}
}

// Two nodes find the same etcd, and have two secrets.
func TestOtherSecretDoesNotJoin(t *testing.T) {
	t.Parallel()
	dir, base := t.TempDir(), freeBasePort(t)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+i) }
	startStore(t, base)
	node := func(name, secret string, port int) []string {
		file := filepath.Join(dir, name+".secret")
		must(t, os.WriteFile(file, []byte(strings.Repeat(secret, 40)), 0o600))
		return []string{
			"--node-id", name, "--cluster-address", at(port), "--etcd-endpoints", at(6), "--cluster-secret-file", file,
		}
	}
	startNode(t, filepath.Join(dir, "n1"), node("n1", "a", 4)...)
	args := append([]string{
		"serve", "--data-path", filepath.Join(dir, "n2"), "--http-address", "off", "--nsq-address",
		"127.0.0.1:0", "--lookup-address", "off",
	}, node("n2", "b", 3)...)
	execute(t, args...).check(t, exitData, "does not have the cluster's secret: give it the --cluster-secret-file")
}
