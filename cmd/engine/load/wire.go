package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The parts of the NSQ V2 protocol that a load generator needs. They are deliberately independent of the server's
// codec: a mistake that both sides shared would not be noticed.
const (
	magic        = "  V2"
	identifyBody = `{"client_id":"bench","user_agent":"penstock-bench/1","feature_negotiation":false,` +
		`"heartbeat_interval":30000}`

	frameResponse = 0
	frameError    = 1
	frameMessage  = 2

	frameHeaderBytes   = 8  // size and type
	messageHeaderBytes = 26 // timestamp, attempts and id in front of a body
	idBytes            = 16

	// MaxFrameBytes is the size of the largest frame that the generator accepts; a larger one is a protocol error.
	MaxFrameBytes = 64 << 20
)

var (
	heartbeat = []byte("_heartbeat_")
	nop       = []byte("NOP\n")
	errFrame  = errors.New("the server sent a frame that is not NSQ's")
)

func appendSized(dst, body []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	return append(dst, body...)
}

// appendPub appends one PUB, or one MPUB of batch equal bodies if batch is above 1. With headers, which are a JSON
// object, it appends youzan's PUB_EXT or MPUB_EXT. The body always comes last in the command.
func appendPub(dst []byte, topic string, headers, body []byte, batch int) []byte {
	verb := "PUB"
	if batch > 1 {
		verb = "MPUB"
	}
	message := body
	if len(headers) > 0 {
		verb += "_EXT"
		message = binary.BigEndian.AppendUint16(nil, uint16(len(headers)))
		message = append(append(message, headers...), body...)
	}
	dst = append(append(append(append(dst, verb...), ' '), topic...), '\n')
	if batch <= 1 {
		return appendSized(dst, message)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+batch*(4+len(message))))
	dst = binary.BigEndian.AppendUint32(dst, uint32(batch))
	for range batch {
		dst = appendSized(dst, message)
	}
	return dst
}

// headersJSON returns count headers as the JSON object of a PUB_EXT: names of 10 bytes and values of 12. For 0 it
// returns nil.
func headersJSON(count int) []byte {
	if count == 0 {
		return nil
	}
	dst := []byte{'{'}
	for i := range count {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = fmt.Appendf(dst, `"header-%03d":"%012x"`, i, uint64(i+1)*0x9e3779b97f4a7c15>>16)
	}
	return append(dst, '}')
}

func appendFin(dst, id []byte) []byte {
	dst = append(dst, "FIN "...)
	dst = append(dst, id...)
	return append(dst, '\n')
}

// dial connects and identifies.
func dial(address string) (*net.TCPConn, *frameReader, error) {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, nil, fmt.Errorf("no node answers at %s: %w", address, err)
	}
	conn := c.(*net.TCPConn)
	r := newFrameReader(conn)
	if err := command(conn, r, appendSized([]byte(magic+"IDENTIFY\n"), []byte(identifyBody))); err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, r, nil
}

// command sends one command and waits for its OK.
func command(conn net.Conn, r *frameReader, cmd []byte) error {
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(cmd); err != nil {
		return err
	}
	for {
		typ, data, ok, err := r.next()
		switch {
		case err != nil:
			return err
		case !ok:
			if err := r.fill(); err != nil {
				return err
			}
		case typ == frameResponse && string(data) == "OK":
			return conn.SetDeadline(time.Time{})
		case typ != frameResponse || string(data) != string(heartbeat):
			return fmt.Errorf("the server refused: %s", data)
		}
	}
}

// frameReader splits the stream into frames. It allocates only to grow its buffer.
type frameReader struct {
	conn io.Reader
	buf  []byte
	r, w int // unread bytes are buf[r:w]
}

func newFrameReader(conn io.Reader) *frameReader {
	return &frameReader{conn: conn, buf: make([]byte, 4<<10)}
}

// next returns the next frame that is completely buffered. Its data are valid until the next fill.
func (f *frameReader) next() (typ uint32, data []byte, ok bool, err error) {
	have := f.buf[f.r:f.w]
	if len(have) < frameHeaderBytes {
		return 0, nil, false, nil
	}
	size := int64(binary.BigEndian.Uint32(have))
	if size < 4 || size > MaxFrameBytes {
		return 0, nil, false, errFrame
	}
	if int64(len(have)) < 4+size {
		return 0, nil, false, nil
	}
	f.r += int(4 + size)
	return binary.BigEndian.Uint32(have[4:]), have[frameHeaderBytes : 4+size], true, nil
}

// fill makes one blocking read. The buffer doubles when a read fills it, or when a frame does not fit.
func (f *frameReader) fill() error {
	if f.r > 0 {
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	if f.w == len(f.buf) {
		f.buf = append(f.buf, make([]byte, len(f.buf))...)
	}
	n, err := f.conn.Read(f.buf[f.w:])
	f.w += n
	if f.w == len(f.buf) && len(f.buf) < maxReadBytes {
		f.buf = append(f.buf, make([]byte, len(f.buf))...)
	}
	if n > 0 {
		return nil
	}
	return err
}

// maxReadBytes bounds the buffer for one read, unless a frame is larger.
const maxReadBytes = 256 << 10
