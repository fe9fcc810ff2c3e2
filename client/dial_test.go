package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/netproto"
)

// A wrong token ends Dial at once; the right one is asked for at each connection.
func TestToken(t *testing.T) {
	cluster := newTestCluster(t, 1, func(c *testCluster) { c.token = "secret" })
	o := testOptions()
	o.Token = func(context.Context, string) (string, error) { return "guess", nil }
	if _, err := Dial(within(t), []string{cluster.nodes[0].address}, o); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("a wrong token: %v", err)
	}
	asked := 0
	client := cluster.dial(t, func(o *Options) {
		o.Token = func(context.Context, string) (string, error) { asked++; return "secret", nil }
	})
	p := client.producer(t, "orders", ProducerOptions{})
	cluster.cut(0)
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); err != nil {
		t.Fatal(err)
	}
	if asked < 2 {
		t.Errorf("the token was asked for %d times", asked)
	}
}

// A token that is no longer good is replaced by the next one, on a new connection.
func TestTokenIsReplaced(t *testing.T) {
	cluster := newTestCluster(t, 1, func(c *testCluster) { c.token = "first" })
	var now atomic.Value
	now.Store("first")
	client := cluster.dial(t, func(o *Options) {
		o.Token = func(context.Context, string) (string, error) { return now.Load().(string), nil }
	})
	before := client.producer(t, "before", ProducerOptions{}) // keeps the connection
	if _, err := before.ProduceSync(within(t), &Message{Body: []byte("m")}); err != nil {
		t.Fatal(err)
	}
	cluster.mu.Lock()
	cluster.token = "second"
	for _, s := range cluster.nodes[0].conns {
		s.known = false
	}
	cluster.mu.Unlock()
	if _, err := client.Producer(within(t), "orders", ProducerOptions{}); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("the first token: %v", err)
	}
	now.Store("second")
	for end := within(t); ; {
		if end.Err() != nil {
			t.Fatal("the second token is never used")
		}
		p, err := client.Producer(within(t), "orders", ProducerOptions{})
		if err == nil {
			_, err = p.ProduceSync(within(t), &Message{Body: []byte("m")})
		}
		if err == nil {
			break
		}
		if !errors.Is(err, ErrUnauthorized) {
			t.Fatal(err)
		}
	}
}

// With TLS the node's certificate is checked.
func TestTLS(t *testing.T) {
	pool, certificate := selfSigned(t)
	cluster := newTestCluster(t, 1, func(c *testCluster) {
		c.tls = &tls.Config{Certificates: []tls.Certificate{certificate}}
	})
	client := cluster.dial(t, func(o *Options) { o.TLS = &tls.Config{RootCAs: pool} })
	p := client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 64 << 10})
	var o outcomes
	for range 1000 {
		p.Produce(within(t), &Message{Body: make([]byte, 1000)}, o.done)
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, err := range o.errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	strange := testOptions()
	ctx := untilItHasFailed(t, &strange)
	strange.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	if _, err := Dial(ctx, []string{cluster.nodes[0].address}, strange); err == nil ||
		!strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a stranger's certificate: %v", err)
	}
}

// selfSigned returns a certificate for 127.0.0.1, and a pool that trusts it.
func selfSigned(t *testing.T) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return pool, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// untilItHasFailed returns a context that ends when a client with these options makes its second attempt to connect.
func untilItHasFailed(t *testing.T, o *Options) context.Context {
	ctx, cancel := context.WithCancel(within(t))
	var attempts atomic.Int32
	o.Token = func(context.Context, string) (string, error) { // it is asked for at each attempt
		if attempts.Add(1) == 2 {
			cancel()
		}
		return "", nil
	}
	return ctx
}

// Without any node Dial ends with its context, and says what was tried.
func TestDialFails(t *testing.T) {
	o := testOptions()
	_, err := Dial(untilItHasFailed(t, &o), []string{"127.0.0.1:1"}, o)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
	if _, err := Dial(within(t), nil, Options{}); err == nil {
		t.Error("no seeds are enough")
	}
}

