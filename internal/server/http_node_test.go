package server

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	nativeclient "penstock/client"
	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/stats"
	"penstock/tests/support/nsqtest"
)

// Each node answers questions about the settings and the clients of every other node.
func TestNodeOverHTTP(t *testing.T) {
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 6)
		last := nodes[len(nodes)-1]
		name := last.api.Name()
		consumer, producer := last.dial(t), last.dial(t)
		consumer.Identify(`{"client_id":"worker","user_agent":"test/1"}`)
		consumer.Sub("t", "c")
		producer.Identify(`{"client_id":"shop"}`)
		for range 3 {
			producer.Send(nsqtest.Pub("t", "x"))
			producer.OK()
		}
		for _, n := range nodes {
			nsqtest.Eventually(t, "the clients", func() bool {
				got := answer[stats.Connections](t, n, "/node/clients?node="+name)
				if len(got.Producers) != 1 || got.ProducerCount != 1 || got.ConsumerCount != len(got.Consumers) {
					return false
				}
				p := got.Producers[0]
				if p.ClientID != "shop" || p.PubCounts[0] != (stats.PubCount{Topic: "t", Count: 3}) || p.ConnectTime == 0 {
					t.Errorf("the producer is %+v", p)
				}
				for _, c := range got.Consumers { // of the partitions that the node leads, if any
					if c.Topic != "t" || c.Channel != "c" || c.ClientID != "worker" || c.UserAgent != "test/1" {
						t.Errorf("a consumer is %+v", c)
					}
				}
				return len(got.Consumers) == 1 || len(nodes) > 1
			})
			var set api.Settings
			n.ask(t, "GET", "/node/config?node="+name, "", &set)
			n.refused(t, "GET", "/node/config?node=none", "", 404, "there is no such node")
			n.ask(t, "GET", "/node/config", "", &set)
		}
		last.e.OnQuestion(func(context.Context, []byte) ([]byte, error) { return nil, context.DeadlineExceeded })
		nodes[0].refused(t, "GET", "/node/clients?node="+name, "", 503, "node "+name+" does not say it: ")
	})
}

// Native producers are among those of /stats, with the numbers of their messages.
func TestNativePublishersInStats(t *testing.T) {
	n := startNode(t, node.Options{}, Options{BroadcastAddress: "127.0.0.1", NativeAddress: "127.0.0.1:0"})
	makeChannel(t, []*testNode{n}, "t", "c", 1)
	ctx, cancel := context.WithTimeout(t.Context(), nsqtest.Patience)
	defer cancel()
	p, err := dialNative(t, []*testNode{n}).Producer(ctx, "t", nativeclient.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := n.stats.Connections(); len(got.Producers) != 0 || n.stats.Collect("t", "", false).Topics[0].Connected != 0 {
		t.Errorf("nothing is published, and there are %+v", got.Producers)
	}
	for range 5 {
		if _, err := p.ProduceSync(ctx, &nativeclient.Message{Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	r := answer[stats.Reply](t, n, "/stats?format=json&topic=t")
	if len(r.Producers) != 1 || r.Topics[0].Connected != 1 {
		t.Fatalf("%+v, %d connected", r.Producers, r.Topics[0].Connected)
	}
	if c := r.Producers[0]; c.Version != "native" || c.RemoteAddress == "" || c.ConnectTime == 0 ||
		c.PubCounts[0] != (stats.PubCount{Topic: "t", Count: 5}) {
		t.Errorf("%+v", c)
	}
	if r := answer[stats.Reply](t, n, "/stats?format=json&topic=other"); len(r.Producers) != 0 {
		t.Errorf("a producer of another topic: %+v", r.Producers)
	}
	_, text := n.do(t, "GET", "/stats", "")
	if !strings.Contains(text, "[native 127.0.0.1:") || !strings.Contains(text, "topics: t=5") {
		t.Errorf("%s", text)
	}
}

// The tokens are listed with their sessions and shares, for who administers the node; and so is one that was taken out
// while its topics are there.
func TestTokensOverHTTP(t *testing.T) {
	n := startNode(t, node.Options{}, Options{Auth: tenantTokens(t, "a", "b")})
	for name, more := range map[string]string{"a": "&partitions=3", "b": ""} {
		if code, text := n.as(t, name, "/topic/create?topic="+name+".x"+more, ""); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
	}
	if code, text := n.as(t, "root", "/topic/create?topic=c.x&made_by=gone", ""); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	n.post(t, "/session", `{"token":"a"}`)
	for _, token := range []string{"", "a", "s3cret"} {
		reply, text := request(t, "GET", n.base+"/tokens", "", "Authorization", "Bearer "+token)
		if reply.StatusCode != 403 && reply.StatusCode != 401 || strings.Contains(text, "a.*") {
			t.Errorf("%q: %d %s", token, reply.StatusCode, text)
		}
	}
	_, text := request(t, "GET", n.base+"/tokens", "", "Authorization", "Bearer root")
	var got api.Tokens
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	by := map[string]api.ListedToken{}
	for _, one := range got.Tokens {
		by[one.Name] = one
	}
	if len(got.Tokens) != 5 || got.SharePercent != n.e.Catalog().TokenShare() || by["root"].Share != nil ||
		by["a"].Sessions != 1 || by["b"].Sessions != 0 || by["a"].Elsewhere || by["a"].Grants[0].Topics[0] != "a.*" {
		t.Errorf("%+v", got)
	}
	if s := by["a"].Share; s == nil || s.Topics != 1 || s.Partitions != 3 || s.OfLimit == 0 {
		t.Errorf("the share of a is %+v", s)
	}
	if gone := by["gone"]; !gone.Elsewhere || gone.Share == nil || len(gone.Grants) != 0 {
		t.Errorf("the token that is in no file is %+v", gone)
	}
}
