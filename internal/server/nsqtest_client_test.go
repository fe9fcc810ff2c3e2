package server

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	waits "penstock/internal/patience"
)

// Parts of frames, as clients see them.
const (
	Magic = "  V2"

	FrameResponse = 0
	FrameError    = 1
	FrameMessage  = 2

	FrameHeaderBytes   = 8          // size, type
	MessageHeaderBytes = 8 + 2 + 16 // timestamp, attempts, id
	OKFrameBytes       = FrameHeaderBytes + 2
)

// patience bounds every wait in the tests. It is far longer than a loaded machine needs, so only a test that hangs
// reaches it.
var patience = waits.Or(90 * time.Second)

// client is a V2 client that does only what a test tells it to.
type client struct {
	t  testing.TB
	nc *net.TCPConn
	w  io.Writer // writes to nc, through the negotiated TLS and compression
	br *bufio.Reader

	under *bufferedConn // the connection below TLS
}

// dialClient connects to a server from an address of this machine; "": the usual one.
func dialClient(t testing.TB, to net.Addr, from string) *client {
	t.Helper()
	var d net.Dialer
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	nc, err := d.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return newClient(t, nc)
}

// newClient returns the client at the end of a connection.
func newClient(t testing.TB, nc net.Conn) *client {
	t.Helper()
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T is no TCP connection", nc)
	}
	return &client{t: t, nc: tcp, w: nc, br: bufio.NewReader(nc)}
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
		if err != nil || kind != FrameResponse || string(data) != "_heartbeat_" {
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

func (c *client) ok() { c.t.Helper(); c.expect(FrameResponse, "OK") }

// closed requires that the connection ends, with nothing before that.
func (c *client) closed() {
	c.t.Helper()
	if k, d, err := c.frame(patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("want the connection closed, got %d %.200q, %v", k, d, err)
	}
}

func (c *client) fatal(text string) {
	c.t.Helper()
	c.expect(FrameError, text)
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
	if err != nil || k != FrameMessage || len(d) < MessageHeaderBytes {
		c.t.Fatalf("want a message, got %d %.200q, %v", k, d, err)
	}
	return message{string(d[10:26]), int(binary.BigEndian.Uint16(d[8:])), string(d[26:])}
}

func (c *client) identify(json string) {
	c.t.Helper()
	c.send("IDENTIFY\n" + sized(json))
	if k, d, err := c.next(); err != nil || k != FrameResponse {
		c.t.Fatalf("IDENTIFY: %d %q %v", k, d, err)
	}
}

func (c *client) sub(topic, channel string) {
	c.t.Helper()
	c.send("SUB " + topic + " " + channel + "\n")
	c.ok()
}

func pub(topic, body string) string { return "PUB " + topic + "\n" + sized(body) }

func u32(n int) string { return string(binary.BigEndian.AppendUint32(nil, uint32(n))) }

func sized(body string) string { return u32(len(body)) + body }

func batchBody(messages ...string) string {
	s := u32(len(messages))
	for _, m := range messages {
		s += sized(m)
	}
	return s
}

// begunMpub is the beginning of an MPUB of 5 MiB: its head and so many bytes of its first message.
func begunMpub(arrived int) string {
	return "MPUB t\n" + u32(5<<20) + u32(1) + u32(1<<20) + strings.Repeat("x", arrived)
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

func u16(n int) string    { return string(binary.BigEndian.AppendUint16(nil, uint16(n))) }
func u64(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

func withExt(ext, body string) string { return u16(len(ext)) + ext + body }

// finishNext receives the next count messages and finishes them one by one, each with a write of its own. Until all
// have come it holds the last hold messages, so that the consumer has work all the time. It returns how often each
// body came.
func (c *client) finishNext(hold, count int) map[string]int {
	got, held := map[string]int{}, []string(nil)
	for i := range count {
		m := c.message()
		got[m.body]++
		held = append(held, m.id)
		for len(held) > hold || i == count-1 && len(held) > 0 {
			c.send("FIN " + held[0] + "\n")
			held = held[1:]
		}
	}
	return got
}
