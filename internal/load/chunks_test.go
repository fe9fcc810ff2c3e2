package load

import (
	"io"
	"net"
)

// chunks is a connection that returns its data in reads of at most step bytes and accepts every write.
type chunks struct {
	net.Conn
	data  []byte
	step  int
	at    int
	again bool // start over at the end
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.at == len(c.data) {
		if !c.again {
			return 0, io.EOF
		}
		c.at = 0
	}
	n := copy(p[:min(c.step, len(p))], c.data[c.at:])
	c.at += n
	return n, nil
}

func (c *chunks) Write(p []byte) (int, error) { return len(p), nil }
