package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	gonsq "github.com/nsqio/go-nsq"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/lookup"
	"penstock/replicate"
	"penstock/tests/support/nsqtest"
)

// lookupDo sends a request to the lookup service of a node.
func (n *testNode) lookupDo(t testing.TB, method, path string) (*http.Response, string) {
	t.Helper()
	return request(t, method, "http://"+n.LookupAddr().String()+path, "")
}

func TestLookupListener(t *testing.T) {
	off := startNode(t, node.Options{}, Options{LookupAddress: Off})
	if off.LookupAddr() != nil {
		t.Errorf("lookups are off and answered at %v", off.LookupAddr())
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	o := Options{TCPAddress: free.Addr().String(), HTTPAddress: "127.0.0.1:0", LookupAddress: taken.Addr().String()}
	if _, err := Listen(off.e, o); err == nil || !strings.Contains(err.Error(), "lookups on "+taken.Addr().String()) {
		t.Errorf("two at one address: %v", err)
	}
	// Listeners that were opened before the failure are closed again, as are those of a server that never served.
	o.LookupAddress = "127.0.0.1:0"
	for range 2 {
		s, err := Listen(off.e, o)
		if err != nil {
			t.Fatal(err)
		}
		o.HTTPAddress, o.LookupAddress = s.HTTPAddr().String(), s.LookupAddr().String()
		ctx, cancel := context.WithTimeout(t.Context(), nsqtest.Patience)
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

// A lookup after the shutdown is refused, and one that is being served is answered.
func TestLookupShutdown(t *testing.T) {
	n := startNode(t, node.Options{}, Options{})
	n.lookupDo(t, "GET", "/ping")
	ctx, cancel := context.WithTimeout(t.Context(), nsqtest.Patience)
	defer cancel()
	if err := n.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if nc, err := net.Dial("tcp", n.LookupAddr().String()); err == nil {
		nc.Close()
		t.Error("the lookup address is still open")
	}
}

// lookupConsumer starts go-nsq's consumer, which finds its nodes through the lookup services at these addresses. The
// consumer passes on the body of each message.
func lookupConsumer(t *testing.T, topic string, bodies chan<- string, addrs ...string) *gonsq.Consumer {
	t.Helper()
	cfg := gonsq.NewConfig()
	cfg.LookupdPollInterval = 20 * time.Millisecond
	cfg.LookupdPollJitter = 0
	// More than the server's MaxRdyCount. Otherwise the first node would get all of it, and the next would wait 5 s for
	// its share.
	cfg.MaxInFlight = 10_000
	consumer, err := gonsq.NewConsumer(topic, "billing", cfg)
	if err != nil {
		t.Fatal(err)
	}
	consumer.SetLogger(log.New(io.Discard, "", 0), gonsq.LogLevelError)
	consumer.AddHandler(gonsq.HandlerFunc(func(m *gonsq.Message) error {
		select {
		case bodies <- string(m.Body):
			return nil
		case <-t.Context().Done():
			return errors.New("the test is over")
		}
	}))
	if err := consumer.ConnectToNSQLookupds(addrs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		consumer.Stop()
		<-consumer.StopChan
	})
	return consumer
}

// collect waits until all of these bodies have arrived.
func collect(t *testing.T, bodies <-chan string, want ...string) {
	t.Helper()
	missing := map[string]bool{}
	for _, w := range want {
		missing[w] = true
	}
	for end := time.After(nsqtest.Patience); len(missing) != 0; {
		select {
		case b := <-bodies:
			delete(missing, b)
		case <-end:
			t.Fatalf("did not come: %v", missing)
		}
	}
}

// The stock client finds the node of a topic that exists, and of one that is created later.
func TestGoNSQFindsTheNode(t *testing.T) {
	n := startNode(t, node.Options{}, Options{BroadcastAddress: "127.0.0.1"})
	bodies := make(chan string)
	n.post(t, "/mpub?topic=orders", "a\nb\nc")
	lookupConsumer(t, "orders", bodies, n.LookupAddr().String())
	collect(t, bodies, "a", "b", "c")
	lookupConsumer(t, "later", bodies, n.LookupAddr().String())
	n.post(t, "/mpub?topic=later", "d\ne")
	collect(t, bodies, "d", "e")
	if _, body := n.lookupDo(t, "GET", "/channels?topic=later"); body != `{"channels":["billing"]}` {
		t.Errorf("%s", body)
	}
}

// agreement is a lookup.Directory with the snapshot that a test has made last; nothing else is asked.
type agreement struct {
	lookup.Directory
	s atomic.Pointer[meta.Snapshot]
}

func (a *agreement) Snapshot() *meta.Snapshot { return a.s.Load() }

func (a *agreement) ChannelNames(context.Context, string) ([]string, error) { return nil, nil }

// lead makes a snapshot in which nodes lead the partitions of the topic.
func (a *agreement) lead(nodes []*meta.Node, topic string, leaders ...replicate.NodeID) {
	t := &meta.Topic{ID: uuid.New(), Name: topic, Partitions: len(leaders)}
	s := &meta.Snapshot{
		Nodes: map[replicate.NodeID]*meta.Node{}, Topics: map[uuid.UUID]*meta.Topic{t.ID: t},
		Names: map[string]*meta.Topic{topic: t},
	}
	for _, n := range nodes {
		s.Nodes[n.ID] = n
	}
	for i, id := range leaders {
		p := &meta.Partition{ID: meta.PartitionID{Topic: t.ID, Partition: uint32(i)}}
		p.State.Leader, p.State.Boot = id, s.Nodes[id].Boot
		s.Partitions = s.Partitions.With(p.ID, p)
	}
	a.s.Store(s)
}

// B100: the stock client connects to the nodes that lead, whichever node it asks, and follows when the leaders change.
func TestGoNSQFollowsLeaders(t *testing.T) {
	a := new(agreement)
	a.s.Store(new(meta.Snapshot))
	var nodes []*testNode
	var rows []*meta.Node
	for id := replicate.NodeID(1); id <= 3; id++ {
		n := startNode(t, node.Options{}, Options{Directory: a, BroadcastAddress: "127.0.0.1"})
		nodes = append(nodes, n)
		rows = append(rows, &meta.Node{
			ID: id, Boot: uuid.New(), Live: true, Version: "0.1.0",
			Host: "127.0.0.1", NSQ: n.TCPAddr().String(), HTTP: n.HTTPAddr().String(),
		})
	}
	a.lead(rows, "orders", 1, 2)
	for i, n := range nodes {
		n.post(t, "/pub?topic=orders", fmt.Sprint("node ", i+1))
	}
	bodies := make(chan string)
	consumer := lookupConsumer(t, "orders", bodies, nodes[2].LookupAddr().String())
	collect(t, bodies, "node 1", "node 2")
	consumers := func(n *testNode) int {
		s := n.topicNow(t, "orders")
		if len(s.Channels) == 0 {
			return 0
		}
		return len(s.Channels[0].Consumers)
	}
	if c := consumers(nodes[2]); c != 0 {
		t.Errorf("%d consumers at the node that leads nothing", c)
	}
	// Leadership moves: lookups report it first, and then the node that lost it closes its consumers' connections. Here
	// the test closes them.
	a.lead(rows, "orders", 3, 2)
	if err := consumer.DisconnectFromNSQD(nodes[0].TCPAddr().String()); err != nil {
		t.Fatal(err)
	}
	collect(t, bodies, "node 3")
	nsqtest.Eventually(t, "the consumer to leave node 1", func() bool { return consumers(nodes[0]) == 0 })
	if consumers(nodes[1]) != 1 || consumers(nodes[2]) != 1 {
		t.Errorf("consumers per node: %d %d %d", consumers(nodes[0]), consumers(nodes[1]), consumers(nodes[2]))
	}
}

// Where clients need tokens, the registration port is closed unless its address is set: whoever registers there is told
// to consumers, who show their tokens.
func TestRegistrationsAreOffWithTokens(t *testing.T) {
	for name, x := range map[string]struct {
		o    Options
		want string
	}{
		"no tokens":           {Options{}, "127.0.0.1:4160"},
		"a file of tokens":    {Options{Auth: auth.Options{File: "tokens"}}, Off},
		"auth servers":        {Options{Auth: auth.Options{HTTPAddresses: []string{"127.0.0.1:1"}}}, Off},
		"an address is set":   {Options{Auth: auth.Options{File: "tokens"}, LookupTCPAddress: "127.0.0.1:1"}, "127.0.0.1:1"},
		"another lookup port": {Options{LookupAddress: "127.0.0.1:1"}, Off},
	} {
		x.o.setLookupDefaults()
		if x.o.LookupTCPAddress != x.want {
			t.Errorf("%s: %s, want %s", name, x.o.LookupTCPAddress, x.want)
		}
	}
}
