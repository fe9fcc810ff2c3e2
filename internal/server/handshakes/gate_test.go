package handshakes

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"math/big"
	"net"
	"testing"
	"time"

	"penstock/internal/sparing"

	"penstock/netproto"
)

const patience = 20 * time.Second

// heldKey signs when the test lets it.
type heldKey struct {
	crypto.Signer
	begun, let chan struct{}
}

func (k *heldKey) Sign(r io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.begun <- struct{}{}
	<-k.let
	return k.Signer.Sign(r, digest, opts)
}

// world is a gate with one slot on loopback.
type world struct {
	t    *testing.T
	gate *Gate
	key  *heldKey
	cfg  tls.Config // of the server
	addr string
}

func newWorld(t *testing.T, most int, change ...func(*world)) *world {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, gate: New(most, sparing.New(slog.New(slog.DiscardHandler))),
		key: &heldKey{Signer: key, begun: make(chan struct{}), let: make(chan struct{})},
	}
	w.gate.free, w.gate.patience = 1, patience
	w.cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: w.key}}
	for _, f := range change {
		f(w)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	w.addr = ln.Addr().String()
	secure := Listener(ln, w.gate.Config(func(*tls.ClientHelloInfo) *tls.Config { return w.cfg.Clone() }))
	go func() {
		for {
			nc, err := secure.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				_, _ = io.Copy(nc, nc)
			}()
		}
	}()
	return w
}

// dial begins a handshake, whose result arrives in the channel. wrap may change the connection.
func (w *world) dial(cfg *tls.Config, wrap func(net.Conn) net.Conn) chan error {
	w.t.Helper()
	nc, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	if wrap != nil {
		nc = wrap(nc)
	}
	if cfg == nil {
		cfg = &tls.Config{}
	}
	cfg.InsecureSkipVerify = true
	done := make(chan error, 1)
	go func() { done <- tls.Client(nc, cfg).Handshake() }()
	return done
}

func (w *world) await(what string, cond func(c Counts) bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !cond(w.gate.Counts()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("never: %s: %+v", what, w.gate.Counts())
		}
	}
}

// queue lets n handshakes wait behind one that holds the slot, which comes first in the result.
func (w *world) queue(n int) (all []chan error) {
	w.t.Helper()
	all = append(all, w.dial(nil, nil))
	w.begins()
	for i := range n {
		all = append(all, w.dial(nil, nil))
		w.await("the next one waits", func(c Counts) bool { return c.Waiting == i+1 })
	}
	return all
}

// begins waits until a signature has begun, sign lets it end.
func (w *world) begins() {
	w.t.Helper()
	select {
	case <-w.key.begun:
	case <-time.After(patience):
		w.t.Fatal("no signature begins")
	}
}

func (w *world) sign() {
	w.t.Helper()
	select {
	case w.key.let <- struct{}{}:
	case <-time.After(patience):
		w.t.Fatal("no signature waits")
	}
}

func (w *world) succeeds(done chan error) {
	w.t.Helper()
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) busy(done chan error) {
	w.t.Helper()
	if err := <-done; !netproto.IsBusy(err) {
		w.t.Fatalf("%v: the client is not told that the node is busy", err)
	}
}

// One slot computes one signature at a time, and the newest client is next: it has lost the least of its patience.
func TestNewestFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	all := w.queue(3)
	for _, i := range []int{0, 3, 2, 1} {
		w.sign()
		w.succeeds(all[i])
		if i != 1 {
			w.begins()
		}
	}
	if c := w.gate.Counts(); c != (Counts{Computed: 4}) {
		t.Errorf("%+v", c)
	}
}

// Who has waited for too long is refused, and so is the oldest if too many wait. Nothing is signed for them.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	all := w.queue(2)
	all = append(all, w.dial(nil, nil))
	w.busy(all[1])
	w.sign()
	w.succeeds(all[0])
	w.begins()
	w.sign()
	w.succeeds(all[3])
	w.begins()
	w.sign()
	w.succeeds(all[2])
	if c := w.gate.Counts(); c != (Counts{Computed: 3, Refused: 1}) {
		t.Errorf("%+v", c)
	}

	w = newWorld(t, 2, func(w *world) { w.gate.patience = 50 * time.Millisecond })
	all = append(w.queue(0), w.dial(nil, nil))
	w.busy(all[1])
	if c := w.gate.Counts(); c != (Counts{Computed: 1, Refused: 1}) {
		t.Errorf("%+v", c)
	}
	w.sign()
	w.succeeds(all[0])
}

