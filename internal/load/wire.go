package load

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
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
	identifyBody = `{"client_id":"bench","user_agent":"penstock-bench/1","feature_negotiation":%v,"tls_v1":%v,` +
		`"heartbeat_interval":30000}`
	dialTimeout = 5 * time.Second

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
		name, value := headerAt(i)
		dst = fmt.Appendf(dst, `"%s":"%s"`, name, value)
	}
	return append(dst, '}')
}

// headerAt returns header i of every message.
func headerAt(i int) (name, value string) {
	return fmt.Sprintf("header-%03d", i), fmt.Sprintf("%012x", uint64(i+1)*0x9e3779b97f4a7c15>>16)
}

func appendFin(dst, id []byte) []byte {
	dst = append(dst, "FIN "...)
	dst = append(dst, id...)
	return append(dst, '\n')
}

// dial connects, identifies, and where the run has a token or TLS, changes to TLS and logs in.
func dial(cfg *Config) (net.Conn, *frameReader, error) {
	conn, err := net.DialTimeout("tcp", cfg.Address, dialTimeout)
	if err != nil {
		return nil, nil, fmt.Errorf("no node answers at %s: %w", cfg.Address, err)
	}
	secure, r, err := greet(cfg, conn)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return secure, r, nil
}

// greet returns the connection to use from now on.
func greet(cfg *Config, conn net.Conn) (net.Conn, *frameReader, error) {
	negotiate, r := cfg.TLS != nil || cfg.Token != "", newFrameReader(conn)
	body := fmt.Appendf(nil, identifyBody, negotiate, cfg.TLS != nil)
	answer, err := ask(conn, r, appendSized([]byte(magic+"IDENTIFY\n"), body))
	if err != nil {
		return nil, nil, err
	}
	if !negotiate {
		return conn, r, isOK(answer)
	}
	var offers struct {
		TLS  bool `json:"tls_v1"`
		Auth bool `json:"auth_required"`
	}
	if err := json.Unmarshal(answer, &offers); err != nil {
		return nil, nil, fmt.Errorf("the server answered IDENTIFY with something else than JSON: %w", err)
	}
	if cfg.TLS != nil {
		if !offers.TLS {
			return nil, nil, fmt.Errorf("the node offers no TLS at %s: nothing more was sent", cfg.Address)
		}
		if conn, r, err = startTLS(cfg, conn); err != nil {
			return nil, nil, err
		}
	}
	if cfg.Token != "" && offers.Auth {
		if _, err := ask(conn, r, appendSized([]byte("AUTH\n"), []byte(cfg.Token))); err != nil {
			return nil, nil, err
		}
	}
	return conn, r, nil
}

func startTLS(cfg *Config, plain net.Conn) (net.Conn, *frameReader, error) {
	config := cfg.TLS.Clone()
	if host, _, err := net.SplitHostPort(cfg.Address); err == nil {
		config.ServerName = host
	}
	conn := tls.Client(plain, config)
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, nil, err
	}
	if err := conn.Handshake(); err != nil {
		return nil, nil, fmt.Errorf("TLS with %s failed: %w", cfg.Address, err)
	}
	r := newFrameReader(conn)
	return conn, r, command(conn, r, nil) // the server says OK when TLS is on
}

// command sends one command and waits for its OK.
func command(conn net.Conn, r *frameReader, cmd []byte) error {
	answer, err := ask(conn, r, cmd)
	if err != nil {
		return err
	}
	return isOK(answer)
}

func isOK(answer []byte) error {
	if string(answer) != "OK" {
		return fmt.Errorf("the server refused: %s", answer)
	}
	return nil
}

// ask sends one command and waits for its answer, which is valid until the next read.
func ask(conn net.Conn, r *frameReader, cmd []byte) ([]byte, error) {
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(cmd); err != nil {
		return nil, err
	}
	for {
		typ, data, ok, err := r.next()
		switch {
		case err != nil:
			return nil, err
		case !ok:
			if err := r.fill(); err != nil {
				return nil, err
			}
		case typ != frameResponse:
			return nil, fmt.Errorf("the server refused: %s", data)
		case string(data) != string(heartbeat):
			return data, conn.SetDeadline(time.Time{})
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
