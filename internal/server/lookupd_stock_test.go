package server

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gonsq "github.com/nsqio/go-nsq"

	"penstock/internal/cluster"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/server/listen"
	"penstock/replicate"
	"penstock/tests/support/nsqtest"
	"penstock/tests/support/porttest"
)

// stockNSQ builds NSQ's own programs, once per test run.
var stockNSQ = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "stocknsq"); err != nil {
		return "", err
	}
	cmd := exec.Command(
		"go", "build", "-o", dir, "github.com/nsqio/nsq/apps/nsqd", "github.com/nsqio/nsq/apps/nsqlookupd",
		"github.com/nsqio/nsq/apps/nsqadmin",
	)
	cmd.Dir = filepath.Join("testdata", "stocknsq")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build of NSQ 1.3.0: %w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := stockNSQ(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// stock is a running nsqd, nsqlookupd or nsqadmin.
type stock struct {
	t         testing.TB
	tcp, http string
	cmd       *exec.Cmd
}

// startStock starts a program of NSQ on these addresses and waits until it answers.
func startStock(t testing.TB, name, tcp, web string, args ...string) *stock {
	t.Helper()
	p := startProgram(t, name, web, append([]string{"-tcp-address=" + tcp, "-broadcast-address=127.0.0.1"}, args...)...)
	p.tcp = tcp
	return p
}

// startProgram is startStock for a program that only serves HTTP.
func startProgram(t testing.TB, name, web string, args ...string) *stock {
	t.Helper()
	dir, err := stockNSQ()
	if err != nil {
		t.Fatal(err)
	}
	p := &stock{t: t, http: web}
	p.cmd = exec.Command(
		filepath.Join(dir, name),
		append([]string{"-http-address=" + web, "-log-level=error"}, args...)...)
	p.cmd.Dir = t.TempDir()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	nsqtest.Eventually(t, name+" to answer", func() bool {
		reply, err := http.Get("http://" + web + "/ping")
		if err != nil {
			return false
		}
		return reply.Body.Close() == nil && reply.StatusCode == 200
	})
	return p
}

func (p *stock) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *stock) do(method, path, body string) string {
	p.t.Helper()
	_, got := request(p.t, method, "http://"+p.http+path, body)
	return got
}

func startNSQLookupd(t testing.TB, args ...string) *stock {
	tcp, web := porttest.Address(t), porttest.Address(t)
	return startStock(t, "nsqlookupd", tcp, web, args...)
}

// mentions returns how many of the nodes a lookup names, identified by their NSQ ports.
func (p *stock) mentions(topic string, nodes ...*testNode) (count int) {
	body := p.do("GET", "/lookup?topic="+topic, "")
	for _, n := range nodes {
		count += strings.Count(body, fmt.Sprintf(`"tcp_port":%d,`, listen.Port(n.TCPAddr())))
	}
	return count
}

// consumeByLookup starts a stock consumer that knows only lookup services.
func consumeByLookup(t testing.TB, topic, lookups string) <-chan string {
	t.Helper()
	cfg := gonsq.NewConfig()
	cfg.LookupdPollInterval, cfg.LookupdPollJitter, cfg.MaxInFlight = 50*time.Millisecond, 0, 10
	consumer, err := gonsq.NewConsumer(topic, "c", cfg)
	if err != nil {
		t.Fatal(err)
	}
	consumer.SetLogger(log.New(io.Discard, "", 0), gonsq.LogLevelError)
	bodies := make(chan string, 100)
	consumer.AddHandler(gonsq.HandlerFunc(func(m *gonsq.Message) error {
		bodies <- string(m.Body)
		return nil
	}))
	if err := consumer.ConnectToNSQLookupd(lookups); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		consumer.Stop()
		<-consumer.StopChan
	})
	return bodies
}

// expectBody waits for a message. A message that arrived before may arrive again.
func expectBody(t testing.TB, bodies <-chan string, want string) {
	t.Helper()
	late := time.After(nsqtest.Patience)
	for {
		select {
		case got := <-bodies:
			if got == want {
				return
			}
		case <-late:
			t.Fatalf("the consumer never got %q", want)
		}
	}
}

