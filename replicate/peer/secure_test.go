package peer

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/netproto"
)

func withSecrets(all *atomic.Pointer[[]netproto.Secret]) func(*Options) {
	return func(o *Options) { o.Trust.Secrets = func() []netproto.Secret { return *all.Load() } }
}

func holding(all ...netproto.Secret) *atomic.Pointer[[]netproto.Secret] {
	p := new(atomic.Pointer[[]netproto.Secret])
	p.Store(&all)
	return p
}

// A secret is replaced on running nodes, in three steps, and no connection ends; new connections come about in every
// state between the steps.
func TestSecretIsReplaced(t *testing.T) {
	older, newer := netproto.Secret{1}, netproto.Secret{2}
	of1, of2 := holding(older), holding(older)
	a, b := start(t, 1, "", withSecrets(of1)), start(t, 2, "", withSecrets(of2))
	meet(a, b)
	connected(t, a, b)
	for _, step := range [][]netproto.Secret{{older, newer}, {newer, older}, {newer}} {
		for _, p := range []*atomic.Pointer[[]netproto.Secret]{of2, of1} {
			p.Store(&step)
			late := start(t, 3, "", withSecrets(p))
			late.SetNodes(tableOf(a.node))
			a.SetNodes(tableOf(b.node, late.node))
			connected(t, a, late)
			late.Close()
			a.wait("the third node is down", func() bool { return len(a.events) > 0 })
			a.SetNodes(tableOf(b.node))
			a.seen()
		}
	}
	if a.ups(2) != 1 || !a.Connected(2) {
		t.Errorf("the connection was made %d times", a.ups(2))
	}
	if n := a.Stats().Unproven + b.Stats().Unproven; n != 0 {
		t.Errorf("%d connections were refused", n)
	}
}

// A node without the secret, or with another one, is not let in, learns why, and is counted.
func TestSecretIsRequired(t *testing.T) {
	for name, other := range map[string]func(*Options){
		"none": func(*Options) {}, "another": withSecrets(holding(netproto.Secret{2})),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := start(t, 1, "", other), start(t, 2, "", withSecrets(holding(netproto.Secret{1})))
			meet(a, b)
			until(t, "refused", func() bool { return b.Stats().Unproven > 1 })
			until(t, "both logs say so", func() bool {
				return a.logs.count("give every node the same secret") > 0 && b.logs.count("give every node the same secret") > 0
			})
			if a.Connected(2) || b.Connected(1) {
				t.Error("connected")
			}
		})
	}
}

