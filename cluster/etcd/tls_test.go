package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/cluster/kv"
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
	caKey, key := newKey(t), newKey(t)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
		},
	}
	caBytes, err1 := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	leafBytes, err2 := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	keyBytes, err3 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		f.CA: {Type: "CERTIFICATE", Bytes: caBytes}, f.Cert: {Type: "CERTIFICATE", Bytes: leafBytes}, f.Key: {
			Type: "PRIVATE KEY", Bytes: keyBytes,
		},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
