package native

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
	"penstock/tests/support/authtest"
	"penstock/tests/support/faultaio"
)

const patience = 20 * time.Second

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// world is a Server on a real engine, and what its audit was told.
type world struct {
	t       testing.TB
	e       *node.Engine
	s       *Server
	served  chan error
	stopped bool
	disk    *faultaio.Disk // of openOnDisk
	crashed bool

	mu       sync.Mutex
	refusals []refusal
}

// open opens an engine and serves it. edit changes the options; nil: none.
func open(t testing.TB, edit func(*Options)) *world {
	t.Helper()
	return serveEngine(t, node.Options{DataPath: t.TempDir(), Logger: quiet}, edit)
}

// openOnDisk is open for an engine on a simulated disk: see world.crash.
func openOnDisk(t testing.TB, edit func(*Options)) *world {
	t.Helper()
	disk := faultaio.New(faultaio.Options{Seed: 1, Log: true})
	w := serveEngine(t, node.Options{Disk: disk, Logger: quiet}, edit)
	w.disk = disk
	return w
}

// crash cuts the power, and opens what that leaves.
func (w *world) crash() *world {
	w.t.Helper()
	left := w.disk.Crash(1)
	w.stop()
	_ = w.e.Close() // what it writes is lost
	w.crashed = true
	after := serveEngine(w.t, node.Options{Disk: left, Logger: quiet}, nil)
	after.disk = left
	return after
}

// serveEngine opens an engine with some options and serves it.
func serveEngine(t testing.TB, eo node.Options, edit func(*Options)) *world {
	t.Helper()
	e, err := node.Open(t.Context(), eo)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, e: e, served: make(chan error, 1)}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Listener: ln, Logger: quiet, Refused: func(e audit.Entry, why string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.refusals = append(w.refusals, refusal{e, why})
	}, Answers: flusher(t, e, true), HandshakeTimeout: patience}
	if edit != nil {
		edit(&o)
	}
	if w.s, err = Listen(e, o); err != nil {
		t.Fatal(err)
	}
	go func() { w.served <- w.s.Serve() }()
	t.Cleanup(func() {
		w.stop()
		if err := e.Close(); err != nil && !w.crashed {
			t.Error(err)
		}
	})
	return w
}

// stop shuts the server down, once.
func (w *world) stop() {
	if w.stopped {
		return
	}
	w.stopped = true
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.s.Shutdown(ctx); err != nil {
		w.t.Errorf("Shutdown: %v", err)
	}
	if err := <-w.served; err != nil {
		w.t.Errorf("Serve: %v", err)
	}
	if m := w.s.Meter(); m.Connections != 0 || m.Strangers != 0 || m.InFlight != 0 {
		w.t.Errorf("after Shutdown: %+v", m)
	}
}

// refusal is what Options.Refused was told.
type refusal struct {
	audit.Entry
	Why string
}

func (w *world) refused() []refusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]refusal(nil), w.refusals...)
}

// tokens makes an Authority of a file of tokens, each with its grant, and returns it with the file's name.
func tokens(t testing.TB, grants map[string]string) (*auth.Authority, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens.toml")
	writeTokens(t, name, grants)
	o := auth.Options{File: name}
	if err := o.SetDefaults(); err != nil {
		t.Fatal(err)
	}
	a, err := auth.Open(&o)
	if err != nil {
		t.Fatal(err)
	}
	return a, name
}

func writeTokens(t testing.TB, name string, grants map[string]string) {
	t.Helper()
	text := ""
	for secret, grant := range grants {
		text += authtest.Token("of "+secret, secret, grant)
	}
	authtest.Write(t, name, text)
}

const (
	mayPublish = `permissions = ["publish"]` + "\n" + `topics = ["orders"]`
	mayView    = `permissions = ["view"]` + "\n" + `topics = ["*"]`
)

// frame is what a client received.
type frame struct {
	netproto.Header
	payload []byte
}

// client is a netproto connection to the server; it is the Handler of its own frames.
type client struct {
	t      testing.TB
	c      *netproto.Conn
	frames chan frame
	gate   chan struct{} // if not nil, Frames waits until it is closed
	ended  chan error
	next   uint64
}

func (c *client) Frames(_ *netproto.Conn, frames []netproto.Received) error {
	if c.gate != nil {
		<-c.gate
	}
	for _, f := range frames {
		c.frames <- frame{f.Header, append([]byte(nil), f.Payload...)}
	}
	return nil
}

func (c *client) Closed(_ *netproto.Conn, err error) { c.ended <- err }

