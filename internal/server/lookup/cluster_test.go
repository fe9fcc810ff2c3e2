package lookup

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/listen"
)

// sentence returns the text of an error without the name of its package.
func sentence(err error) string {
	_, text, _ := strings.Cut(err.Error(), ": ")
	return text
}

// B100
func TestLookupCluster(t *testing.T) {
	nodes := threeNodes()
	nodes[2].Host, nodes[2].HTTP, nodes[2].Version = "2001:db8::3", listen.Off, "1.3.0+engine.9"
	a := newAgreement(nodes...)
	self := testSelf()
	self.BroadcastAddress = "not.told"
	s := start(t, node.Options{}, Options{Directory: a, Self: self})
	a.Lead("all", 1, 2, 3, 1, 2, 3)
	a.Lead("two", 3, 1, 3)
	a.Lead("orphan", 0)
	a.SetChannels("two", "c1", "c2")
	s.transcript(
		t,
		"lookup_cluster.txt",
		nil,
		"GET /topics",
		"GET /lookup?topic=all",
		"GET /lookup?topic=two",
		"GET /lookup?topic=orphan",
		"GET /lookup?topic=unknown",
		"GET /channels?topic=two",
		"GET /channels?topic=unknown",
		"GET /nodes",
		"POST /topic/tombstone?topic=two&node=n1.example:4161",
		"POST /topic/tombstone?topic=two&node=n2.example:4171",
		"GET /lookup?topic=two",
		"GET /lookup?topic=all",
		"GET /nodes",
		"GET /debug",
	)
	if got := a.TakeAsked(); got != "tombstone two 1" { // node 2 leads no partition of it
		t.Errorf("the store was asked to %s", got)
	}
}

