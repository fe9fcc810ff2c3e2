package nsqtest

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

// Flushing flushes a compressor after each write.
type Flushing struct {
	io.Writer
	Flush func() error
}

func (f Flushing) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	if err == nil {
		err = f.Flush()
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

// Negotiate sends an IDENTIFY that asks for this.
func (c *Client) Negotiate(ask map[string]any) Negotiated {
	c.T.Helper()
	ask["feature_negotiation"] = true
	body, err := json.Marshal(ask)
	if err != nil {
		c.T.Fatal(err)
	}
	c.Send("IDENTIFY\n" + Sized(string(body)))
	k, d, err := c.Frame(Patience)
	var got Negotiated
	if err == nil && k == FrameResponse {
		err = json.Unmarshal(d, &got)
	}
	if err != nil || k != FrameResponse {
		c.T.Fatalf("IDENTIFY: %d %q %v", k, d, err)
	}
	return got
}

// bufferedConn is a connection that reads through a buffer, which may have bytes already.
type bufferedConn struct {
	net.Conn
	br   *bufio.Reader
	Last []byte // the last bytes that were read
}

func (c *bufferedConn) Read(p []byte) (int, error) {
	n, err := c.br.Read(p)
	c.Last = append(c.Last, p[:n]...)
	c.Last = c.Last[max(0, len(c.Last)-GoodbyeBytes):]
	return n, err
}

// GoodbyeBytes is the size of a record of TLS 1.3 that contains an alert. No other record in these tests is as short.
const GoodbyeBytes = 5 + 2 + 1 + 16

// StartTLS performs the handshake. It reads through the reader's buffer, which may have the first bytes of TLS.
func (c *Client) StartTLS(cfg *tls.Config) (*tls.Conn, error) {
	c.Under = &bufferedConn{Conn: c.Conn, br: c.R}
	tc := tls.Client(c.Under, cfg)
	_ = c.Conn.SetReadDeadline(time.Now().Add(Patience))
	err := tc.Handshake()
	c.W, c.R = tc, bufio.NewReader(tc)
	return tc, err
}

func (c *Client) StartCompression(how string, level int) {
	if how == "snappy" {
		w := s2.NewWriter(c.W, s2.WriterSnappyCompat(), s2.WriterConcurrency(1))
		c.W, c.R = Flushing{w, w.Flush}, bufio.NewReader(s2.NewReader(c.R))
		return
	}
	w, err := flate.NewWriter(c.W, level)
	if err != nil {
		c.T.Fatal(err)
	}
	c.W, c.R = Flushing{w, w.Flush}, bufio.NewReader(flate.NewReader(c.R))
}

// Wrap negotiates TLS if cfg is given, and compression if it is named.
func (c *Client) Wrap(cfg *tls.Config, compression string, level int) *Client {
	t := c.T
	t.Helper()
	ask := map[string]any{"deflate_level": level}
	if cfg != nil {
		ask["tls_v1"] = true
	}
	if compression != "" {
		ask[compression] = true
	}
	got := c.Negotiate(ask)
	if got.TLSv1 != (cfg != nil) || got.Snappy != (compression == "snappy") || got.Deflate != (compression == "deflate") {
		t.Fatalf("asked for %v, got %+v", ask, got)
	}
	if cfg != nil {
		if _, err := c.StartTLS(cfg); err != nil {
			t.Fatalf("TLS: %v", err)
		}
		c.OK()
	}
	if compression != "" {
		c.StartCompression(compression, got.DeflateLevel)
		c.OK()
	}
	return c
}

// Authority issues certificates and writes them to files in a directory.
type Authority struct {
	Dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	Pool *x509.CertPool
}

func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	ca := &Authority{Dir: t.TempDir(), Pool: x509.NewCertPool()}
	ca.key, ca.cert = ca.sign(t, "test authority", true)
	ca.Pool.AddCert(ca.cert)
	writePEM(t, ca.File("ca.pem"), "CERTIFICATE", ca.cert.Raw)
	return ca
}

func (ca *Authority) File(name string) string { return filepath.Join(ca.Dir, name) }

func (ca *Authority) sign(t testing.TB, name string, authority bool) (*ecdsa.PrivateKey, *x509.Certificate) {
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

// Issue writes name.pem and name.key, and replaces existing files.
func (ca *Authority) Issue(t testing.TB, name string) (cert, key string) {
	t.Helper()
	k, c := ca.sign(t, name, false)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = ca.File(name+".pem"), ca.File(name+".key")
	writePEM(t, cert, "CERTIFICATE", c.Raw)
	writePEM(t, key, "PRIVATE KEY", der)
	return cert, key
}

// Server returns the configuration of a server that has a certificate of the authority.
func (ca *Authority) Server(t testing.TB) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(ca.Issue(t, "server"))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, SessionTicketsDisabled: true}
}

// Client returns the configuration of a Client that trusts the authority; name: that of its certificate, "": it has
// none.
func (ca *Authority) Client(t testing.TB, name string) *tls.Config {
	t.Helper()
	cfg := &tls.Config{RootCAs: ca.Pool, ServerName: "localhost"}
	if name != "" {
		pair, err := tls.LoadX509KeyPair(ca.Issue(t, name))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}