// Strangers at the port for nodes cause one line of each kind, and the rest is counted.
func TestStrangersCauseFewLines(t *testing.T) {
	const attacks = 60
	began := time.Now()
	b := start(t, 2, "", withSecrets(holding(netproto.Secret{1})))
	for range attacks {
		if _, err := Ask(t.Context(), asking(withSecrets(holding(netproto.Secret{2}))), b.node.Address); err == nil {
			t.Fatal("who has another secret is answered")
		}
		nc, err := net.Dial("tcp", b.node.Address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = nc.Write(bytes.Repeat([]byte("x"), 4096))
		_ = nc.SetReadDeadline(time.Now().Add(patience))
		_, _ = io.Copy(io.Discard, nc)
		_ = nc.Close()
	}
	until(t, "all are refused", func() bool { return b.Stats().AcceptFailed == 2*attacks })
	until(t, "the others are counted", func() bool { return b.Stats().LinesLeftOut >= 2*attacks-4 })
	if n, most := b.logs.count("was refused"), 4+2*int(time.Since(began)/time.Minute); n == 0 || n > most {
		t.Errorf("%d lines", n)
	}
}

// The oldest of too many silent connections makes room, so a node gets in although they may stay for a minute.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	b := start(t, 2, "", func(o *Options) { o.Conn.HandshakeTimeout, o.MaxHandshakeCount = time.Minute, 4 })
	var first net.Conn
	for range 10 {
		nc, err := net.Dial("tcp", b.node.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		first = cmp.Or(first, nc)
	}
	until(t, "the oldest were closed", func() bool { return b.Stats().Crowded == 6 })
	_ = first.SetReadDeadline(time.Now().Add(patience))
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest connection: %v", err)
	}
	a := start(t, 1, "")
	meet(a, b)
	connected(t, a, b)
	if n := b.Stats().Crowded; n != 7 {
		t.Errorf("%d were closed for newer ones", n)
	}

	b.LimitHandshakes(5)
	for range 4 {
		nc, err := net.Dial("tcp", b.node.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	until(t, "two have room, and two make room", func() bool { return b.Stats().Crowded == 9 })
}

// authority makes certificates for 127.0.0.1, or for another name.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.issue(template)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// trust makes the TLS part of a node's options; the node trusts authority roots.
func (a *authority) trust(host net.IP, roots *authority) func(*Options) {
	return a.trustUntil(host, roots, time.Now().Add(time.Hour))
}

func (a *authority) trustUntil(host net.IP, roots *authority, until time.Time) func(*Options) {
	return a.trustIn(&x509.Certificate{NotAfter: until, IPAddresses: []net.IP{host}}, roots)
}

// trustIn is trust with this certificate.
func (a *authority) trustIn(template *x509.Certificate, roots *authority) func(*Options) {
	template.SerialNumber = big.NewInt(2)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert, key := a.issue(template)
	pair := []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}
	return func(o *Options) {
		o.Trust.TLS = func() (server, client *tls.Config) {
			server = &tls.Config{
				Certificates: pair, ClientCAs: roots.pool, ClientAuth: tls.RequireAndVerifyClientCert,
				MinVersion: tls.VersionTLS13,
			}
			client = &tls.Config{Certificates: pair, RootCAs: roots.pool, MinVersion: tls.VersionTLS13}
			return server, client
		}
	}
}

// Nodes with certificates of one authority connect and exchange frames; others are refused, and both logs say why.
func TestNodesOverTLS(t *testing.T) {
	here := net.IPv4(127, 0, 0, 1)
	ours, theirs := newAuthority(t), newAuthority(t)
	good := ours.trust(here, ours)
	a, b := start(t, 1, "", good, withSecrets(holding(netproto.Secret{1}))),
		start(t, 2, "", ours.trust(here, ours), withSecrets(holding(netproto.Secret{1})))
	meet(a, b)
	connected(t, a, b)
	for i := range uint64(10) {
		if err := a.TrySend(2, &netproto.Frame{Type: netproto.TypeForwardPut, Request: i}); err != nil {
			t.Fatal(err)
		}
	}
	b.wait("ten frames", func() bool { return len(b.got[1]) == 10 })

	plain, elsewhere := func(*Options) {}, ours.trust(net.IPv4(127, 0, 0, 9), ours)
	for name, c := range map[string]struct {
		a, b       func(*Options)
		inA, inB   string
		unprovenOf string // who counts it
	}{
		"no TLS at the one that dials":     {plain, good, "speak TLS with each other", "does not look like a TLS", "b"},
		"no TLS at the one that is dialed": {good, plain, "does not speak TLS", "speaks TLS", ""},
		"dialed by another authority's":    {theirs.trust(here, ours), good, "tls: ", "certificate", "b"},
		"dialed one of another":            {good, theirs.trust(here, ours), "signed by unknown authority", "tls: ", "b"},
		"for another host":                 {good, elsewhere, "127.0.0.9, not 127.0.0.1", "tls: ", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := start(t, 1, "", c.a), start(t, 2, "", c.b)
			meet(a, b)
			until(t, "refused", func() bool { return a.Stats().Nodes[0].DialFails > 1 && b.Stats().AcceptFailed > 1 })
			until(t, "both logs say why", func() bool { return a.logs.count(c.inA) > 0 && b.logs.count(c.inB) > 0 })
			if a.Connected(2) || b.Connected(1) {
				t.Error("connected")
			}
			if c.unprovenOf == "b" && b.Stats().Unproven == 0 {
				t.Error("it is not counted")
			}
		})
	}
}

