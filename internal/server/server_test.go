package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	waits "penstock/internal/patience"
)

// patience bounds every wait in the tests. It is far longer than a loaded machine needs, so only a test that hangs
// reaches it.
var patience = waits.Or(90 * time.Second)

// testNode is a server over a real engine in a directory of its own.
type testNode struct {
	*Server
	e    *node.Engine
	base string
}

func startNode(t testing.TB, eo node.Options, o Options) *testNode {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	eo.Logger = quiet
	if eo.Disk == nil {
		eo.DataPath = t.TempDir()
	}
	eo.BufferBytes = cmp.Or(eo.BufferBytes, 16<<20) // the ring touches all of it
	e, err := node.Open(context.Background(), eo)
	if err != nil {
		t.Fatal(err)
	}
	o.Hostname = "testhost"
	for _, address := range []*string{&o.TCPAddress, &o.HTTPAddress, &o.LookupAddress} {
		*address = cmp.Or(*address, "127.0.0.1:0")
	}
	if o.Logger == nil {
		o.Logger = quiet
	}
	s, err := Listen(e, o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := e.Close(); err != nil && !errors.Is(err, node.ErrClosed) { // a test may have closed it
			t.Errorf("Close: %v", err)
		}
	})
	return &testNode{Server: s, e: e, base: "http://" + s.HTTPAddr().String()}
}

func (n *testNode) post(t testing.TB, path, body string) {
	t.Helper()
	if code, got := n.do(t, "POST", path, body); code != 200 {
		t.Fatalf("POST %s: %d %s", path, code, got)
	}
}

func (n *testNode) do(t testing.TB, method, path, body string) (int, string) {
	t.Helper()
	reply, got := request(t, method, n.base+path, body)
	return reply.StatusCode, got
}

// request sends a request with headers, given as alternating names and values, and returns the answer and its body.
func request(t testing.TB, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	b, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply, string(b)
}

// topicNow returns the statistics of the topic, which must exist.
func (n *testNode) topicNow(t testing.TB, name string) node.TopicStats {
	t.Helper()
	s := n.e.Stats(name, "")
	if len(s) != 1 {
		t.Fatalf("topic %s: %d in the statistics", name, len(s))
	}
	return s[0]
}

// eventually polls for an effect of other goroutines that no frame reports.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// client is a V2 client that does only what a test tells it to.
type client struct {
	t  testing.TB
	nc *net.TCPConn
	w  io.Writer // writes to nc, through the negotiated TLS and compression
	br *bufio.Reader

	under *bufferedConn // the connection below TLS
}

func (n *testNode) dialRaw(t testing.TB) *client {
	t.Helper()
	return n.dialFrom(t, "")
}

// dialFrom connects from an address of this machine; "": the usual one.
func (n *testNode) dialFrom(t testing.TB, ip string) *client {
	t.Helper()
	var d net.Dialer
	if ip != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(ip)}
	}
	nc, err := d.Dial("tcp", n.TCPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return &client{t: t, nc: nc.(*net.TCPConn), w: nc, br: bufio.NewReader(nc)}
}

func (n *testNode) dial(t testing.TB) *client {
	c := n.dialRaw(t)
	c.send(magic)
	return c
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c.w, s); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// frame reads one frame.
func (c *client) frame(wait time.Duration) (kind uint32, data []byte, err error) {
	if err := c.nc.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return 0, nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(c.br, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > 6<<20 {
		return 0, nil, fmt.Errorf("a frame of %d bytes", size)
	}
	data = make([]byte, size-4)
	_, err = io.ReadFull(c.br, data)
	return binary.BigEndian.Uint32(head[4:]), data, err
}

// next returns the next frame that is no heartbeat: on a busy machine, a test may take longer than their interval.
func (c *client) next() (kind uint32, data []byte, err error) {
	c.t.Helper()
	for {
		kind, data, err = c.frame(patience)
		if err != nil || kind != frameResponse || string(data) != "_heartbeat_" {
			return kind, data, err
		}
		c.send("NOP\n")
	}
}

// expect requires that this frame comes next.
func (c *client) expect(kind uint32, data string) {
	c.t.Helper()
	next := c.next
	if data == "_heartbeat_" {
		next = func() (uint32, []byte, error) { return c.frame(patience) }
	}
	k, d, err := next()
	if err != nil || k != kind || string(d) != data {
		c.t.Fatalf("want frame %d %.80q, got %d %.200q, %v", kind, data, k, d, err)
	}
}

func (c *client) ok() { c.t.Helper(); c.expect(frameResponse, "OK") }

// closed requires that the connection ends, with nothing before that.
func (c *client) closed() {
	c.t.Helper()
	if k, d, err := c.frame(patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("want the connection closed, got %d %.200q, %v", k, d, err)
	}
}

func (c *client) fatal(text string) {
	c.t.Helper()
	c.expect(frameError, text)
	c.closed()
}

// silent requires that no frame arrives for a moment.
func (c *client) silent(d time.Duration) {
	c.t.Helper()
	if k, data, err := c.frame(d); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("want silence, got %d %.200q, %v", k, data, err)
	}
}

type message struct {
	id       string
	attempts int
	body     string
}

func (c *client) message() message {
	c.t.Helper()
	k, d, err := c.next()
	if err != nil || k != frameMessage || len(d) < messageHeaderBytes {
		c.t.Fatalf("want a message, got %d %.200q, %v", k, d, err)
	}
	return message{string(d[10:26]), int(binary.BigEndian.Uint16(d[8:])), string(d[26:])}
}

func (c *client) identify(json string) {
	c.t.Helper()
	c.send("IDENTIFY\n" + sized(json))
	if k, d, err := c.next(); err != nil || k != frameResponse {
		c.t.Fatalf("IDENTIFY: %d %q %v", k, d, err)
	}
}

func (c *client) sub(topic, channel string) {
	c.t.Helper()
	c.send("SUB " + topic + " " + channel + "\n")
	c.ok()
}

func pub(topic, body string) string { return "PUB " + topic + "\n" + sized(body) }
