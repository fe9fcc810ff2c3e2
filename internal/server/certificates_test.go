package server

import (
	"crypto/tls"
	"os"
	"strings"
	"testing"

	"penstock/internal/node"
)

// B98
func TestClientCertificates(t *testing.T) {
	ca, foreign := newCertificateAuthority(t), newCertificateAuthority(t)
	stranger := foreign.client(t, "stranger")
	stranger.RootCAs = ca.pool
	for _, x := range []struct {
		policy              string
		none, strange, good bool
	}{{"", true, true, true}, {clientAuthAny, false, true, true}, {clientAuthVerify, false, false, true}} {
		o := tlsOptions(t, ca)
		o.TLS.ClientAuth, o.TLS.RootCAFile = x.policy, ca.file("ca.pem")
		n := startNode(t, node.Options{}, o)
		for name, y := range map[string]struct {
			cfg  *tls.Config
			want bool
		}{"none": {ca.client(t, ""), x.none}, "strange": {stranger, x.strange}, "good": {ca.client(t, "good"), x.good}} {
			c := n.dial(t)
			c.negotiate(map[string]any{"tls_v1": true})
			_, err := c.startTLS(y.cfg)
			var data []byte
			if err == nil { // with TLS 1.3 a client learns that only afterwards
				_, data, err = c.frame(patience)
			}
			if got := err == nil && string(data) == "OK"; got != y.want {
				t.Errorf("policy %q, certificate %s: accepted %t (%v)", x.policy, name, got, err)
			}
		}
		if x.policy != "" {
			c := n.dial(t)
			c.send("NOP\n")
			c.fatal("E_INVALID cannot NOP in current state (TLS required)") // a policy makes TLS required
		}
	}
}

// New certificates apply to new handshakes, and connections stay open. Unusable files change nothing.
func TestReloadCertificates(t *testing.T) {
	ca, next := newCertificateAuthority(t), newCertificateAuthority(t)
	o := tlsOptions(t, ca)
	o.HTTPSAddress = "127.0.0.1:0"
	n := startNode(t, node.Options{}, o)
	old := n.dial(t).wrap(ca.client(t, ""), "snappy", 0)

	if err := os.WriteFile(o.TLS.CertFile, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.ReloadTLS(); err == nil || !strings.Contains(err.Error(), "cannot be used") {
		t.Fatalf("rubbish: %v", err)
	}
	n.dial(t).wrap(ca.client(t, ""), "", 0)

	next.dir = ca.dir
	next.issue(t, "server")
	if err := n.ReloadTLS(); err != nil {
		t.Fatal(err)
	}
	n.dial(t).wrap(next.client(t, ""), "", 0)
	c := n.dial(t)
	c.negotiate(map[string]any{"tls_v1": true})
	if _, err := c.startTLS(ca.client(t, "")); err == nil {
		t.Error("a new connection got the old certificate")
	}
	tc, err := tls.Dial("tcp", n.HTTPSAddr().String(), next.client(t, ""))
	if err != nil {
		t.Fatalf("HTTPS: %v", err)
	}
	tc.Close()
	old.send(pub("t", "x"))
	old.ok()
}