// An address that cannot be reached costs the log one line, however often it is tried, and one more after the next
// connection.
func TestUnreachableIsToldOnce(t *testing.T) {
	cluster := newTestCluster(t, 1)
	address := cluster.nodes[0].address
	cluster.halt(0)
	var lines atomic.Int64
	o := testOptions()
	o.Logger = slog.New(slog.NewTextHandler(countingWriter{&lines}, nil))
	tried := make(chan struct{}, 100)
	o.Token = func(context.Context, string) (string, error) { // it is asked for at each attempt
		select {
		case tried <- struct{}{}:
		default:
		}
		return "", nil
	}
	ctx, cancel := context.WithCancel(within(t))
	go func() {
		for range 10 {
			<-tried
		}
		cancel()
	}()
	if _, err := Dial(ctx, []string{address}, o); err == nil {
		t.Fatal("a node that does not run was dialled")
	}
	if got := lines.Load(); got != 1 {
		t.Errorf("10 attempts cost %d lines", got)
	}

	c := &Client{told: map[string]time.Time{}}
	for _, step := range []struct {
		reached, told bool
	}{{false, true}, {false, false}, {true, true}, {false, false}} {
		if step.reached {
			c.reached(address)
		}
		if told := c.tells(address); told != step.told {
			t.Errorf("%+v: %v", step, told)
		}
	}
	c.told[address] = time.Now().Add(-toldTime)
	if !c.tells(address) {
		t.Error("it is not told again after a minute")
	}
	for i := range 2 * maxToldCount {
		c.tells(fmt.Sprint(i))
	}
	if len(c.told) > maxToldCount {
		t.Errorf("%d addresses are remembered", len(c.told))
	}
}

// countingWriter counts the lines of a log.
type countingWriter struct{ lines *atomic.Int64 }

func (w countingWriter) Write(p []byte) (int, error) {
	w.lines.Add(1)
	return len(p), nil
}

// The error about a topic that does not exist names it, says it once, and is the errors that programs test for.
func TestNoTopicIsNamed(t *testing.T) {
	err := topicRefused(netproto.StatusRejected, "orders")
	var status *StatusError
	if !errors.Is(err, ErrNoTopic) || !errors.Is(err, ErrRefused) || !errors.As(err, &status) {
		t.Errorf("%v", err)
	}
	want := "client: there is no topic orders; nothing was stored or read: create the topic, or correct the name"
	if err.Error() != want {
		t.Errorf("%v", err)
	}
}

// A leader that cannot be reached where it is announced is named, with who said so and what to do; and a program can
// say where to dial what is announced, and dial itself.
func TestAnnouncedAddresses(t *testing.T) {
	pool, certificate := selfSigned(t)
	secure := &tls.Config{Certificates: []tls.Certificate{certificate}}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	for name, tc := range map[string]struct {
		tls      *tls.Config
		announce func(own string) string
		says     string
	}{
		"refuses": {
			nil, func(string) string { return nobody.Addr().String() }, "which cannot be reached from here: dial tcp 127.0.0.1:",
		},
		"another name": {
			secure, func(own string) string { return "localhost:" + own[strings.LastIndex(own, ":")+1:] },
			"whose certificate is for 127.0.0.1 and not for localhost",
		},
	} {
		cluster := newTestCluster(t, 1, func(c *testCluster) { c.tls = tc.tls })
		n := cluster.nodes[0]
		n.announces = tc.announce(n.address)
		var failed atomic.Pointer[AnnouncedError]
		trust := func(o *Options) {
			if tc.tls != nil {
				o.TLS = &tls.Config{RootCAs: pool}
			}
			o.Hooks.Failed = func(address string, err error) {
				if is := new(AnnouncedError); errors.As(err, &is) && address == n.announces {
					failed.Store(is)
				}
			}
		}
		p := cluster.dial(t, trust).producer(t, "orders", ProducerOptions{DeliveryTimeout: 500 * time.Millisecond})
		_, err := p.ProduceSync(within(t), &Message{Body: []byte("m")})
		for _, says := range []string{
			"node n announces " + n.announces + " (told by the node at " + n.address + "), " + tc.says, "--broadcast-address",
		} {
			if !errors.Is(err, ErrNoLeader) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %q", name, err, says)
			}
		}
		if is := failed.Load(); is == nil || is.Node != "n" || is.Address != n.announces || is.ToldBy != n.address {
			t.Errorf("%s: the hook got %+v", name, is)
		}

		var dialed atomic.Int32
		client := cluster.dial(t, trust, func(o *Options) {
			if o.TLS != nil {
				o.TLS.ServerName = "127.0.0.1"
			}
			o.Addresses = map[string]string{n.announces: n.address}
			o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				if dialed.Add(1); address != n.address {
					t.Errorf("%s: %s is dialed", name, address)
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}
		})
		p = client.producer(t, "orders", ProducerOptions{})
		if _, err := p.ProduceSync(within(t), &Message{Body: []byte("m")}); err != nil || dialed.Load() < 2 {
			t.Errorf("%s: with the map of addresses: %v; %d connections were dialed", name, err, dialed.Load())
		}
	}
}