// startLookupd starts a node that accepts registrations.
func startLookupd(t testing.TB, o Options) *testNode {
	o.LookupTCPAddress = "127.0.0.1:0"
	o.Version = cmp.Or(o.Version, "1.3.0+engine.test")
	return startNode(t, node.Options{}, o)
}

// stockNSQDs returns how many stock nsqds a lookup at this node names, identified by their version.
func (n *testNode) stockNSQDs(t testing.TB, path string) int {
	t.Helper()
	_, body := n.lookupDo(t, "GET", path)
	return strings.Count(body, `"version":"1.3.0"`)
}

// B100: a real nsqd 1.3.0 registers here, and a stock consumer finds it through our lookups. The nsqd also asks us for
// the channels of its new topics. After the nsqd is killed, no lookup names it.
func TestStockNSQDRegisters(t *testing.T) {
	n := startLookupd(t, Options{BroadcastAddress: "127.0.0.1"})
	tcp, web := porttest.Address(t), porttest.Address(t)
	d := startStock(t, "nsqd", tcp, web, "-lookupd-tcp-address="+n.LookupTCPAddr().String())
	nsqtest.Eventually(t, "nsqd to identify itself", func() bool { return n.stockNSQDs(t, "/nodes") == 1 })
	d.do("POST", "/topic/create?topic=theirs", "")
	d.do("POST", "/channel/create?topic=theirs&channel=c", "")
	nsqtest.Eventually(t, "its channel", func() bool {
		_, body := n.lookupDo(t, "GET", "/lookup?topic=theirs")
		return strings.Contains(body, `"channels":["c"]`) &&
			strings.Contains(
				body, fmt.Sprintf(`"broadcast_address":"127.0.0.1","tcp_port":%s,`, tcp[strings.LastIndex(tcp, ":")+1:]),
			)
	})
	bodies := consumeByLookup(t, "theirs", n.LookupAddr().String())
	d.do("POST", "/pub?topic=theirs", "from nsqd")
	expectBody(t, bodies, "from nsqd")
	n.post(t, "/pub?topic=theirs", "from here") // the same topic at both: the consumer connects to both
	expectBody(t, bodies, "from here")

	n.post(t, "/topic/create?topic=ours", "")
	n.post(t, "/channel/create?topic=ours&channel=early", "")
	d.do("POST", "/pub?topic=ours", "x")
	if stats := d.do("GET", "/stats?format=json&topic=ours", ""); !strings.Contains(stats, `"channel_name":"early"`) {
		t.Errorf("nsqd did not find the channel here: %s", stats)
	}

	d.do("POST", "/topic/delete?topic=theirs", "")
	nsqtest.Eventually(t, "its topic to be unregistered", func() bool {
		return n.stockNSQDs(t, "/lookup?topic=theirs") == 0
	})
	d.kill()
	nsqtest.Eventually(t, "nsqd to be gone", func() bool {
		_, body := n.lookupDo(t, "GET", "/lookup?topic=ours")
		return strings.Count(body, `"tcp_port"`) == 1
	})
}

