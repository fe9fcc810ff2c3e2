package load

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// peer is the server's side of the protocol, written from NSQ's specification and strict about every byte. So the
// generator's encoding is checked by code that it does not share. The peer keeps messages in memory, gives every
// message to one subscriber, and requires a FIN for each.
type peer struct {
	t        *testing.T
	listener net.Listener

	mu         sync.Mutex
	ready      *sync.Cond
	messages   [][]byte // waiting, in order
	bodies     map[string]int
	headers    map[string]int // number of messages by the name of a header
	commands   map[string]int
	finished   int
	heartbeats int
	failPub    int // number of the first publish that is refused, as all later ones; 0: none
	mute       bool
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, listener: l, bodies: map[string]int{}, headers: map[string]int{}, commands: map[string]int{}}
	p.ready = sync.NewCond(&p.mu)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if err := p.serve(conn); err != nil && err != io.EOF && !strings.Contains(err.Error(), "connection reset") {
					t.Errorf("peer: %v", err)
				}
			}()
		}
	}()
	return p
}

func (p *peer) address() string { return p.listener.Addr().String() }

// session is one connection. mu guards w, because deliveries and answers share it.
type session struct {
	mu       sync.Mutex
	w        *bufio.Writer
	rdy      int
	inFlight map[string]bool
	closed   bool
}

func (s *session) frame(typ uint32, parts ...[]byte) {
	n := 4
	for _, b := range parts {
		n += len(b)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(n))
	s.w.Write(binary.BigEndian.AppendUint32(head, typ))
	for _, b := range parts {
		s.w.Write(b)
	}
}

func (p *peer) serve(conn net.Conn) error {
	r := bufio.NewReaderSize(conn, 1<<20)
	s := &session{w: bufio.NewWriter(conn), inFlight: map[string]bool{}}
	magic := make([]byte, 4)
	if _, err := io.ReadFull(r, magic); err != nil {
		return err
	}
	if string(magic) != "  V2" {
		return fmt.Errorf("magic is %q", magic)
	}
	defer func() {
		p.mu.Lock()
		s.closed = true
		p.ready.Broadcast()
		p.mu.Unlock()
	}()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		s.mu.Lock()
		err = p.command(s, r, strings.Split(strings.TrimSuffix(line, "\n"), " "))
		if r.Buffered() == 0 {
			s.w.Flush()
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func sized(r io.Reader) ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(n[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func (p *peer) command(s *session, r *bufio.Reader, words []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commands[words[0]]++
	switch words[0] {
	case "IDENTIFY":
		if _, err := sized(r); err != nil {
			return err
		}
		s.frame(frameResponse, []byte("OK"))
	case "PUB", "MPUB", "PUB_EXT", "MPUB_EXT":
		return p.publish(s, r, words)
	case "SUB":
		if len(words) != 3 {
			return fmt.Errorf("SUB with %d words", len(words))
		}
		s.frame(frameResponse, []byte("OK"))
		p.heartbeats++
		s.frame(frameResponse, []byte("_heartbeat_"))
		go p.deliver(s)
	case "RDY":
		n, err := strconv.Atoi(words[1])
		s.rdy = n
		p.ready.Broadcast()
		return err
	case "FIN":
		if !s.inFlight[words[1]] {
			return fmt.Errorf("FIN of %q, which is not in flight", words[1])
		}
		delete(s.inFlight, words[1])
		p.finished++
		p.ready.Broadcast()
	case "NOP":
	case "CLS":
		s.rdy = 0
		s.frame(frameResponse, []byte("CLOSE_WAIT"))
	default:
		return fmt.Errorf("unknown command %q", words[0])
	}
	return nil
}

func (p *peer) publish(s *session, r *bufio.Reader, words []string) error {
	if len(words) != 2 || words[1] != "topic" {
		return fmt.Errorf("%q does not name the topic", words)
	}
	data, err := sized(r)
	if err != nil {
		return err
	}
	bodies := [][]byte{data}
	if strings.HasPrefix(words[0], "MPUB") {
		n := int(binary.BigEndian.Uint32(data))
		bodies, data = nil, data[4:]
		for range n {
			size := binary.BigEndian.Uint32(data)
			bodies = append(bodies, data[4:4+size])
			data = data[4+size:]
		}
		if len(data) != 0 {
			return fmt.Errorf("MPUB has %d bytes too many", len(data))
		}
	}
	if p.mute {
		return nil
	}
	if p.failPub > 0 && p.commands[words[0]] >= p.failPub {
		s.frame(frameError, []byte("E_PUB_FAILED PUB failed because the test says so"))
		return nil
	}
	for _, b := range bodies {
		if strings.HasSuffix(words[0], "_EXT") {
			if b, err = p.unwrap(b); err != nil {
				return err
			}
		}
		p.bodies[string(b)]++
		p.messages = append(p.messages, b)
	}
	p.ready.Broadcast()
	if p.commands[words[0]]%100 == 0 { // a generator must cope with heartbeats among its answers
		p.heartbeats++
		s.frame(frameResponse, []byte("_heartbeat_"))
	}
	s.frame(frameResponse, []byte("OK"))
	return nil
}

// unwrap removes the headers, [size uint16][JSON object], from the front of a body and counts their names.
func (p *peer) unwrap(b []byte) (body []byte, err error) {
	if len(b) < 2 || len(b) <= 2+int(binary.BigEndian.Uint16(b)) {
		return nil, fmt.Errorf("%d bytes do not hold headers and a body", len(b))
	}
	end := 2 + int(binary.BigEndian.Uint16(b))
	var members map[string]string
	if err := json.Unmarshal(b[2:end], &members); err != nil {
		return nil, fmt.Errorf("the headers %q: %w", b[2:end], err)
	}
	for name, value := range members {
		if len(name) != 10 || len(value) != 12 {
			return nil, fmt.Errorf("the header %q: %q has not 10 and 12 bytes", name, value)
		}
		p.headers[name]++
	}
	return b[end:], nil
}

func (p *peer) deliver(s *session) {
	for id := 0; ; id++ {
		p.mu.Lock()
		for !s.closed && (len(s.inFlight) >= s.rdy || len(p.messages) == 0) {
			p.ready.Wait()
		}
		if s.closed {
			p.mu.Unlock()
			return
		}
		body := p.messages[0]
		p.messages = p.messages[1:]
		name := fmt.Sprintf("%016x", id)
		s.inFlight[name] = true
		p.mu.Unlock()
		head := make([]byte, 10)
		binary.BigEndian.PutUint16(head[8:], 1)
		s.mu.Lock()
		s.frame(frameMessage, head, []byte(name), body)
		s.w.Flush()
		s.mu.Unlock()
	}
}
