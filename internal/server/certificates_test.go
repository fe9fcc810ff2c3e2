package server

import (
	"crypto/tls"
	"os"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/nsqtest"
)

// B98
func TestClientCertificates(t *testing.T) {
	ca, foreign := nsqtest.NewAuthority(t), nsqtest.NewAuthority(t)
	stranger := foreign.Client(t, "stranger")
	stranger.RootCAs = ca.Pool
	for _, x := range []struct {
		policy              string
		none, strange, good bool
	}{{"", true, true, true}, {clientAuthAny, false, true, true}, {clientAuthVerify, false, false, true}} {
		o := tlsOptions(t, ca)
		o.TLS.ClientAuth, o.TLS.RootCAFile = x.policy, ca.File("ca.pem")
		n := startNode(t, node.Options{}, o)
		for name, y := range map[string]struct {
			cfg  *tls.Config
			want bool
		}{"none": {ca.Client(t, ""), x.none}, "strange": {stranger, x.strange}, "good": {ca.Client(t, "good"), x.good}} {
			c := n.dial(t)
			c.Negotiate(map[string]any{"tls_v1": true})
			_, err := c.StartTLS(y.cfg)
			var data []byte
			if err == nil { // with TLS 1.3 a client learns that only afterwards
				_, data, err = c.Frame(nsqtest.Patience)
			}
			if got := err == nil && string(data) == "OK"; got != y.want {
				t.Errorf("policy %q, certificate %s: accepted %t (%v)", x.policy, name, got, err)
			}
		}
		if x.policy != "" {
			c := n.dial(t)
			c.Send("NOP\n")
			c.Fatal("E_INVALID cannot NOP in current state (TLS required)") // a policy makes TLS required
		}
	}
}

// New certificates apply to new handshakes, and connections stay open. Unusable files change nothing.
func TestReloadCertificates(t *testing.T) {
	ca, next := nsqtest.NewAuthority(t), nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	o.HTTPSAddress = "127.0.0.1:0"
	n := startNode(t, node.Options{}, o)
	old := n.dial(t).Wrap(ca.Client(t, ""), "snappy", 0)

	if err := os.WriteFile(o.TLS.CertFile, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.ReloadTLS(); err == nil || !strings.Contains(err.Error(), "cannot be used") {
		t.Fatalf("rubbish: %v", err)
	}
	n.dial(t).Wrap(ca.Client(t, ""), "", 0)

	next.Dir = ca.Dir
	next.Issue(t, "server")
	if err := n.ReloadTLS(); err != nil {
		t.Fatal(err)
	}
	n.dial(t).Wrap(next.Client(t, ""), "", 0)
	c := n.dial(t)
	c.Negotiate(map[string]any{"tls_v1": true})
	if _, err := c.StartTLS(ca.Client(t, "")); err == nil {
		t.Error("a new connection got the old certificate")
	}
	tc, err := tls.Dial("tcp", n.HTTPSAddr().String(), next.Client(t, ""))
	if err != nil {
		t.Fatalf("HTTPS: %v", err)
	}
	tc.Close()
	old.Send(nsqtest.Pub("t", "x"))
	old.OK()
}