func clientHello() netproto.Hello {
	return netproto.Hello{Role: netproto.RoleClient, MinVersion: 1, MaxVersion: 1}
}

// try connects; edit changes the options.
func (w *world) try(edit func(*netproto.Options)) (*client, error) {
	w.t.Helper()
	return w.tryFrom("127.0.0.1", edit)
}

// tryFrom is try from another address of this machine.
func (w *world) tryFrom(ip string, edit func(*netproto.Options)) (*client, error) {
	w.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	nc, err := d.Dial("tcp", w.s.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	c := &client{t: w.t, frames: make(chan frame, 1<<16), ended: make(chan error, 1)}
	o := netproto.Options{Hello: clientHello(), Handler: c, HandshakeTimeout: patience, SilenceTimeout: patience}
	if edit != nil {
		edit(&o)
	}
	if c.c, err = netproto.Connect(context.Background(), nc, o); err != nil {
		return nil, err
	}
	w.t.Cleanup(func() { c.c.Abort(nil) })
	return c, nil
}

func (w *world) dial() *client {
	w.t.Helper()
	c, err := w.try(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// dialFrom is dial from another address of this machine.
func (w *world) dialFrom(ip string) *client {
	w.t.Helper()
	c, err := w.tryFrom(ip, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// send sends a request and returns its id.
func (c *client) send(typ netproto.Type, m wire.Payload) uint64 {
	c.t.Helper()
	c.next++
	f := &netproto.Frame{Type: typ, Request: c.next, Head: wire.Append(nil, m)}
	if err := c.c.Send(c.t.Context(), f); err != nil {
		c.t.Fatal(err)
	}
	return c.next
}

// receive returns the next frame from the server.
func (c *client) receive() frame {
	c.t.Helper()
	select {
	case f := <-c.frames:
		return f
	case err := <-c.ended:
		c.ended <- err
		select {
		case f := <-c.frames:
			return f
		default:
		}
		c.t.Fatalf("the connection ended: %v", err)
	case <-time.After(patience):
		c.t.Fatal("nothing came")
	}
	panic("unreachable")
}

// answer returns the next frame that is not an announcement of changed metadata, which may come between any two others.
func (c *client) answer() frame {
	c.t.Helper()
	f := c.receive()
	for f.Type == wire.TypeMetadataReply && f.Request == 0 {
		f = c.receive()
	}
	return f
}

// end waits until the connection has ended.
func (c *client) end() error {
	c.t.Helper()
	select {
	case err := <-c.ended:
		c.ended <- err
		return err
	case <-time.After(patience):
		c.t.Fatal("the connection does not end")
	}
	panic("unreachable")
}

// refusal receives a refusal and checks it.
func (c *client) refusal(request uint64, answer netproto.Type, status netproto.Status) wire.Outcome {
	c.t.Helper()
	f := c.answer()
	var out wire.Outcome
	if f.Type == netproto.TypeError {
		out.Text = string(f.payload)
	} else if err := wire.Decode(f.payload, &out); err != nil {
		c.t.Fatal(err)
	}
	if f.Type != answer || f.Request != request || f.Status != status || out.Text == "" {
		c.t.Fatalf("%v %v for request %d: %q; want %v %v for %d", f.Type, f.Status, f.Request, out.Text, answer, status,
			request)
	}
	return out
}

func (c *client) login(secret string) {
	c.t.Helper()
	id := c.send(wire.TypeAuth, &wire.Auth{Token: secret, Client: "test"})
	if f := c.answer(); f.Type != wire.TypeAuthAck || f.Request != id || f.Status != netproto.StatusOK {
		c.t.Fatalf("%+v", f.Header)
	}
}

// metadata receives a Metadata, which answers the request, or announces a change (0).
func (c *client) metadata(request uint64) *wire.Metadata {
	c.t.Helper()
	next := c.receive
	if request != 0 {
		next = c.answer
	}
	f := next()
	m := new(wire.Metadata)
	if f.Type != wire.TypeMetadataReply || f.Status != netproto.StatusOK || f.Request != request {
		c.t.Fatalf("%v %v for request %d, want metadata for %d", f.Type, f.Status, f.Request, request)
	}
	if err := wire.Decode(f.payload, m); err != nil {
		c.t.Fatal(err)
	}
	return m
}

func (c *client) ask(create bool, topics ...string) *wire.Metadata {
	c.t.Helper()
	return c.metadata(c.send(wire.TypeMetadata, &wire.MetadataRequest{Topics: topics, Create: create}))
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%v, want %v", err, want)
	}
}
