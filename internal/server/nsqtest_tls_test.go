package server

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/s2"
)

// flushing flushes a compressor after each write.
type flushing struct {
	io.Writer
	flush func() error
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	if err == nil {
		err = f.flush()
	}
	return n, err
}

// Negotiated is what a server answers to an IDENTIFY.
type Negotiated struct {
	MsgTimeout   int64  `json:"msg_timeout"`
	TLSv1        bool   `json:"tls_v1"`
	Deflate      bool   `json:"deflate"`
	DeflateLevel int    `json:"deflate_level"`
	Snappy       bool   `json:"snappy"`
	AuthRequired bool   `json:"auth_required"`
	DesiredTag   string `json:"desired_tag"`
}

// negotiate sends an IDENTIFY that asks for this.
func (c *client) negotiate(ask map[string]any) Negotiated {
	c.t.Helper()
	ask["feature_negotiation"] = true
	body, err := json.Marshal(ask)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send("IDENTIFY\n" + sized(string(body)))
	k, d, err := c.frame(patience)
	var got Negotiated
	if err == nil && k == FrameResponse {
		err = json.Unmarshal(d, &got)
	}
	if err != nil || k != FrameResponse {
		c.t.Fatalf("IDENTIFY: %d %q %v", k, d, err)
	}
	return got
}

// bufferedConn is a connection that reads through a buffer, which may have bytes already.
type bufferedConn struct {
	net.Conn
	br   *bufio.Reader
	last []byte // the last bytes that were read
}

func (c *bufferedConn) Read(p []byte) (int, error) {
	n, err := c.br.Read(p)
	c.last = append(c.last, p[:n]...)
	c.last = c.last[max(0, len(c.last)-goodbyeBytes):]
	return n, err
}

// goodbyeBytes is the size of a record of TLS 1.3 that contains an alert. No other record in these tests is as short.
const goodbyeBytes = 5 + 2 + 1 + 16

// startTLS performs the handshake. It reads through the reader's buffer, which may have the first bytes of TLS.
func (c *client) startTLS(cfg *tls.Config) (*tls.Conn, error) {
	c.under = &bufferedConn{Conn: c.nc, br: c.br}
	tc := tls.Client(c.under, cfg)
	_ = c.nc.SetReadDeadline(time.Now().Add(patience))
	err := tc.Handshake()
	c.w, c.br = tc, bufio.NewReader(tc)
	return tc, err
}

func (c *client) startCompression(how string, level int) {
	if how == "snappy" {
		w := s2.NewWriter(c.w, s2.WriterSnappyCompat(), s2.WriterConcurrency(1))
		c.w, c.br = flushing{w, w.Flush}, bufio.NewReader(s2.NewReader(c.br))
		return
	}
	w, err := flate.NewWriter(c.w, level)
	if err != nil {
		c.t.Fatal(err)
	}
	c.w, c.br = flushing{w, w.Flush}, bufio.NewReader(flate.NewReader(c.br))
}

// wrap negotiates TLS if cfg is given, and compression if it is named.
func (c *client) wrap(cfg *tls.Config, compression string, level int) *client {
	t := c.t
	t.Helper()
	ask := map[string]any{"deflate_level": level}
	if cfg != nil {
		ask["tls_v1"] = true
	}
	if compression != "" {
		ask[compression] = true
	}
	got := c.negotiate(ask)
	if got.TLSv1 != (cfg != nil) || got.Snappy != (compression == "snappy") || got.Deflate != (compression == "deflate") {
		t.Fatalf("asked for %v, got %+v", ask, got)
	}
	if cfg != nil {
		if _, err := c.startTLS(cfg); err != nil {
			t.Fatalf("TLS: %v", err)
		}
		c.ok()
	}
	if compression != "" {
		c.startCompression(compression, got.DeflateLevel)
		c.ok()
	}
	return c
}

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

// client returns the configuration of a client that trusts the authority; name: that of its certificate, "": it has
// none.
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
