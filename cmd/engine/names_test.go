package main

import (
	"encoding/json"
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

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/cluster/admin"
	"penstock/internal/cluster/etcd"
	"penstock/internal/cluster/trust"
)

// A node listens on the address of cluster-address, and others know it by a host name: the embedded etcd binds to
// neither a name nor to what cluster-peers says.
func TestPeersByHostName(t *testing.T) {
	name := ownName(t)
	port := freeBasePort(t) + devcluster.PortPeer
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
		execute(t, args...).check(t, cli.ExitUsage, says)
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a data directory was made", flags)
		}
	}
}

// Clients are told the ports that are mapped to those of the node, by every door that tells them, and also where nsqd's
// flags say so.
func TestMappedPortsAreAnnounced(t *testing.T) {
	t.Parallel()
	cluster := fmt.Sprintf("127.0.0.1:%d", freeBasePort(t)+devcluster.PortPeer)
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

// sharedEtcd runs an etcd that no node runs, at the second of the addresses that it returns from 5 on; those below are
// free.
func sharedEtcd(t *testing.T) (at func(int) string) {
	t.Helper()
	base := freeBasePort(t)
	at = func(i int) string { return fmt.Sprintf("127.0.0.1:%d", base+i) }
	shared, err := etcd.Start(etcd.MemberOptions{
		Name: "e", Voters: []etcd.Voter{{Name: "e", Peer: at(5), Client: at(6)}}, Dir: filepath.Join(t.TempDir(), "etcd"),
		UnsafeNoFsync: true, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() { _ = shared.Close() })
	must(t, shared.Ready(t.Context()))
	return at
}

// An etcd of its own takes no changes: the node says so before it needs one, with the commands that help, until it is
// cured.
func TestExternalStoreIsFull(t *testing.T) {
	t.Parallel()
	at := sharedEtcd(t)
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

// A node with certificates of another authority proves nothing to the store that it shares with the others, and no node
// lets it in: it gets no replicas, and what is made elsewhere works. Who asks for a replica there learns why.
func TestReplicasStayWhereNodesAreReached(t *testing.T) {
	t.Parallel()
	dir, at := t.TempDir(), sharedEtcd(t)
	start := func(name string, port int, authority string) *process {
		tls := filepath.Join(dir, authority)
		_, files, err := trust.Init(tls, []trust.Node{{Name: name, Hosts: []string{"127.0.0.1"}}}, time.Now())
		must(t, err)
		return startNode(t, filepath.Join(dir, name), "--node-id", name, "--cluster-address", at(port), "--etcd-endpoints",
			at(6), "--cluster-tls-ca", filepath.Join(tls, "ca.pem"), "--cluster-tls-cert", files[0].Cert, "--cluster-tls-key",
			files[0].Key)
	}
	n1 := start("n1", 2, "ours")
	start("n2", 3, "ours")
	make := func(query string) (code int, text string) { return post(n1.http, "/topic/create?topic="+query, "") }
	waitUntil(t, "a topic with two replicas", func() bool { code, _ := make("before&replicas=2"); return code == 200 })
	start("n3", 4, "another")
	replicas := func(topic string) []string {
		t.Helper()
		o := execute(t, "cluster", "topics", topic, "--json", "--http", n1.http)
		var all admin.Topics
		must(t, json.Unmarshal([]byte(o.stdout), &all))
		return all.Topics[0].Partitions[0].Replicas
	}
	waitUntil(t, "n1 knows n3", func() bool {
		return strings.Contains(execute(t, "cluster", "status", "--http", n1.http).stdout, "n3")
	})
	if code, text := make("three&replicas=3"); code == 200 || !strings.Contains(text, "no connection to [n3]") {
		t.Errorf("three replicas: %d %s", code, text)
	}
	for _, topic := range []string{"before", "after", "more"} {
		if code, text := make(topic); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
		if code, text := post(n1.http, "/pub?topic="+topic, "x"); code != 200 {
			t.Errorf("publishing to %s: %d %s", topic, code, text)
		}
		if got := replicas(topic); slices.Contains(got, "n3") || len(got) != 2 {
			t.Errorf("%s has replicas on %v", topic, got)
		}
	}
	if _, says := n1.get("/health"); strings.Contains(says, "all 3 nodes") {
		t.Errorf("health counts n3: %.2000s", says)
	}
}

// Two nodes find the same etcd, and have two secrets.
func TestOtherSecretDoesNotJoin(t *testing.T) {
	t.Parallel()
	dir, at := t.TempDir(), sharedEtcd(t)
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
	execute(t, args...).check(t, cli.ExitData, "does not have the cluster's secret: give it the --cluster-secret-file")
}