// A node registers its topics and channels at a real nsqlookupd 1.3.0, including those that are created and deleted
// later. A stock consumer finds the node there.
func TestRegistersAtStockNSQLookupd(t *testing.T) {
	l := startNSQLookupd(t, "-inactive-producer-timeout=2s")
	n := startNode(t, node.Options{}, Options{
		BroadcastAddress: "127.0.0.1", LookupdTCPAddresses: []string{l.tcp}, lookupdPing: 200 * time.Millisecond,
	})
	began := time.Now()
	bodies := consumeByLookup(t, "orders", l.http)
	n.post(t, "/pub?topic=orders", "found")
	expectBody(t, bodies, "found")
	nsqtest.Eventually(t, "the consumer's channel", func() bool {
		return strings.Contains(l.do("GET", "/channels?topic=orders", ""), `["c"]`)
	})

	// nsqlookupd knows channels of a topic before the topic is created here.
	l.do("POST", "/channel/create?topic=fresh&channel=one", "")
	l.do("POST", "/channel/create?topic=fresh&channel=two", "")
	l.do("POST", "/channel/create?topic=fresh&channel=gone%23ephemeral", "")
	n.post(t, "/pub?topic=fresh", "x")
	nsqtest.Eventually(t, "the message in both channels", func() bool {
		s := n.topicNow(t, "fresh")
		return len(s.Channels) == 2 && s.Channels[0].Depth == 1 && s.Channels[1].Depth == 1
	})

	nsqtest.Eventually(t, "the new topic", func() bool { return l.mentions("fresh", n) == 1 })
	n.post(t, "/channel/delete?topic=fresh&channel=two", "")
	debugs := func(key string) bool { return strings.Contains(l.do("GET", "/debug", ""), key+`":[{`) }
	nsqtest.Eventually(t, "the channel to be unregistered", func() bool {
		return !debugs("channel:fresh:two") && debugs("channel:fresh:one")
	})
	n.post(t, "/topic/delete?topic=fresh", "")
	nsqtest.Eventually(t, "the topic to be unregistered", func() bool { return l.mentions("fresh", n) == 0 })
	// nsqadmin deletes at nsqlookupd first and then here. A topic that is created again right away must be registered
	// again.
	l.do("POST", "/topic/delete?topic=orders", "")
	n.post(t, "/topic/delete?topic=orders", "")
	n.post(t, "/topic/create?topic=orders", "")
	nsqtest.Eventually(t, "the topic that was made again", func() bool { return l.mentions("orders", n) == 1 })

	if rest := 2500*time.Millisecond - time.Since(began); rest > 0 {
		time.Sleep(rest) // nsqlookupd hides a node that is silent for 2 s
	}
	nsqtest.Eventually(t, "nsqlookupd hears PINGs", func() bool { return l.mentions("orders", n) == 1 })
	if _, list := n.do(t, "GET", "/config/nsqlookupd_tcp_addresses", ""); list != `["`+l.tcp+`"]` {
		t.Errorf("the list is %s", list)
	}
}

