package server

import (
	"context"
	"crypto"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	native "penstock/client"
	"penstock/internal/node"
	"penstock/netproto"
	"penstock/tests/support/nsqtest"
)

// heldKey is the key of a node's certificate, which signs once the test calls release.
type heldKey struct {
	crypto.Signer
	begun, free chan struct{}
	release     func()
}

func (k *heldKey) Sign(r io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	select {
	case k.begun <- struct{}{}:
		<-k.free
	case <-k.free:
	}
	return k.Signer.Sign(r, digest, opts)
}

// hold lets the node's signatures wait for the test.
func (n *testNode) hold(t *testing.T) *heldKey {
	old := n.certs.now.Load()
	pair := old.cfg.Certificates[0]
	k := &heldKey{begun: make(chan struct{}), free: make(chan struct{})}
	k.release = sync.OnceFunc(func() { close(k.free) })
	var ok bool
	if k.Signer, ok = pair.PrivateKey.(crypto.Signer); !ok {
		t.Fatalf("%T", pair.PrivateKey)
	}
	pair.PrivateKey = k
	cfg := old.cfg.Clone()
	cfg.Certificates = []tls.Certificate{pair}
	n.certs.now.Store(&loadedTLS{cfg: cfg, tickets: old.tickets})
	return k
}

// A connection that has to go, because more than may be are in their handshake, counts like one that waits in vain:
// /metrics would not say otherwise that native clients are refused.
func TestRefusedAtTheNativePortCounts(t *testing.T) {
	t.Parallel()
	o := tlsOptions(t, nsqtest.NewAuthority(t))
	o.NativeAddress, o.HandshakeTimeout, o.MaxHandshakes = "127.0.0.1:0", nsqtest.Patience, 1
	n := startNode(t, node.Options{}, o)
	var before net.Conn
	for refused := range uint64(4) {
		nc, err := net.Dial("tcp", n.NativeAddr().String()) // it never says anything
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nsqtest.Eventually(t, "the one before is counted", func() bool { return n.meter().Handshakes.Refused == refused })
		if before != nil {
			_ = before.SetDeadline(time.Now().Add(nsqtest.Patience))
			if err := tls.Client(before, &tls.Config{InsecureSkipVerify: true}).Handshake(); !netproto.IsBusy(err) {
				t.Errorf("the one before hears: %v", err)
			}
		}
		before = nc
	}
}

// All listeners share the slots. While the signatures of NSQ's clients take them all, native clients and those of HTTPS
// are told that the node is busy once they have waited, and count; clients without TLS do not notice; and a native
// client comes again by itself.
func TestBusyWithHandshakes(t *testing.T) {
	t.Parallel()
	ca := nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	o.HTTPSAddress, o.NativeAddress, o.HandshakeTimeout = "127.0.0.1:0", "127.0.0.1:0", nsqtest.Patience
	n := startNode(t, node.Options{}, o)
	key := n.hold(t)
	defer key.release()
	cfg := ca.Client(t, "")
	var all sync.WaitGroup
	slots := max(1, runtime.GOMAXPROCS(0)/2)
	for range slots {
		c := n.dial(t)
		c.Negotiate(map[string]any{"tls_v1": true})
		all.Go(func() {
			if _, err := c.StartTLS(cfg); err != nil {
				t.Errorf("TLS: %v", err)
			}
		})
		<-key.begun
	}

	secure := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg}}
	defer secure.CloseIdleConnections()
	if _, err := secure.Get("https://" + n.HTTPSAddr().String() + "/ping"); !netproto.IsBusy(err) {
		t.Errorf("HTTPS: %v", err)
	}
	late := n.dial(t)
	late.Negotiate(map[string]any{"tls_v1": true})
	if _, err := late.StartTLS(cfg); !netproto.IsBusy(err) {
		t.Errorf("NSQ: %v", err)
	}
	dialled := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), nsqtest.Patience)
	defer cancel()
	go func() {
		c, err := native.Dial(ctx, []string{n.NativeAddr().String()}, native.Options{
			TLS: cfg, Logger: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			c.Close()
		}
		dialled <- err
	}()
	nsqtest.Eventually(t, "three are refused", func() bool { return n.certs.gate.Counts().Refused >= 3 })
	plain := n.dial(t)
	plain.Send(nsqtest.Pub("t", "x"))
	plain.OK()
	if c := n.certs.gate.Counts(); c.Computed != uint64(slots) {
		t.Errorf("%+v: a signature was begun for a client that was refused", c)
	}
	if n.metric(t, "tls_handshakes_refused_total") == "0" || n.metric(t, "tls_handshakes_waiting") == "" ||
		n.metric(t, "tls_handshakes_total") != strconv.Itoa(slots) {
		t.Error("/metrics does not tell of it")
	}
	key.release()
	all.Wait()
	if err := <-dialled; err != nil {
		t.Errorf("the native client does not come again: %v", err)
	}
}

// A client that comes back needs no signature of the node, not even after the node's restart; unless clients must show
// certificates, or it speaks TLS 1.2, whose old sessions the key of the certificate must not open.
func TestSessionTickets(t *testing.T) {
	t.Parallel()
	ca := nsqtest.NewAuthority(t)
	o := tlsOptions(t, ca)
	o.TLS.NSQMinVersion = "1.2"
	strict := o
	strict.TLS.ClientAuth, strict.TLS.RootCAFile = clientAuthVerify, ca.File("ca.pem")
	for _, x := range []struct {
		name   string
		o      Options
		Client string
		most   uint16
		want   bool
	}{
		{"TLS 1.3", o, "", tls.VersionTLS13, true},
		{"TLS 1.2", o, "", tls.VersionTLS12, false},
		{"certificates of clients", strict, "client", tls.VersionTLS13, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			cfg := ca.Client(t, x.Client)
			cfg.MaxVersion, cfg.ClientSessionCache = x.most, tls.NewLRUClientSessionCache(0)
			for i := range 3 {
				n := startNode(t, node.Options{}, x.o)
				c := n.dial(t).Wrap(cfg, "", 0)
				c.Send(nsqtest.Pub("t", "x")) // its answer comes after the ticket
				c.OK()
				tc, ok := c.W.(*tls.Conn)
				if !ok {
					t.Fatalf("%T", c.W)
				}
				if got := tc.ConnectionState().DidResume; got != (x.want && i > 0) {
					t.Errorf("connection %d: resumed %v", i, got)
				}
				if signed := n.certs.gate.Counts().Computed; (signed == 0) != (x.want && i > 0) {
					t.Errorf("connection %d: %d signatures", i, signed)
				}
			}
		})
	}
}
