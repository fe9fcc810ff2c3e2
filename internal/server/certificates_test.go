package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
)

// certificateAuthority issues certificates and writes them to files in a directory.
type certificateAuthority struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newCertificateAuthority(t testing.TB) *certificateAuthority {
	t.Helper()
	ca := &certificateAuthority{dir: t.TempDir(), pool: x509.NewCertPool()}
	ca.key, ca.cert = ca.sign(t, "test authority", true)
	ca.pool.AddCert(ca.cert)
	writePEM(t, ca.file("ca.pem"), "CERTIFICATE", ca.cert.Raw)
	return ca
}

func (ca *certificateAuthority) file(name string) string { return filepath.Join(ca.dir, name) }

func (ca *certificateAuthority) sign(t testing.TB, name string, authority bool) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, IsCA: authority,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := ca.cert, ca.key
	if authority {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}

func writePEM(t testing.TB, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes name.pem and name.key, and replaces existing files.
func (ca *certificateAuthority) issue(t testing.TB, name string) (cert, key string) {
	t.Helper()
	k, c := ca.sign(t, name, false)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = ca.file(name+".pem"), ca.file(name+".key")
	writePEM(t, cert, "CERTIFICATE", c.Raw)
	writePEM(t, key, "PRIVATE KEY", der)
	return cert, key
}

// options returns the TLS options that a server needs.
func (ca *certificateAuthority) options(t testing.TB) Options {
	cert, key := ca.issue(t, "server")
	return Options{TLS: TLSOptions{CertFile: cert, KeyFile: key}}
}

func (ca *certificateAuthority) client(t testing.TB, name string) *tls.Config {
	t.Helper()
	cfg := &tls.Config{RootCAs: ca.pool, ServerName: "localhost"}
	if name != "" {
		pair, err := tls.LoadX509KeyPair(ca.issue(t, name))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}

// B98
func TestClientCertificates(t *testing.T) {
	ca, foreign := newCertificateAuthority(t), newCertificateAuthority(t)
	stranger := foreign.client(t, "stranger")
	stranger.RootCAs = ca.pool
	for _, x := range []struct {
		policy              string
		none, strange, good bool
	}{{"", true, true, true}, {clientAuthAny, false, true, true}, {clientAuthVerify, false, false, true}} {
		o := ca.options(t)
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
	o := ca.options(t)
	o.HTTPSAddress = "127.0.0.1:0"
	n := startNode(t, node.Options{}, o)
	old := n.dialWrapped(t, ca.client(t, ""), "snappy", 0)

	if err := os.WriteFile(o.TLS.CertFile, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.ReloadTLS(); err == nil || !strings.Contains(err.Error(), "cannot be used") {
		t.Fatalf("rubbish: %v", err)
	}
	n.dialWrapped(t, ca.client(t, ""), "", 0)

	next.dir = ca.dir
	next.issue(t, "server")
	if err := n.ReloadTLS(); err != nil {
		t.Fatal(err)
	}
	n.dialWrapped(t, next.client(t, ""), "", 0)
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