// A registration is renewed after a restart of nsqlookupd, follows /config/nsqlookupd_tcp_addresses, and ends with the
// node.
func TestRegistrationFollows(t *testing.T) {
	first, second := startNSQLookupd(t), startNSQLookupd(t)
	n := startNode(t, node.Options{}, Options{BroadcastAddress: "127.0.0.1", LookupdTCPAddresses: []string{first.tcp}})
	n.post(t, "/topic/create?topic=t", "")
	nsqtest.Eventually(t, "the topic", func() bool { return first.mentions("t", n) == 1 })
	first.kill()
	first = startStock(t, "nsqlookupd", first.tcp, first.http)
	nsqtest.Eventually(t, "the topic after the restart", func() bool { return first.mentions("t", n) == 1 })
	put := func(list string) {
		t.Helper()
		if code, body := n.do(t, "PUT", "/config/nsqlookupd_tcp_addresses", list); code != 200 || body != list {
			t.Fatalf("%d %s", code, body)
		}
	}
	put(`["` + first.tcp + `","` + second.tcp + `"]`)
	nsqtest.Eventually(t, "the topic at the second", func() bool { return second.mentions("t", n) == 1 })
	put(`["` + second.tcp + `"]`)
	nsqtest.Eventually(t, "the first to forget it", func() bool { return first.mentions("t", n) == 0 })
	if second.mentions("t", n) != 1 {
		t.Error("the second forgot it, too")
	}
	put(`[]`)
	nsqtest.Eventually(t, "the second to forget it", func() bool { return second.mentions("t", n) == 0 })
	put(`["` + second.tcp + `"]`)
	nsqtest.Eventually(t, "the second to hear of it again", func() bool { return second.mentions("t", n) == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	nsqtest.Eventually(t, "the node that stopped to be forgotten", func() bool { return second.mentions("t", n) == 0 })
}

// An nsqlookupd that does not run, or is another program, does not delay publishing for long.
func TestRegistersNowhere(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name   string
		answer func(net.Conn)
	}{
		{"closes", func(nc net.Conn) { _ = nc.Close() }},
		{"is silent", func(nc net.Conn) { _, _ = io.Copy(io.Discard, nc) }},
		{"speaks something else", func(nc net.Conn) { _, _ = io.WriteString(nc, "HTTP/1.1 400 Bad Request\r\n\r\n") }},
		{"refuses", func(nc net.Conn) { _, _ = io.WriteString(nc, nsqtest.Sized("E_BAD_BODY IDENTIFY missing fields")) }},
		{"names an address that nobody serves", func(nc net.Conn) {
			_, _ = io.WriteString(nc, nsqtest.Sized(`{"broadcast_address":"127.0.0.1","http_port":1,"version":"x"}`))
			_, _ = io.Copy(io.Discard, nc)
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			go func() {
				for {
					nc, err := ln.Accept()
					if err != nil {
						return
					}
					go func() {
						defer nc.Close()
						x.answer(nc)
					}()
				}
			}()
			n := startNode(t, node.Options{}, Options{LookupdTCPAddresses: []string{ln.Addr().String()}})
			n.post(t, "/pub?topic=t", "x")
			if s := n.topicNow(t, "t"); s.MessageCount != 1 {
				t.Errorf("%d messages", s.MessageCount)
			}
		})
	}
}

// startCluster starts servers over engines that form one cluster, with one metadata store.
func startCluster(t *testing.T, count int, o Options) []*testNode {
	t.Helper()
	return startClusterOf(t, count, node.Options{}, o)
}

// startClusterOf is startCluster for engines with these options.
func startClusterOf(t *testing.T, count int, eo node.Options, o Options) []*testNode {
	t.Helper()
	kv := memory.New(memory.Options{})
	t.Cleanup(kv.Close)
	nodes := make([]*testNode, count)
	var starting sync.WaitGroup
	for i := range count {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		nsqAddress, web := porttest.Address(t), porttest.Address(t)
		store := cluster.New(kv.Store(), cluster.Options{
			LeaseTTL: time.Minute, ControllerTick: 50 * time.Millisecond, DefaultReplicas: count,
		})
		eo := eo
		eo.NodeID, eo.Cluster = fmt.Sprint("n", i+1), &node.ClusterOptions{
			Store: store, Listener: ln, Node: meta.Node{Host: "127.0.0.1", Peer: ln.Addr().String(), NSQ: nsqAddress, HTTP: web},
			Replication:     replicate.Config{HeartbeatNs: 20e6, RetryNs: 100e6, LagMaxNs: 30e9, JoinNs: 200e6},
			PreferredLeader: cluster.PreferredLeader, LeaveTimeout: nsqtest.Patience, JoinTimeout: nsqtest.Patience,
		}
		own := o
		if o.NativeAddress != "" {
			own.NativeAddress = porttest.Address(t)
			eo.Cluster.Node.Native = own.NativeAddress
		}
		own.TCPAddress, own.HTTPAddress = nsqAddress, web // the addresses that the other nodes are told
		starting.Go(func() { nodes[i] = startNode(t, eo, own) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, n := range nodes {
		nsqtest.Eventually(t, "all nodes to be known", func() bool { return len(n.e.Snapshot().Nodes) == count })
	}
	return nodes
}

// leadsSome reports whether the node leads a partition of the topic.
func (n *testNode) leadsSome(topic string) bool {
	t, ok := n.e.Catalog().LookupTopic(topic)
	for partition := 0; ok && partition < t.Partitions(); partition++ {
		if n.leads(topic, partition) {
			return true
		}
	}
	return false
}

// B100: each node of a cluster registers the topics that it leads. When leadership moves, the old leader unregisters
// and the new one registers. A new topic gets the channels that nsqlookupd knows, on every partition.
func TestClusterRegisters(t *testing.T) {
	l := startNSQLookupd(t)
	l.do("POST", "/channel/create?topic=wide&channel=early", "")
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1", LookupdTCPAddresses: []string{l.tcp}})
	nodes[0].post(t, "/topic/create?topic=one", "")
	nodes[1].post(t, "/topic/create?topic=wide&partitions=3", "")
	agree := func(topic string) bool {
		for _, n := range nodes {
			if (l.mentions(topic, n) == 1) != n.leadsSome(topic) {
				return false
			}
		}
		return true
	}
	nsqtest.Eventually(t, "lookups to name the leaders", func() bool {
		return agree("one") && agree("wide") && l.mentions("one", nodes...) == 1 && l.mentions("wide", nodes...) == 3
	})
	bodies := consumeByLookup(t, "one", l.http)
	nodes[2].post(t, "/pub?topic=one", "first")
	expectBody(t, bodies, "first")
	for _, n := range nodes {
		if s := n.topicNow(t, "wide"); len(s.Channels) != 1 || s.Channels[0].Name != "early" {
			t.Errorf("channels of the new topic: %+v", s.Channels)
		}
	}

	var old *testNode
	for _, n := range nodes {
		if n.leadsSome("one") {
			old = n
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), nsqtest.Patience)
	defer cancel()
	if err := old.e.Leave(ctx); err != nil { // hands over its leaderships
		t.Fatal(err)
	}
	nsqtest.Eventually(t, "lookups to name another leader", func() bool {
		return l.mentions("one", old) == 0 && l.mentions("wide", old) == 0 && l.mentions("one", nodes...) == 1 && agree("one")
	})
	for _, n := range nodes {
		if n != old {
			n.post(t, "/pub?topic=one", "second")
			break
		}
	}
	expectBody(t, bodies, "second")
}

// A stock nsqd beside a cluster: each node's answers contain the leaders of the cluster and the nsqds that registered
// at that node.
func TestClusterTakesRegistrations(t *testing.T) {
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1", LookupTCPAddress: "127.0.0.1:0"})
	tcp, web := porttest.Address(t), porttest.Address(t)
	var args []string
	for _, n := range nodes {
		args = append(args, "-lookupd-tcp-address="+n.LookupTCPAddr().String())
	}
	d := startStock(t, "nsqd", tcp, web, args...)
	for _, n := range nodes {
		nsqtest.Eventually(t, "nsqd to identify itself", func() bool { return n.stockNSQDs(t, "/nodes") == 1 })
	}
	d.do("POST", "/topic/create?topic=t", "")
	d.do("POST", "/channel/create?topic=t&channel=c", "")
	for _, n := range nodes {
		nsqtest.Eventually(t, "its channel", func() bool {
			_, body := n.lookupDo(t, "GET", "/channels?topic=t")
			return body == `{"channels":["c"]}`
		})
	}
	nodes[0].post(t, "/topic/create?topic=t&partitions=3", "")
	for _, n := range nodes {
		nsqtest.Eventually(t, "both in a lookup", func() bool {
			_, body := n.lookupDo(t, "GET", "/lookup?topic=t")
			return strings.Count(body, `"tcp_port"`) == 4 && strings.Contains(body, `"channels":["c"]`) // three leaders and nsqd
		})
	}
	bodies := consumeByLookup(t, "t", nodes[1].LookupAddr().String())
	d.do("POST", "/pub?topic=t", "from nsqd")
	expectBody(t, bodies, "from nsqd")
	nodes[2].post(t, "/pub?topic=t", "from the cluster")
	expectBody(t, bodies, "from the cluster")
	nodes[0].lookupDo(t, "POST", "/topic/tombstone?topic=t&node="+web)
	if _, body := nodes[0].lookupDo(t, "GET", "/lookup?topic=t"); strings.Count(body, `"tcp_port"`) != 3 {
		t.Errorf("a tombstone does not hide nsqd: %s", body)
	}
}
