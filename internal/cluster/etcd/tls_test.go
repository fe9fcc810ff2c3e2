package etcd

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster/kv"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.tls = certificates(t)
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	put(t, c.dial(Options{TLS: c.tls}, 0), "a", "1")
	c.stop(1)
	c.wipe(1)
	c.start(1) // its way back into the cluster uses TLS as well
	c.ready(1)
	if got := get(t, c.dial(Options{TLS: c.tls}, 1), "a"); got != "1" {
		t.Errorf("it serves %q", got)
	}
	for name, files := range map[string]TLSFiles{
		"none": {}, "another authority": certificates(t), "no certificate": {CA: c.tls.CA},
	} {
		s, err := Dial(t.Context(), []string{c.voters[0].Client}, Options{TLS: files, DialTimeout: time.Second})
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("a client with %s: %v", name, err)
		}
	}
}

// Both ports of a member refuse a version of TLS below the configured one, whoever asks, and take it if it is allowed.
func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	for least, refused := range map[uint16]bool{0: true, tls.VersionTLS12: false} {
		c := newCluster(t, 1)
		c.tls = certificates(t)
		c.tls.MinVersion = least
		c.start(0)
		c.ready(0)
		config, err := c.tls.config()
		if err != nil {
			t.Fatal(err)
		}
		config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		for port, address := range map[string]string{"client": c.voters[0].Client, "peer": c.voters[0].Peer} {
			conn, err := tls.Dial("tcp", address, config)
			if err == nil {
				_ = conn.Close()
			}
			if (err != nil) != refused || err != nil && !strings.Contains(err.Error(), "protocol version") {
				t.Errorf("TLS 1.2 at the %s port, least version %x: %v", port, least, err)
			}
		}
	}
}

// A cluster that has run without TLS gets it at the next start, and can lose it again; its data stays.
func TestTLSIsSwitchedOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	files := certificates(t)
	for i, tls := range []TLSFiles{{}, files, {}, files} {
		c.tls = tls
		c.start(0, 1, 2)
		c.ready(0, 1, 2)
		s := c.dial(Options{TLS: tls}, 0, 1, 2)
		put(t, s, "k/"+strconv.Itoa(i), "v")
		for j := range i + 1 {
			if got := get(t, s, "k/"+strconv.Itoa(j)); got != "v" {
				t.Errorf("round %d: value %d is %q", i, j, got)
			}
		}
		_ = s.Close()
		c.stop(0, 1, 2)
	}
}

// A certificate that is replaced is shown on new connections once it is taken, without a restart and without the loss
// of one. Half of a pair is not taken, and the old one goes on: with the member, with its peers and with its clients.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.tls = certificates(t)
	c.start(0)
	c.ready(0)
	s := c.dial(Options{TLS: c.tls}, 0)
	put(t, s, "a", "1")
	dial, err := c.tls.config()
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string {
		t.Helper()
		conn, err := tls.Dial("tcp", c.voters[0].Client, dial)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return string(conn.ConnectionState().PeerCertificates[0].Raw)
	}
	before := serial()
	again, err := os.ReadFile(c.tls.Cert)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.tls.Cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for who, err := range map[string]error{"member": c.members[0].ReloadTLS(), "client": ReloadTLS(s)} {
		if err == nil || !strings.Contains(err.Error(), c.tls.Cert) {
			t.Errorf("the %s takes half a certificate: %v", who, err)
		}
	}
	if serial() != before {
		t.Error("another certificate is shown")
	}
	s.(*store).client.SetEndpoints() // the connection ends, and a new one is made
	s.(*store).client.SetEndpoints(s.(*store).endpoints...)
	put(t, s, "a", "2")
	if c.members[0].probe(t.Context(), c.voters[0]).state != running {
		t.Error("the member's own client cannot connect")
	}
	reissue(t, c.tls)
	if err := errors.Join(c.members[0].ReloadTLS(), ReloadTLS(s)); err != nil {
		t.Fatal(err)
	}
	if serial() == before {
		t.Error("the old certificate is shown")
	}
	put(t, s, "a", "3")
	if now, err := os.ReadFile(c.tls.Cert); err != nil || bytes.Equal(again, now) {
		t.Fatal("the test replaced nothing")
	}
}

func TestTLSFilesAreChecked(t *testing.T) {
	t.Parallel()
	good := certificates(t)
	for complaint, files := range map[string]TLSFiles{
		"cannot be read":          {CA: "/does/not/exist"},
		"holds no certificate":    {CA: good.Key},
		"cannot be used":          {CA: good.CA, Cert: good.CA, Key: good.Key},
		"/does/not/exist\" and k": {Cert: "/does/not/exist", Key: good.Key},
	} {
		if _, err := Dial(t.Context(), []string{"127.0.0.1:1"}, Options{TLS: files}); err == nil ||
			!strings.Contains(err.Error(), complaint) {
			t.Errorf("want %q, got %v", complaint, err)
		}
	}
}

// certificates makes an authority, and one certificate of it for both roles on loopback.
func certificates(t *testing.T) TLSFiles {
	t.Helper()
	dir := t.TempDir()
	f := TLSFiles{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"),
	}
	caKey := newKey(t)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caBytes, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(caKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, f.CA, "CERTIFICATE", caBytes)
	writePEM(t, f.CA+".key", "PRIVATE KEY", keyBytes)
	reissue(t, f)
	return f
}

// reissue makes a certificate of the authority of f, with a new key, in place of the one that is there.
func reissue(t *testing.T, f TLSFiles) {
	t.Helper()
	authority, err := tls.LoadX509KeyPair(f.CA, f.CA+".key")
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "node"},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafBytes, err1 := x509.CreateCertificate(rand.Reader, leaf, authority.Leaf, key.Public(), authority.PrivateKey)
	keyBytes, err2 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	writePEM(t, f.Cert, "CERTIFICATE", leafBytes)
	writePEM(t, f.Key, "PRIVATE KEY", keyBytes)
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A certificate is for an address by the address, by a name that has it, or if it is for no host.
func TestCertificateIsForAnAddress(t *testing.T) {
	t.Parallel()
	from := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for name, test := range map[string]struct {
		cert x509.Certificate
		from string
		want bool
	}{
		"its address":    {x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, "127.0.0.1", true},
		"another one":    {x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, "127.0.0.2", false},
		"no host":        {x509.Certificate{}, "127.0.0.2", true},
		"its name":       {x509.Certificate{DNSNames: []string{"localhost"}}, "127.0.0.1", true},
		"another's name": {x509.Certificate{DNSNames: []string{"localhost"}}, "192.0.2.1", false},
		"a name and an IP": {
			x509.Certificate{DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(1, 1, 1, 1)}}, "127.0.0.1", true,
		},
	} {
		if got := isFor(t.Context(), &test.cert, from(test.from)); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
