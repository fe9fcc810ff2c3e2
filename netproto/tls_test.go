package netproto

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"
)

// selfSigned is a certificate for 127.0.0.1 and the pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// handshakeTLS connects the two ends of a TLS connection.
func handshakeTLS(t *testing.T, left, right Options) (a, b *Conn) {
	t.Helper()
	cert, pool := selfSigned(t)
	an, bn := tcpPair(t)
	client := tls.Client(an, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13})
	server := tls.Server(bn, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
	return handshakeOver(t, client, server, left, right)
}

// A connection over TLS carries frames of all sizes, survives its own read deadlines (pings), and ends in order.
func TestOverTLS(t *testing.T) {
	arrived := make(chan int, 64)
	right := newSink(func(_ *Conn, frames []Received) error {
		for _, f := range frames {
			arrived <- len(f.Payload)
		}
		return nil
	})
	lively := func(o *Options) { o.PingEvery, o.SilenceTimeout = 5*time.Millisecond, patience }
	left := newSink(nil)
	a, b := handshakeTLS(t, testOptions("a", left, lively), testOptions("b", right, lively))
	until(t, "pings between reads that timed out", func() bool {
		return a.Stats().SentFrames > 3 && b.Stats().SentFrames > 3
	})
	for _, size := range []int{0, 1, 10_000, 300_000} {
		if err := a.Send(t.Context(), &Frame{
			Type: TypeForwardPut, Head: []byte("h"), Body: [][]byte{make([]byte, size)},
		}); err != nil {
			t.Fatal(err)
		}
		if n := <-arrived; n != size+1 {
			t.Errorf("%d bytes arrived of %d", n, size+1)
		}
	}
	a.Close()
	mustBe(t, left.wait(t), ErrClosed)
	mustBe(t, right.wait(t), ErrGoodbye)
}
