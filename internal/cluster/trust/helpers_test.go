package trust

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"os"
	"testing"

	"penstock/internal/cluster/etcd"
)

const derivedGolden = "5d1fafcb3101ace9 penstock cluster 7da4d403e13ec76f"

func hexOf(p []byte) string { return hex.EncodeToString(p) }

func loadPair(t *testing.T, f etcd.TLSFiles) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func loadPool(t *testing.T, name string) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(name)
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		t.Fatal(name, err)
	}
	return pool
}
