package server

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"testing"

	"penstock/internal/server/auth"
	"penstock/tests/support/authtest"
	"penstock/tests/support/nsqtest"
)

// B98. TLS and compression work at every node of a cluster, wherever the leader is: messages are published through one
// node and consumed through the next.
func TestWrappedConnectionsInACluster(t *testing.T) {
	ca := nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	o.BroadcastAddress = "127.0.0.1"
	nodes := startCluster(t, 3, o)
	for i, x := range []struct {
		tls         bool
		compression string
	}{{true, ""}, {false, "snappy"}, {true, "snappy"}, {false, "deflate"}, {true, "deflate"}, {false, ""}} {
		t.Run(fmt.Sprintf("tls=%t %s", x.tls, x.compression), func(t *testing.T) {
			var cfg *tls.Config
			if x.tls {
				cfg = ca.Client(t, "")
			}
			topic := fmt.Sprintf("t%d", i)
			makeChannel(t, nodes, topic, "c", 1)
			p := nodes[i%3].dial(t).Wrap(cfg, x.compression, 6)
			c := nodes[(i+1)%3].dial(t).Wrap(cfg, x.compression, 6)
			c.Sub(topic, "c")
			c.Send("RDY 10\n")
			for n := range 100 {
				p.Send(nsqtest.Pub(topic, fmt.Sprint(n)))
			}
			got := map[string]bool{}
			for range 100 {
				p.OK()
				m := c.Message()
				got[m.Body] = true
				c.Send("FIN " + m.ID + "\n")
			}
			if len(got) != 100 {
				t.Errorf("%d different messages of 100", len(got))
			}
		})
	}
}

// B98. A token allows the same at every node, even when a put is forwarded to the leader, or a subscription is served
// by another node.
func TestAuthInACluster(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens.toml")
	authtest.Write(t, name,
		authtest.Token("shop", "shop-token", `permissions = ["publish"]`+"\n"+`topics = ["orders"]`)+
			authtest.Token(
				"billing", "billing-token", `permissions = ["subscribe"]`+"\n"+`topics = ["orders"]`+"\n"+`channels = ["billing"]`,
			))
	nodes := startCluster(t, 3, Options{BroadcastAddress: "127.0.0.1", Auth: auth.Options{File: name}})
	login := func(n *testNode, secret, identity string) *nsqtest.Client {
		c := n.dial(t)
		c.Send(authCommand(secret))
		c.Expect(nsqtest.FrameResponse, fmt.Sprintf(`{"identity":%q,"identity_url":"","permission_count":1}`, identity))
		return c
	}
	for i, n := range nodes {
		shop := login(n, "shop-token", "shop")
		shop.Send(nsqtest.Pub("orders", fmt.Sprint(i)))
		shop.OK()
		shop.Send(nsqtest.Pub("invoices", "x"))
		shop.Fatal(`E_UNAUTHORIZED AUTH failed for PUB on "invoices" ""`)
		if code, _ := n.do(t, "POST", "/channel/create?topic=orders&channel=billing", ""); code != 401 && code != 403 {
			t.Errorf("%d for a channel without a token", code)
		}
	}
	got := map[string]bool{}
	for _, n := range nodes {
		other := login(n, "billing-token", "billing")
		other.Send("SUB orders audit\n")
		other.Fatal(`E_UNAUTHORIZED AUTH failed for SUB on "orders" "audit"`)
		c := login(n, "billing-token", "billing")
		c.Sub("orders", "billing")
		c.Send("RDY 1\n")
		m := c.Message()
		got[m.Body] = true
		c.Send("RDY 0\nFIN " + m.ID + "\n") // the next message must go to the next consumer
	}
	if len(got) != 3 {
		t.Errorf("the nodes' consumers got %v", got)
	}
}
