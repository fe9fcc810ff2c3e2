package nsq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/engine"
	"penstock/engine/meta"
	"penstock/replicate"
)

// agreement is a Directory over a snapshot that the test writes by hand.
type agreement struct {
	mu       sync.Mutex
	snapshot *meta.Snapshot
	channels map[string][]string
	deaf     error // of ChannelNames: no leader answers
	refusal  error // of every change
	asked    []string
}

func newAgreement(nodes ...*meta.Node) *agreement {
	a := &agreement{channels: map[string][]string{}, snapshot: &meta.Snapshot{
		Nodes: map[replicate.NodeID]*meta.Node{}, Topics: map[uuid.UUID]*meta.Topic{}, Names: map[string]*meta.Topic{},
		Partitions: map[meta.PartitionID]*meta.Partition{}, Tombstones: map[meta.TombstoneKey]time.Time{},
	}}
	for _, n := range nodes {
		a.snapshot.Nodes[n.ID] = n
	}
	return a
}

// change publishes another snapshot.
func (a *agreement) change(f func(s *meta.Snapshot)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.snapshot
	s := &meta.Snapshot{
		Revision: old.Revision + 1, Nodes: maps.Clone(old.Nodes), Topics: maps.Clone(old.Topics), Names: maps.Clone(old.Names),
		Partitions: maps.Clone(old.Partitions), Tombstones: maps.Clone(old.Tombstones),
	}
	f(s)
	a.snapshot = s
}

// lead makes the topic with these leaders of its partitions, or changes them.
func (a *agreement) lead(topic string, leaders ...replicate.NodeID) {
	a.change(func(s *meta.Snapshot) {
		t := s.Names[topic]
		if t == nil {
			t = &meta.Topic{ID: uuid.New(), Name: topic, Partitions: len(leaders)}
			s.Topics[t.ID], s.Names[topic] = t, t
		}
		for i, id := range leaders {
			p := &meta.Partition{ID: meta.PartitionID{Topic: t.ID, Partition: uint32(i)}}
			p.State.Leader = id
			if n := s.Nodes[id]; n != nil {
				p.State.Boot = n.Boot
			}
			s.Partitions[p.ID] = p
		}
	})
}

// alter publishes another description of a node.
func (a *agreement) alter(id replicate.NodeID, f func(n *meta.Node)) {
	a.change(func(s *meta.Snapshot) {
		n := *s.Nodes[id]
		f(&n)
		s.Nodes[id] = &n
	})
}

func (a *agreement) Snapshot() *meta.Snapshot {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.snapshot
}

func (a *agreement) TopicNames() []string { panic("BUG: asked although there is a snapshot") }

func (a *agreement) ChannelNames(_ context.Context, topic string) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.snapshot.Names[topic] == nil {
		return nil, meta.ErrNotFound
	}
	return a.channels[topic], a.deaf
}

func (a *agreement) ask(format string, args ...any) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprintf(format, args...))
	return a.refusal
}

// takeAsked is what the store was asked to do since the last call.
func (a *agreement) takeAsked() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked := strings.Join(a.asked, ", ")
	a.asked = nil
	return asked
}

func (a *agreement) CreateTopic(_ context.Context, topic string, partitions int) error {
	return a.ask("create %s %d", topic, partitions)
}

func (a *agreement) DeleteTopic(_ context.Context, topic string) error {
	return a.ask("delete %s", topic)
}

func (a *agreement) CreateChannel(_ context.Context, topic, channel string) error {
	return a.ask("create %s/%s", topic, channel)
}

func (a *agreement) DeleteChannel(_ context.Context, topic, channel string) error {
	return a.ask("delete %s/%s", topic, channel)
}

func (a *agreement) Tombstone(_ context.Context, key meta.TombstoneKey, until time.Time) error {
	if err := a.ask("tombstone %s %d", key.Topic, key.Node); err != nil {
		return err
	}
	a.change(func(s *meta.Snapshot) { s.Tombstones[key] = until })
	return nil
}

