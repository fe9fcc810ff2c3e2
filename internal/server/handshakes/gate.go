// Package handshakes decides which TLS handshakes a node computes, on all its listeners for clients together. When all
// clients come back at once, their signatures (5 ms each with RSA-4096) would take every processor for minutes, and
// clients that have lost patience would be computed for nothing. So only a few are computed at a time; the newest goes
// first, because its client still waits; one that has waited as long as clients do is refused, before anything of it
// was computed; and most of the time is left to all other work.
package handshakes

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/sparing"
)

const (
	// Patience is how long a handshake waits for its turn: clients wait 1 s and longer for a connection.
	Patience = time.Second
	// maxRest bounds the rest of a slot: a process that was stopped for a minute has not worked for a minute.
	maxRest = 100 * time.Millisecond
)

// ErrBusy is why a handshake was refused. The client gets the alert internal_error in clear; package netproto sends
// the same one for a connection that it refuses.
var ErrBusy = errors.New("more TLS clients come than this node can compute handshakes for; nothing of this client " +
	"was taken, and it may try again")

// Gate lets handshakes pass: each holds a slot from its ClientHello until its signature is there or it waits for bytes
// of its client. There is one slot for every two processors that Go uses, so that other work always finds one without a
// signature on it, and a slot rests half as long as it was held, so that all take a third of the processors' time. Any
// goroutine may call its methods. mu is a leaf; its holders call nothing.
type Gate struct {
	patience time.Duration
	log      *sparing.Log

	computed, refused atomic.Uint64

	mu      sync.Mutex
	most    int     // handshakes that wait at a time; for one beyond it the one that has waited longest is refused
	free    int     // slots that are neither held nor resting
	waiting []*turn // in the order of their coming
}

// Counts are what /metrics shows of a Gate.
type Counts struct {
	Waiting           int
	Computed, Refused uint64
}

// New returns a Gate at which at most so many handshakes wait.
func New(most int, log *sparing.Log) *Gate {
	return &Gate{most: most, patience: Patience, log: log, free: max(1, runtime.GOMAXPROCS(0)/2)}
}

// Limit changes how many handshakes wait at most. Those that wait stay.
func (g *Gate) Limit(most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most = most
}

// Counts returns how many handshakes wait now, and what became of the others so far.
func (g *Gate) Counts() Counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Counts{Waiting: len(g.waiting), Computed: g.computed.Load(), Refused: g.refused.Load()}
}

// turn is one handshake at the Gate. Its goroutine and the end of its context use it; Gate.mu guards held and since.
type turn struct {
	gate   *Gate
	answer chan bool // has room for one: the turn holds a slot, or is refused
	held   bool
	since  time.Time // it holds the slot
}

// enter waits until t holds a slot, or returns why it never will.
func (t *turn) enter(ctx context.Context) error {
	g := t.gate
	g.mu.Lock()
	if t.held {
		g.mu.Unlock()
		return nil
	}
	if g.free > 0 {
		g.free--
		t.hold()
		g.mu.Unlock()
		return nil
	}
	g.waiting = append(g.waiting, t)
	if len(g.waiting) > g.most {
		g.waiting[0].answer <- false
		g.waiting = slices.Delete(g.waiting, 0, 1)
	}
	g.mu.Unlock()
	timer := time.NewTimer(g.patience)
	defer timer.Stop()
	granted := false
	select {
	case granted = <-t.answer:
	case <-timer.C:
		granted = g.giveUp(t)
	case <-ctx.Done():
		if g.giveUp(t) {
			t.leave()
		}
		return context.Cause(ctx)
	}
	if !granted {
		g.Refused()
		return ErrBusy
	}
	return nil
}

// hold notes that t has got a slot. mu is held.
func (t *turn) hold() { t.held, t.since = true, time.Now() }

// giveUp ends the waiting of t, and reports whether t got a slot in the same moment.
func (g *Gate) giveUp(t *turn) bool {
	g.mu.Lock()
	i := slices.Index(g.waiting, t)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	g.mu.Unlock()
	return i < 0 && <-t.answer
}

// leave gives the slot back, which rests before it serves the next one. Without a slot it does nothing.
func (t *turn) leave() {
	g := t.gate
	g.mu.Lock()
	if !t.held {
		g.mu.Unlock()
		return
	}
	t.held = false
	rest := min(time.Since(t.since)/2, maxRest)
	g.mu.Unlock()
	time.AfterFunc(rest, g.serve)
}

// serve gives a slot that has rested to the newest handshake that waits.
func (g *Gate) serve() {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.waiting) - 1
	if last < 0 {
		g.free++
		return
	}
	t := g.waiting[last]
	g.waiting[last] = nil
	g.waiting = g.waiting[:last]
	t.hold()
	t.answer <- true
}

// Refused counts a handshake that was refused, also one that never came here, and tells the log.
func (g *Gate) Refused() {
	g.log.Warn("TLS clients come faster than this node can compute their handshakes: those that have waited for "+
		g.patience.String()+" are refused, and may try again; if this goes on, give the node more processors, or a "+
		"certificate with an ECDSA or Ed25519 key, which costs a hundredth of RSA-4096", "refused", g.refused.Add(1))
}

// Config returns a configuration for Server, whose handshakes use what now returns, a copy for each, once they have
// their turn.
func (g *Gate) Config(now func(*tls.ClientHelloInfo) *tls.Config) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, // now's counts
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			c, ok := hello.Conn.(*conn)
			if !ok {
				return nil, fmt.Errorf("BUG: a TLS connection that Gate.Server has not made: %T", hello.Conn)
			}
			ctx := hello.Context() // it ends with the handshake
			t := &turn{gate: g, answer: make(chan bool, 1)}
			if err := t.enter(ctx); err != nil {
				return nil, err
			}
			c.turn = t
			context.AfterFunc(ctx, t.leave)
			cfg := now(hello)
			cfg.Certificates = slices.Clone(cfg.Certificates)
			for i := range cfg.Certificates {
				if key, ok := cfg.Certificates[i].PrivateKey.(crypto.Signer); ok {
					cfg.Certificates[i].PrivateKey = &signer{Signer: key, turn: t, ctx: ctx}
				}
			}
			return cfg, nil
		},
	}
}

// signer is the key of a certificate, for one handshake.
type signer struct {
	crypto.Signer
	turn *turn
	ctx  context.Context
}

// Sign implements crypto.Signer. The turn has its slot still, unless the handshake had to ask its client again.
func (s *signer) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if err := s.turn.enter(s.ctx); err != nil {
		return nil, err
	}
	defer s.turn.leave()
	s.turn.gate.computed.Add(1)
	return s.Signer.Sign(rand, digest, opts)
}

// Server returns a connection whose handshake goes through the Gate that has made cfg.
func Server(nc net.Conn, cfg *tls.Config) *tls.Conn { return tls.Server(&conn{Conn: nc}, cfg) }

// Listener returns a listener of such connections.
func Listener(ln net.Listener, cfg *tls.Config) net.Listener { return &listener{ln, cfg} }

type listener struct {
	net.Listener
	cfg *tls.Config
}

func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Server(nc, l.cfg), nil
}

// conn is what TLS reads from. The goroutine of the handshake sets turn, before any other one may read.
type conn struct {
	net.Conn
	turn *turn
}

// NetConn returns the connection below, as tls.Conn does, for callers that need the socket.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn. Nobody holds a slot while he waits for bytes.
func (c *conn) Read(p []byte) (int, error) {
	if t := c.turn; t != nil {
		c.turn = nil
		t.leave()
	}
	return c.Conn.Read(p)
}
