package workload

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	dialTimeout = time.Second
	// maxFrameBytes is far above what a test sends.
	maxFrameBytes = 16 << 20

	frameResponse = 0
	frameError    = 1
	frameMessage  = 2

	heartbeat = "_heartbeat_"
)

// conn is a connection that speaks V2. One goroutine reads; whoever writes holds mu until its commands are flushed.
type conn struct {
	net.Conn
	in  *bufio.Reader
	mu  sync.Mutex
	out *bufio.Writer
	buf []byte
}

func dial(ctx context.Context, address string) (*conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, in: bufio.NewReaderSize(nc, 64<<10), out: bufio.NewWriterSize(nc, 64<<10)}
	_, _ = c.out.WriteString("  V2") // an error stays with the writer
	return c, nil
}

// command writes a command with an optional body; flush sends it.
func (c *conn) command(line string, body []byte) {
	_, _ = c.out.WriteString(line)
	_ = c.out.WriteByte('\n')
	if body != nil {
		_ = binary.Write(c.out, binary.BigEndian, uint32(len(body)))
		_, _ = c.out.Write(body)
	}
}

func (c *conn) flush() error { return c.out.Flush() }

// frame reads one; data is borrowed until the next call.
func (c *conn) frame() (kind uint32, data []byte, err error) {
	head, err := c.in.Peek(8)
	if err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head)
	kind = binary.BigEndian.Uint32(head[4:])
	if size < 4 || size > maxFrameBytes {
		return 0, nil, fmt.Errorf("a frame of %d bytes", size)
	}
	n := int(size) - 4
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	if _, err := c.in.Discard(8); err != nil {
		return 0, nil, err
	}
	_, err = io.ReadFull(c.in, c.buf[:n])
	return kind, c.buf[:n], err
}

// Classes of what has no answer, for the history. NoConnection is the only certain one.
const (
	NoConnection = "no connection: it was never sent"
	timedOut     = "no answer in time"
	broken       = "the connection ended"
)

// classOf names an error of a connection.
func classOf(err error) string {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return timedOut
	}
	return broken
}

// certain are the words by which the engine says that nothing of a request is in the log. Everything else is unknown:
// calling a doubtful error a failure would make the checker accuse the engine of its own honesty.
var certain = []string{
	"nothing was stored", "nothing of it was stored", "nothing of this request was stored", "publishing is refused",
}

// definite says whether an error of the protocol means that the message certainly will not appear.
func definite(text string) bool {
	if strings.HasPrefix(text, "E_BAD_") || strings.HasPrefix(text, "E_INVALID") {
		return true // it did not parse
	}
	for _, words := range certain {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// Ended says whether an unknown outcome's class is that of a connection that ended.
func Ended(class string) bool {
	return class == broken || class == "not connected" || strings.Contains(class, "EOF") // the last two are go-nsq's words
}