// threeNodes are live members with addresses that nobody serves.
func threeNodes() []*meta.Node {
	var out []*meta.Node
	for id := replicate.NodeID(1); id <= 3; id++ {
		host := fmt.Sprintf("n%d.example", id)
		out = append(out, &meta.Node{
			ID: id, Name: fmt.Sprint("node-", id), Boot: uuid.New(), Version: "0.1.0", Live: true,
			Host: host, NSQ: fmt.Sprintf("0.0.0.0:%d", 4150+10*id), HTTP: fmt.Sprintf("0.0.0.0:%d", 4151+10*id),
		})
	}
	return out
}

// B100
func TestLookupCluster(t *testing.T) {
	nodes := threeNodes()
	nodes[2].Host, nodes[2].HTTP, nodes[2].Version = "2001:db8::3", Off, "1.3.0+engine.9"
	a := newAgreement(nodes...)
	n := startNode(t, engine.Options{}, Options{Directory: a, Version: "1.3.0+engine.test", BroadcastAddress: "not.told"})
	a.lead("all", 1, 2, 3, 1, 2, 3)
	a.lead("two", 3, 1, 3)
	a.lead("orphan", 0)
	a.channels["two"] = []string{"c1", "c2"}
	n.transcript(t, "lookup_cluster.txt", nil,
		"GET /topics", "GET /lookup?topic=all", "GET /lookup?topic=two", "GET /lookup?topic=orphan", "GET /lookup?topic=unknown",
		"GET /channels?topic=two", "GET /channels?topic=unknown", "GET /nodes",
		"POST /topic/tombstone?topic=two&node=n1.example:4161", "POST /topic/tombstone?topic=two&node=n2.example:4171",
		"GET /lookup?topic=two", "GET /lookup?topic=all", "GET /nodes", "GET /debug",
	)
	if got := a.takeAsked(); got != "tombstone two 1" { // node 2 leads nothing of it
		t.Errorf("the store was asked to %s", got)
	}
}

// B100: who is mentioned in lookups as the cluster changes.
func TestLookupFollowsTheCluster(t *testing.T) {
	for _, x := range []struct {
		name   string
		change func(a *agreement)
		want   string // nodes in /lookup of a topic that nodes 1 and 2 lead
	}{
		{"nothing happens", func(*agreement) {}, "12"},
		{"leadership moves", func(a *agreement) { a.lead("t", 3, 2) }, "23"},
		{"one leads all", func(a *agreement) { a.lead("t", 2, 2) }, "2"},
		{"nobody leads a partition", func(a *agreement) { a.lead("t", 0, 2) }, "2"},
		{"a lease ends", func(a *agreement) { a.alter(1, func(n *meta.Node) { n.Live = false }) }, "2"},
		{"a leader was started again", func(a *agreement) { a.alter(1, func(n *meta.Node) { n.Boot = uuid.New() }) }, "2"},
		{"and was elected for another partition", func(a *agreement) {
			a.alter(1, func(n *meta.Node) { n.Boot = uuid.New() })
			a.change(func(s *meta.Snapshot) {
				for id, p := range s.Partitions {
					if id.Partition == 1 {
						q := *p
						q.State.Leader, q.State.Boot = 1, s.Nodes[1].Boot
						s.Partitions[id] = &q
					}
				}
			})
		}, "1"},
		{"a node drains, and still leads", func(a *agreement) { a.alter(1, func(n *meta.Node) { n.Draining = true }) }, "12"},
		{"a node is removed", func(a *agreement) { a.change(func(s *meta.Snapshot) { delete(s.Nodes, 1) }) }, "2"},
		{"a node does not serve NSQ", func(a *agreement) { a.alter(1, func(n *meta.Node) { n.NSQ = Off }) }, "2"},
		{"a row is missing", func(a *agreement) {
			a.change(func(s *meta.Snapshot) {
				for id := range s.Partitions {
					if id.Partition == 0 {
						delete(s.Partitions, id)
					}
				}
			})
		}, "2"},
		{"a tombstone", func(a *agreement) {
			a.change(func(s *meta.Snapshot) {
				s.Tombstones[meta.TombstoneKey{Topic: "t", Node: 2}] = time.Now().Add(time.Hour)
			})
		}, "1"},
		{"a tombstone that ended", func(a *agreement) {
			a.change(func(s *meta.Snapshot) { s.Tombstones[meta.TombstoneKey{Topic: "t", Node: 2}] = time.Now() })
		}, "12"},
		{"a tombstone of another topic", func(a *agreement) {
			a.change(func(s *meta.Snapshot) {
				s.Tombstones[meta.TombstoneKey{Topic: "u", Node: 2}] = time.Now().Add(time.Hour)
			})
		}, "12"},
	} {
		t.Run(x.name, func(t *testing.T) {
			a := newAgreement(threeNodes()...)
			a.lead("t", 1, 2)
			x.change(a)
			l := newLookup(a, peer{Version: "1.3.0+engine"}, time.Minute)
			v, err := l.serveLookup(httptest.NewRequest("GET", "/", nil), map[string][]string{"topic": {"t"}})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, p := range v.(lookupReply).Producers {
				got += strings.TrimSuffix(strings.TrimPrefix(p.BroadcastAddress, "n"), ".example")
			}
			if got != x.want {
				t.Errorf("lookups mention nodes %s, want %s", got, x.want)
			}
		})
	}
}

