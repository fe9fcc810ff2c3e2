package native

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
	"penstock/tests/support/linktest"
)

// A link that is slow but steady is no dead client: the deadline moves with what the socket takes, a Ping that could
// not arrive yet proves nothing, and no message waits so long for the link that it is delivered again.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) { t.Parallel(); slowLink(t, nil) })
	t.Run("TLS", func(t *testing.T) { t.Parallel(); slowLink(t, newCertificate(t)) })
}

// beneath is between the socket and TLS, as in package handshakes.
type beneath struct{ net.Conn }

func (b beneath) NetConn() net.Conn { return b.Conn }

// beneathListener accepts connections with TLS on beneath.
type beneathListener struct {
	net.Listener
	cfg *tls.Config
}

func (l beneathListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(beneath{nc}, l.cfg), nil
}

func newCertificate(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func slowLink(t *testing.T, secure *tls.Config) {
	link := linktest.New(t, 32<<10)
	w := open(t, func(o *Options) {
		_ = o.Listener.Close()
		o.writeTimeout = 2 * time.Second
		if secure != nil {
			o.Secure = func(ln net.Listener) net.Listener { return beneathListener{ln, secure} }
		}
		link.OnServer(func() {
			var err error
			if o.Listener, err = net.Listen("tcp", linktest.ServerIP+":0"); err != nil {
				t.Error(err)
			}
		})
	})
	topic, err := w.e.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	sizes := []int{240 << 10, 20 << 10, 20 << 10, 20 << 10, 20 << 10}
	for _, size := range sizes {
		if _, err := topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte(strings.Repeat("m", size))}); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := link.Dial(w.s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if secure != nil {
		nc = tls.Client(nc, &tls.Config{InsecureSkipVerify: true})
	}
	c := &client{t: t, frames: make(chan frame, 1<<16), ended: make(chan error, 1)}
	o := netproto.Options{Hello: clientHello(), Handler: c}
	if c.c, err = netproto.Connect(t.Context(), nc, o); err != nil {
		t.Fatal(err)
	}
	defer c.c.Abort(nil)
	began := time.Now()
	k := c.subscribe(topic, "c", func(m *wire.Subscribe) { m.TimeoutMs = 12000 })
	for i, size := range sizes {
		d := k.next()
		if d.Attempts != 1 || len(d.Body) != size {
			t.Errorf("message %d: attempt %d, %d bytes", i, d.Attempts, len(d.Body))
		}
		k.through(d)
	}
	if took := time.Since(began); took < 7*time.Second {
		t.Errorf("%v: the link is not slow", took)
	}
}
