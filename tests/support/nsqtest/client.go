package nsqtest

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

	waits "penstock/tests/support/patience"
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

// Patience bounds every wait in the tests. It is far longer than a loaded machine needs, so only a test that hangs
// reaches it.
var Patience = waits.Or(90 * time.Second)

// Client is a V2 Client that does only what a test tells it to.
type Client struct {
	T    testing.TB
	Conn *net.TCPConn
	W    io.Writer // writes to nc, through the negotiated TLS and compression
	R    *bufio.Reader

	Under *bufferedConn // the connection below TLS
}

// Dial connects to a server from an address of this machine; "": the usual one.
func Dial(t testing.TB, to net.Addr, from string) *Client {
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
	return New(t, nc)
}

// New returns the client at the end of a connection.
func New(t testing.TB, nc net.Conn) *Client {
	t.Helper()
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T is no TCP connection", nc)
	}
	return &Client{T: t, Conn: tcp, W: nc, R: bufio.NewReader(nc)}
}

func (c *Client) Send(s string) {
	c.T.Helper()
	if _, err := io.WriteString(c.W, s); err != nil {
		c.T.Fatalf("send: %v", err)
	}
}

// Frame reads one Frame.
func (c *Client) Frame(wait time.Duration) (kind uint32, data []byte, err error) {
	if err := c.Conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return 0, nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(c.R, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > 6<<20 {
		return 0, nil, fmt.Errorf("a frame of %d bytes", size)
	}
	data = make([]byte, size-4)
	_, err = io.ReadFull(c.R, data)
	return binary.BigEndian.Uint32(head[4:]), data, err
}

// Next returns the Next frame that is no heartbeat: on a busy machine, a test may take longer than their interval.
func (c *Client) Next() (kind uint32, data []byte, err error) {
	c.T.Helper()
	for {
		kind, data, err = c.Frame(Patience)
		if err != nil || kind != FrameResponse || string(data) != "_heartbeat_" {
			return kind, data, err
		}
		c.Send("NOP\n")
	}
}

// Expect requires that this frame comes next.
func (c *Client) Expect(kind uint32, data string) {
	c.T.Helper()
	next := c.Next
	if data == "_heartbeat_" {
		next = func() (uint32, []byte, error) { return c.Frame(Patience) }
	}
	k, d, err := next()
	if err != nil || k != kind || string(d) != data {
		c.T.Fatalf("want frame %d %.80q, got %d %.200q, %v", kind, data, k, d, err)
	}
}

func (c *Client) OK() { c.T.Helper(); c.Expect(FrameResponse, "OK") }

// Closed requires that the connection ends, with nothing before that.
func (c *Client) Closed() {
	c.T.Helper()
	if k, d, err := c.Frame(Patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.T.Fatalf("want the connection closed, got %d %.200q, %v", k, d, err)
	}
}

func (c *Client) Fatal(text string) {
	c.T.Helper()
	c.Expect(FrameError, text)
	c.Closed()
}

// Silent requires that no frame arrives for a moment.
func (c *Client) Silent(d time.Duration) {
	c.T.Helper()
	if k, data, err := c.Frame(d); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.T.Fatalf("want silence, got %d %.200q, %v", k, data, err)
	}
}

type Message struct {
	ID       string
	Attempts int
	Body     string
}

func (c *Client) Message() Message {
	c.T.Helper()
	k, d, err := c.Next()
	if err != nil || k != FrameMessage || len(d) < MessageHeaderBytes {
		c.T.Fatalf("want a message, got %d %.200q, %v", k, d, err)
	}
	return Message{string(d[10:26]), int(binary.BigEndian.Uint16(d[8:])), string(d[26:])}
}

func (c *Client) Identify(json string) {
	c.T.Helper()
	c.Send("IDENTIFY\n" + Sized(json))
	if k, d, err := c.Next(); err != nil || k != FrameResponse {
		c.T.Fatalf("IDENTIFY: %d %q %v", k, d, err)
	}
}

func (c *Client) Sub(topic, channel string) {
	c.T.Helper()
	c.Send("SUB " + topic + " " + channel + "\n")
	c.OK()
}

func Pub(topic, body string) string { return "PUB " + topic + "\n" + Sized(body) }

func U32(n int) string { return string(binary.BigEndian.AppendUint32(nil, uint32(n))) }

func Sized(body string) string { return U32(len(body)) + body }

func BatchBody(messages ...string) string {
	s := U32(len(messages))
	for _, m := range messages {
		s += Sized(m)
	}
	return s
}

// BegunMpub is the beginning of an MPUB of 5 MiB: its head and so many bytes of its first message.
func BegunMpub(arrived int) string {
	return "MPUB t\n" + U32(5<<20) + U32(1) + U32(1<<20) + strings.Repeat("x", arrived)
}

// Eventually polls for an effect of other goroutines that no frame reports.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func U16(n int) string    { return string(binary.BigEndian.AppendUint16(nil, uint16(n))) }
func U64(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

func WithExt(ext, body string) string { return U16(len(ext)) + ext + body }

// FinishNext receives the next count messages and finishes them one by one, each with a write of its own. Until all
// have come it holds the last hold messages, so that the consumer has work all the time. It returns how often each
// body came.
func (c *Client) FinishNext(hold, count int) map[string]int {
	got, held := map[string]int{}, []string(nil)
	for i := range count {
		m := c.Message()
		got[m.Body]++
		held = append(held, m.ID)
		for len(held) > hold || i == count-1 && len(held) > 0 {
			c.Send("FIN " + held[0] + "\n")
			held = held[1:]
		}
	}
	return got
}