// B100: the nodes in lookups as the cluster changes.
func TestLookupFollowsTheCluster(t *testing.T) {
	for _, x := range []struct {
		name   string
		change func(a *agreement)
		want   string // nodes in /lookup of a topic that nodes 1 and 2 lead
	}{
		{"nothing happens", func(*agreement) {}, "12"},
		{"leadership moves", func(a *agreement) { a.Lead("t", 3, 2) }, "23"},
		{"one leads all", func(a *agreement) { a.Lead("t", 2, 2) }, "2"},
		{"nobody leads a partition", func(a *agreement) { a.Lead("t", 0, 2) }, "2"},
		{"a lease ends", func(a *agreement) { a.Alter(1, func(n *meta.Node) { n.Live = false }) }, "2"},
		{
			"a leader was started again",
			func(a *agreement) { a.Alter(1, func(n *meta.Node) { n.Boot = uuid.New() }) }, "2",
		},
		{"and was elected for another partition", func(a *agreement) {
			a.Alter(1, func(n *meta.Node) { n.Boot = uuid.New() })
			a.Change(func(s *meta.Snapshot) {
				for id, p := range s.Partitions.All() {
					if id.Partition == 1 {
						q := *p
						q.State.Leader, q.State.Boot = 1, s.Nodes[1].Boot
						s.Partitions = s.Partitions.With(id, &q)
					}
				}
			})
		}, "1"},
		{
			"a node drains, and still leads",
			func(a *agreement) { a.Alter(1, func(n *meta.Node) { n.Draining = true }) }, "12",
		},
		{"a node is removed", func(a *agreement) { a.Change(func(s *meta.Snapshot) { delete(s.Nodes, 1) }) }, "2"},
		{
			"a node does not serve NSQ", func(a *agreement) { a.Alter(1, func(n *meta.Node) { n.NSQ = listen.Off }) },
			"2",
		},
		{"a row is missing", func(a *agreement) {
			a.Change(func(s *meta.Snapshot) {
				for id := range s.Partitions.All() {
					if id.Partition == 0 {
						s.Partitions = s.Partitions.With(id, nil)
					}
				}
			})
		}, "2"},
		{"a tombstone", func(a *agreement) {
			a.Change(func(s *meta.Snapshot) {
				s.Tombstones[meta.TombstoneKey{Topic: "t", Node: 2}] = time.Now().Add(time.Hour)
			})
		}, "1"},
		{"a tombstone that ended", func(a *agreement) {
			a.Change(func(s *meta.Snapshot) { s.Tombstones[meta.TombstoneKey{Topic: "t", Node: 2}] = time.Now() })
		}, "12"},
		{"a tombstone of another topic", func(a *agreement) {
			a.Change(func(s *meta.Snapshot) {
				s.Tombstones[meta.TombstoneKey{Topic: "u", Node: 2}] = time.Now().Add(time.Hour)
			})
		}, "12"},
	} {
		t.Run(x.name, func(t *testing.T) {
			a := newAgreement(threeNodes()...)
			a.Lead("t", 1, 2)
			x.change(a)
			l := newAPI(a, Producer{Version: "1.3.0+engine"}, time.Minute)
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

// Changes go to the cluster, and its refusals are reported. A lookup works without information that only another node
// has.
func TestLookupClusterChanges(t *testing.T) {
	a := newAgreement(threeNodes()...)
	s := start(t, node.Options{}, Options{Directory: a})
	a.Lead("t", 1)
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
		{"/channel/create?topic=t&channel=c", errs.ErrTooManyChans, 503, sentence(errs.ErrTooManyChans), "create t/c"},
		{"/channel/delete?topic=t&channel=c", nil, 200, "", "delete t/c"},
		{"/channel/delete?topic=t&channel=c", errs.ErrNoChannel, 404, "CHANNEL_NOT_FOUND", "delete t/c"},
		{"/channel/delete?topic=t&channel=c", meta.ErrNotFound, 404, "CHANNEL_NOT_FOUND", "delete t/c"},
		{"/channel/delete?topic=t&channel=c", meta.ErrUnavailable, 503, sentence(meta.ErrUnavailable), "delete t/c"},
		{
			"/topic/tombstone?topic=t&node=n1.example:4161", meta.ErrUnavailable, 503, sentence(meta.ErrUnavailable),
			"tombstone t 1",
		},
		{"/topic/tombstone?topic=t&node=n9.example:4161", nil, 200, "", ""},
	} {
		a.Refuse(x.refusal)
		reply, body := s.do(t, "POST", x.path)
		want := ""
		if x.code != "" {
			want = `{"message":"` + x.code + `"}`
		}
		if got := a.TakeAsked(); reply.StatusCode != x.status || body != want || got != x.asked {
			t.Errorf("%s: %d %s after %q, want %d %s after %q", x.path, reply.StatusCode, body, got, x.status, want, x.asked)
		}
	}
	a.Deafen(errors.New("no leader answers"))
	if reply, body := s.do(t, "GET", "/lookup?topic=t"); reply.StatusCode != 200 ||
		!strings.Contains(body, `"channels":[],"producers":[{`) {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
	for _, path := range []string{"/channels?topic=t", "/debug"} {
		if reply, body := s.do(t, "GET", path); reply.StatusCode != 503 {
			t.Errorf("%s: %d %s", path, reply.StatusCode, body)
		}
	}
}

// nsqadmin puts brackets around the IPv6 address in a node's name; nsqlookupd does not.
func TestProducerNamed(t *testing.T) {
	six := Producer{BroadcastAddress: "2001:db8::3", HTTPPort: 4151}
	four := Producer{BroadcastAddress: "h.example", HTTPPort: 4151}
	for _, x := range []struct {
		p    Producer
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

func TestProducerOf(t *testing.T) {
	for _, x := range []struct {
		n    meta.Node
		want Producer
	}{
		{
			meta.Node{Host: "h", NSQ: "0.0.0.0:1", HTTP: ":2", Version: "0.2.0"},
			Producer{"h:1", "h", "h", 1, 2, "1.3.0+engine.0.2.0"},
		},
		{
			meta.Node{Host: "h", NSQ: "0.0.0.0:1", HTTP: listen.Off, Version: "1.3.0+engine.7"},
			Producer{"h:1", "h", "h", 1, 0, "1.3.0+engine.7"},
		},
		{
			meta.Node{NSQ: "10.0.0.1:1", HTTP: "x:65536", Version: ""},
			Producer{"10.0.0.1:1", "10.0.0.1", "10.0.0.1", 1, 0, "1.3.0+engine"},
		},
	} {
		if got := producerOf(&x.n, "1.3.0+engine.own"); got != x.want {
			t.Errorf("%+v is told as %+v, want %+v", x.n, got, x.want)
		}
	}
}

func TestYouzanListLookup(t *testing.T) {
	s := start(t, node.Options{}, Options{})
	_, body := s.do(t, "GET", "/listlookup")
	p := listen.Port(s.HTTPAddr())
	want := fmt.Sprintf(
		`{"ID":"here.example:4150","NodeIp":"here.example","TcpPort":"","HttpPort":"%d","RpcPort":"","Epoch":0}`, p,
	)
	if body != `{"lookupdnodes":[`+want+`],"lookupdleader":`+want+`}` {
		t.Errorf("got %s", body)
	}
	a := newAgreement(threeNodes()...)
	a.Alter(1, func(n *meta.Node) { n.Lookup = "10.0.0.1:4161" })
	a.Alter(2, func(n *meta.Node) { n.Lookup = listen.Off })
	a.Alter(3, func(n *meta.Node) { n.Lookup, n.Live = "10.0.0.3:4161", false })
	c := start(t, node.Options{}, Options{Directory: a})
	_, body = c.do(t, "GET", "/listlookup")
	if strings.Count(body, `"NodeIp":"n1.example"`) != 2 || strings.Contains(body, "n2") || strings.Contains(body, "n3") {
		t.Errorf("got %s", body)
	}
}