// Both sides know the certificate that the other has shown, and who dials also one that has ended.
func TestCertificatesAreShown(t *testing.T) {
	here, ca := net.IPv4(127, 0, 0, 1), newAuthority(t)
	long, short := time.Now().Add(50*time.Minute).Truncate(time.Second), time.Now().Add(-time.Minute).Truncate(time.Second)
	a, b := start(t, 1, "", ca.trustUntil(here, ca, long)), start(t, 2, "", ca.trustUntil(here, ca, long))
	meet(a, b)
	connected(t, a, b)
	ended := start(t, 3, "", ca.trustUntil(here, ca, short))
	a.SetNodes(tableOf(b.node, ended.node))
	until(t, "the certificate that has ended was seen", func() bool { return a.Shown(3) != nil })
	for name, x := range map[string]struct {
		shown *x509.Certificate
		until time.Time
	}{"who was dialed": {a.Shown(2), long}, "who dialed": {b.Shown(1), long}, "ended": {a.Shown(3), short}} {
		if x.shown == nil || !x.shown.NotAfter.Equal(x.until) {
			t.Errorf("%s: %v, want one until %v", name, x.shown, x.until)
		}
	}
	if a.Connected(3) || a.Shown(4) != nil {
		t.Error("a certificate that has ended was taken, or one is known of nobody")
	}
}

// A node with the certificate of another one is not that other one and no third one, whoever dials, and both logs say
// why. A certificate that names no node speaks for all, unless names are required; and none is asked for its names if
// they are ignored.
func TestCertificateSpeaksForItsNode(t *testing.T) {
	ca := newAuthority(t)
	named := func(subject string, dns ...string) func(*Options) {
		return ca.trustIn(&x509.Certificate{
			NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			Subject: pkix.Name{CommonName: subject}, DNSNames: dns,
		}, ca)
	}
	for name, c := range map[string]struct {
		a, b    func(*Options) // a dials
		rule    Names
		connect bool
	}{
		"own names":                          {named("n1"), named("x", "y", "n2"), NamesRequired, true},
		"the dialer has another's":           {named("n2"), named("n2"), NamesOfNodes, false},
		"the dialed one has another's":       {named("n1"), named("", "n1"), NamesOfNodes, false},
		"one for all":                        {named("x", "n1", "n2"), named("x", "n1", "n2"), NamesOfNodes, true},
		"no names":                           {named("x"), named("", "host"), NamesOfNodes, true},
		"the dialer has none, required":      {named("x"), named("n2"), NamesRequired, false},
		"the dialed one has none, required":  {named("n1"), named("x"), NamesRequired, false},
		"another's, ignored":                 {named("n2"), named("n1"), NamesIgnored, true},
		"a part of a name, and another case": {named("n1"), named("N2", "n2.example", "n"), NamesRequired, false},
	} {
		t.Run(name, func(t *testing.T) {
			ruled := func(o *Options) { o.Trust.Names = c.rule }
			a, b := start(t, 1, "", c.a, ruled), start(t, 2, "", c.b, ruled)
			meet(a, b)
			if c.connect {
				connected(t, a, b)
				return
			}
			until(t, "refused", func() bool { return a.Stats().Nodes[0].DialFails > 1 })
			const why = "so it does not speak for that node"
			until(t, "both logs say why", func() bool { return a.logs.count(why) > 0 && b.logs.count(why) > 0 })
			// The one that is dialed has accepted before it hears of the refusal.
			if strings.HasPrefix(name, "the dialer") && (b.Connected(1) || b.Stats().Unproven == 0) || a.Connected(2) {
				t.Error("connected, or not counted")
			}
		})
	}
}