// A client that goes while it waits takes no slot with it.
func TestGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10)
	held := &turn{gate: w.gate, answer: make(chan bool, 1)}
	if err := held.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (&turn{gate: w.gate, answer: make(chan bool, 1)}).enter(gone) }()
	w.await("it waits", func(c Counts) bool { return c.Waiting == 1 })
	cancel()
	if err := <-ended; err == nil {
		t.Error("it got the slot of another one")
	}
	held.leave()
	held.leave() // a slot is given back once
	next := w.queue(0)[0]
	w.sign()
	w.succeeds(next)
	w.await("the slot has rested", func(Counts) bool {
		w.gate.mu.Lock()
		defer w.gate.mu.Unlock()
		return w.gate.free > 0
	})
	if w.gate.free != 1 {
		t.Errorf("%d slots", w.gate.free)
	}
}

// stalled is the connection of a client that sends its first flight, and the rest when the test lets it.
type stalled struct {
	net.Conn
	flights int
	let     chan struct{}
}

func (s *stalled) Write(p []byte) (int, error) {
	if s.flights++; s.flights > 1 {
		<-s.let
	}
	return s.Conn.Write(p)
}

// The slot covers the computation, not the wait for a client's bytes: neither for its first, nor for its last ones, nor
// for those that a node has to ask for again because it does not like the client's curve.
func TestSlowClientsHoldNothing(t *testing.T) {
	t.Parallel()
	for name, curves := range map[string][]tls.CurveID{
		"at the end": nil, "in the middle": {tls.CurveP256, tls.CurveP384},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 10, func(w *world) {
				if curves != nil {
					w.cfg.CurvePreferences = curves[1:]
				}
			})
			silent, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
			let := make(chan struct{})
			slow := w.dial(&tls.Config{CurvePreferences: curves}, func(nc net.Conn) net.Conn {
				return &stalled{Conn: nc, let: let}
			})
			if curves == nil {
				w.begins()
				w.sign()
			}
			for range 2 {
				other := w.dial(nil, nil)
				w.begins()
				w.sign()
				w.succeeds(other)
			}
			close(let)
			if curves != nil {
				w.begins()
				third := w.dial(nil, nil)
				w.await("one at a time, also after a second question", func(c Counts) bool { return c.Waiting == 1 })
				w.sign()
				w.succeeds(slow)
				w.begins()
				w.sign()
				w.succeeds(third)
				return
			}
			w.succeeds(slow)
		})
	}
}

// A third of the time belongs to other work: after a signature the slot rests for half as long as that took.
func TestSlotsRest(t *testing.T) {
	t.Parallel()
	const work = 30 * time.Millisecond
	w := newWorld(t, 10)
	all := w.queue(4)
	for i := range all {
		began := time.Now()
		time.Sleep(work) // the work
		w.sign()
		if i == len(all)-1 {
			break
		}
		w.begins()
		if took := time.Since(began); took < work+work/2 {
			t.Fatalf("after %v of work the next one began after %v", work, took-work)
		}
	}
	for _, done := range all {
		w.succeeds(done)
	}
}

// Keys of tickets come from the key of the certificate, and change with the day; those of yesterday are still good.
func TestTicketKeys(t *testing.T) {
	secrets := make([]Secret, 2)
	for i := range secrets {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if secrets[i], err = SecretOf(key); err != nil {
			t.Fatal(err)
		}
		if again, _ := SecretOf(key); again != secrets[i] {
			t.Error("a restart would forget all tickets")
		}
	}
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	today, next := secrets[0].Keys(now), secrets[0].Keys(now.Add(24*time.Hour))
	if today[0] != next[1] || today[0] == next[0] || today[1] == today[0] || today[0] == secrets[1].Keys(now)[0] ||
		today[0] == secrets[0] {
		t.Errorf("%x, %x", today, next)
	}
}

// netproto asks the socket below TLS whether a slow link is steady.
func TestSocketIsFound(t *testing.T) {
	socket, peer := net.Pipe()
	defer socket.Close()
	defer peer.Close()
	if c, ok := Server(socket, nil).NetConn().(interface{ NetConn() net.Conn }); !ok || c.NetConn() != socket {
		t.Error("the socket cannot be found")
	}
}