// Changes go to the cluster, and what it refuses is said. A lookup does not need what only another node can tell.
func TestLookupClusterChanges(t *testing.T) {
	a := newAgreement(threeNodes()...)
	n := startNode(t, engine.Options{}, Options{Directory: a})
	a.lead("t", 1)
	for _, x := range []struct {
		path    string
		refusal error
		status  int
		code    string
		asked   string
	}{
		{"/topic/create?topic=u", nil, 200, "", "create u 0"},
		{"/topic/create?topic=u&partitions=8", nil, 200, "", "create u 8"},
		{"/topic/create?topic=u", fmt.Errorf("here: %w", meta.ErrExists), 200, "", "create u 0"},
		{"/topic/create?topic=u", meta.ErrTooFewNodes, 503, sentence(meta.ErrTooFewNodes), "create u 0"},
		{"/topic/delete?topic=t", nil, 200, "", "delete t"},
		{"/topic/delete?topic=t", meta.ErrNotFound, 200, "", "delete t"},
		{"/topic/delete?topic=t", meta.ErrUnavailable, 503, sentence(meta.ErrUnavailable), "delete t"},
		{"/channel/create?topic=t&channel=c", nil, 200, "", "create t/c"},
		{"/channel/create?topic=t&channel=c", engine.ErrTooManyChans, 503, sentence(engine.ErrTooManyChans), "create t/c"},
		{"/channel/delete?topic=t&channel=c", nil, 200, "", "delete t/c"},
		{"/channel/delete?topic=t&channel=c", engine.ErrNoChannel, 404, "CHANNEL_NOT_FOUND", "delete t/c"},
		{"/channel/delete?topic=t&channel=c", meta.ErrNotFound, 404, "CHANNEL_NOT_FOUND", "delete t/c"},
		{"/channel/delete?topic=t&channel=c", meta.ErrUnavailable, 503, sentence(meta.ErrUnavailable), "delete t/c"},
		{"/topic/tombstone?topic=t&node=n1.example:4161", meta.ErrUnavailable, 503, sentence(meta.ErrUnavailable), "tombstone t 1"},
		{"/topic/tombstone?topic=t&node=n9.example:4161", nil, 200, "", ""},
	} {
		a.mu.Lock()
		a.refusal = x.refusal
		a.mu.Unlock()
		reply, body := n.lookupDo(t, "POST", x.path)
		want := ""
		if x.code != "" {
			want = `{"message":"` + x.code + `"}`
		}
		if got := a.takeAsked(); reply.StatusCode != x.status || body != want || got != x.asked {
			t.Errorf("%s: %d %s after %q, want %d %s after %q", x.path, reply.StatusCode, body, got, x.status, want, x.asked)
		}
	}
	a.mu.Lock()
	a.deaf = errors.New("no leader answers")
	a.mu.Unlock()
	if reply, body := n.lookupDo(t, "GET", "/lookup?topic=t"); reply.StatusCode != 200 || !strings.Contains(body, `"channels":[],"producers":[{`) {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
	for _, path := range []string{"/channels?topic=t", "/debug"} {
		if reply, body := n.lookupDo(t, "GET", path); reply.StatusCode != 503 {
			t.Errorf("%s: %d %s", path, reply.StatusCode, body)
		}
	}
}

// nsqadmin names a node with brackets around an IPv6 address, nsqlookupd without.
func TestPeerNamed(t *testing.T) {
	six := peer{BroadcastAddress: "2001:db8::3", HTTPPort: 4151}
	four := peer{BroadcastAddress: "h.example", HTTPPort: 4151}
	for _, x := range []struct {
		p    peer
		node string
		want bool
	}{
		{six, "[2001:db8::3]:4151", true},
		{six, "2001:db8::3:4151", true},
		{six, "[2001:db8::3]:4150", false},
		{four, "h.example:4151", true},
		{four, "h.example:4150", false},
		{four, "h.example", false},
		{four, "", false},
	} {
		if got := x.p.named(x.node); got != x.want {
			t.Errorf("%s is %s:%d: %v", x.node, x.p.BroadcastAddress, x.p.HTTPPort, got)
		}
	}
}

func TestPeerOf(t *testing.T) {
	for _, x := range []struct {
		n    meta.Node
		want peer
	}{
		{meta.Node{Host: "h", NSQ: "0.0.0.0:1", HTTP: ":2", Version: "0.2.0"}, peer{"h:1", "h", "h", 1, 2, "1.3.0+engine.0.2.0"}},
		{meta.Node{Host: "h", NSQ: "0.0.0.0:1", HTTP: Off, Version: "1.3.0+engine.7"}, peer{"h:1", "h", "h", 1, 0, "1.3.0+engine.7"}},
		{meta.Node{NSQ: "10.0.0.1:1", HTTP: "x:65536", Version: ""}, peer{"10.0.0.1:1", "10.0.0.1", "10.0.0.1", 1, 0, "1.3.0+engine"}},
	} {
		if got := peerOf(&x.n, "1.3.0+engine.own"); got != x.want {
			t.Errorf("%+v is told as %+v, want %+v", x.n, got, x.want)
		}
	}
}

// B100: the stock client goes to the nodes that lead, by whatever node it asks, and follows when that changes.
func TestGoNSQFollowsLeaders(t *testing.T) {
	a := newAgreement()
	var nodes []*node
	for id := replicate.NodeID(1); id <= 3; id++ {
		n := startNode(t, engine.Options{}, Options{Directory: a, BroadcastAddress: "127.0.0.1"})
		nodes = append(nodes, n)
		a.change(func(s *meta.Snapshot) {
			s.Nodes[id] = &meta.Node{
				ID: id, Boot: uuid.New(), Live: true, Version: "0.1.0",
				Host: "127.0.0.1", NSQ: n.TCPAddr().String(), HTTP: n.HTTPAddr().String(),
			}
		})
	}
	a.lead("orders", 1, 2)
	for i, n := range nodes {
		n.post(t, "/pub?topic=orders", fmt.Sprint("node ", i+1))
	}
	bodies := make(chan string)
	consumer := lookupConsumer(t, "orders", bodies, nodes[2].LookupAddr().String())
	collect(t, bodies, "node 1", "node 2")
	consumers := func(n *node) int {
		s := n.topicNow(t, "orders")
		if len(s.Channels) == 0 {
			return 0
		}
		return len(s.Channels[0].Consumers)
	}
	if c := consumers(nodes[2]); c != 0 {
		t.Errorf("%d consumers at the node that leads nothing", c)
	}
	// Leadership moves: lookups say so first, then the node that lost it closes its consumers' connections. Here the test does.
	a.lead("orders", 3, 2)
	if err := consumer.DisconnectFromNSQD(nodes[0].TCPAddr().String()); err != nil {
		t.Fatal(err)
	}
	collect(t, bodies, "node 3")
	eventually(t, "the consumer to leave node 1", func() bool { return consumers(nodes[0]) == 0 })
	if consumers(nodes[1]) != 1 || consumers(nodes[2]) != 1 {
		t.Errorf("consumers per node: %d %d %d", consumers(nodes[0]), consumers(nodes[1]), consumers(nodes[2]))
	}
}
