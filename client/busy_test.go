package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"penstock/netproto"
)

// The pause after a node has said that it is busy grows to tens of seconds, and every part of it is random, its
// beginning, too: clients that were refused together must not come back together.
func TestBusyDelay(t *testing.T) {
	o := (&Options{}).withDefaults()
	for times, most := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 6: 30 * time.Second, 1000: 30 * time.Second,
	} {
		var low, high int
		for range 1000 {
			d := o.busyDelay(times)
			if d < o.MinDelay || d > most+o.MinDelay {
				t.Fatalf("%d times busy: %v", times, d)
			}
			if d < most/4 {
				low++
			}
			if d > most*3/4 {
				high++
			}
		}
		if low < 150 || high < 150 {
			t.Errorf("%d times busy: of 1000 pauses %d are in the first quarter and %d in the last one", times, low, high)
		}
	}
}

// A client that is refused because the node is busy comes back slowly, in TLS and without; nothing is computed for it.
func TestBusyNode(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			options := testOptions()
			var signatures atomic.Int64
			if secure {
				pool, certificate := selfSigned(t)
				options.TLS = &tls.Config{RootCAs: pool}
				ln = tls.NewListener(ln, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
					signatures.Add(1)
					return &certificate, nil
				}})
			}
			var refused atomic.Int64
			done := make(chan error, 1)
			go func() {
				done <- netproto.Serve(t.Context(), ln, netproto.Options{
					Hello: netproto.Hello{
						Role: netproto.RoleNode, NodeID: "n", Cluster: netproto.ID{1}, Store: netproto.ID{1}, Boot: netproto.ID{1},
						MinVersion: protocolVersion, MaxVersion: protocolVersion,
					},
					HandlerFor: func(net.Conn) netproto.Handler { return nil },
				}, func() int { return 0 }, func(net.Addr, error) { refused.Add(1) })
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // in which others would come 40 times and more
			defer cancel()
			if _, err := Dial(ctx, []string{ln.Addr().String()}, options); !netproto.IsBusy(err) {
				t.Errorf("Dial: %v", err)
			}
			if n := refused.Load(); n < 1 || n > 12 {
				t.Errorf("the client came %d times", n)
			}
			if n := signatures.Load(); n > 0 {
				t.Errorf("%d signatures for clients that were refused", n)
			}
		})
	}
}

// A Client keeps session tickets, unless its program looks at each certificate itself.
func TestTicketsAreKept(t *testing.T) {
	own := tls.NewLRUClientSessionCache(1)
	seen := func([][]byte, [][]*x509.Certificate) error { return nil }
	for name, x := range map[string]struct {
		cfg  *tls.Config
		want bool
	}{
		"usual":            {&tls.Config{}, true},
		"a cache":          {&tls.Config{ClientSessionCache: own}, true},
		"a look at each":   {&tls.Config{VerifyPeerCertificate: seen}, false},
		"TLS is not asked": {nil, false},
	} {
		o := (&Options{TLS: x.cfg}).withDefaults()
		if got := o.TLS != nil && o.TLS.ClientSessionCache != nil; got != x.want {
			t.Errorf("%s: %v", name, got)
		}
		if x.cfg != nil && x.cfg.ClientSessionCache != nil && o.TLS.ClientSessionCache != own {
			t.Errorf("%s: the program's cache was replaced", name)
		}
	}
}
