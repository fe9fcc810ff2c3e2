package nsq

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookupdPing is how often nsqlookupd hears of a node that has nothing to say: as of nsqd.
	lookupdPing = 15 * time.Second

	lookupdDialTime   = 3 * time.Second
	lookupdAnswerTime = 5 * time.Second // for all commands that were sent together

	// A connection that was lost is tried again after this, the longer the more often it failed.
	minLookupdPause = 250 * time.Millisecond
	maxLookupdPause = 15 * time.Second

	// maxLookupdAnswerBytes bounds an answer of nsqlookupd, which has about 150 bytes at most.
	maxLookupdAnswerBytes = 64 << 10

	// maxCommandsAtOnce is how many commands are sent before their answers are read: their answers must fit into the
	// connection's buffers, or both sides would wait for each other.
	maxCommandsAtOnce = 256
)

// lookupdPeer is an nsqlookupd at which this node registers. One goroutine speaks to it, and connects again when the connection is lost.
type lookupdPeer struct {
	address string
	r       *registrar
	cancel  context.CancelFunc
	wake    chan struct{} // what is led changed

	tried     chan struct{} // closed when the first attempt to connect succeeded or failed
	triedOnce sync.Once
	info      atomic.Pointer[lookupdInfo] // what it said of itself; nil while there is no connection
}

// lookupdInfo is nsqlookupd's answer to IDENTIFY.
type lookupdInfo struct {
	BroadcastAddress string `json:"broadcast_address"`
	HTTPPort         int    `json:"http_port"`
	Version          string `json:"version"`
}

// httpAddress is where it answers lookups, or "".
func (i *lookupdInfo) httpAddress() string {
	if i == nil || i.BroadcastAddress == "" || i.HTTPPort <= 0 {
		return ""
	}
	return net.JoinHostPort(i.BroadcastAddress, strconv.Itoa(i.HTTPPort))
}

// run keeps this node registered until ctx ends. Only the first of several failures is a warning.
func (p *lookupdPeer) run(ctx context.Context) {
	log := p.r.log.With("nsqlookupd", p.address)
	defer p.triedOnce.Do(func() { close(p.tried) })
	pause, quiet := minLookupdPause, false
	for ctx.Err() == nil {
		began := time.Now()
		registered, err := p.session(ctx)
		p.info.Store(nil)
		p.triedOnce.Do(func() { close(p.tried) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxLookupdPause {
			pause = minLookupdPause
		}
		if registered || !quiet {
			log.Warn("not registered: lookups there do not mention this node until the connection is back", "error", err)
		}
		quiet = true
		select {
		case <-time.After(pause + rand.N(pause/4)):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxLookupdPause)
	}
}

// lookupdConn is one connection. A goroutine of its own reads the answers, so that an end is noticed at once.
type lookupdConn struct {
	nc      net.Conn
	answers chan []byte
	lost    chan struct{} // closed when nothing more can be read
	err     error         // why; read it after lost
}

func (c *lookupdConn) read(ctx context.Context) {
	defer close(c.lost)
	br := bufio.NewReader(c.nc)
	for {
		answer, err := readAnswer(br)
		if err != nil {
			c.err = err
			return
		}
		select {
		case c.answers <- answer:
		case <-ctx.Done():
			c.err = ctx.Err()
			return
		}
	}
}

// readAnswer reads one answer: size int32, bytes.
func readAnswer(r io.Reader) ([]byte, error) {
	var head [sizeBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxLookupdAnswerBytes {
		return nil, fmt.Errorf("an answer of %d bytes: this is no nsqlookupd", n)
	}
	answer := make([]byte, n)
	_, err := io.ReadFull(r, answer)
	return answer, err
}

// ask sends commands and waits for as many answers.
func (c *lookupdConn) ask(count int, commands string) ([][]byte, error) {
	if err := c.nc.SetWriteDeadline(time.Now().Add(lookupdAnswerTime)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c.nc, commands); err != nil {
		return nil, err
	}
	late := time.NewTimer(lookupdAnswerTime)
	defer late.Stop()
	answers := make([][]byte, 0, count)
	for range count {
		select {
		case a := <-c.answers:
			answers = append(answers, a)
		case <-c.lost:
			return nil, c.err
		case <-late.C:
			return nil, errors.New("it does not answer")
		}
	}
	return answers, nil
}

// session is one connection from its beginning to its end. registered says whether it came to stand.
func (p *lookupdPeer) session(parent context.Context) (registered bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	dialer := net.Dialer{Timeout: lookupdDialTime}
	nc, err := dialer.DialContext(ctx, "tcp", p.address)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // nsqlookupd unregisters whom it does not hear of
	defer stop()
	defer nc.Close()
	c := &lookupdConn{nc: nc, answers: make(chan []byte), lost: make(chan struct{})}
	p.r.wg.Go(func() { c.read(ctx) })
	if err := p.identify(c); err != nil {
		return false, err
	}
	return true, p.follow(ctx, c)
}

func (p *lookupdPeer) identify(c *lookupdConn) error {
	body, err := json.Marshal(p.r.self)
	if err != nil {
		return err
	}
	answers, err := c.ask(1, lookupdMagic+"IDENTIFY\n"+string(binary.BigEndian.AppendUint32(nil, uint32(len(body))))+string(body))
	if err != nil {
		return err
	}
	info := new(lookupdInfo)
	if json.Unmarshal(answers[0], info) != nil {
		return fmt.Errorf("it answers %.200q to IDENTIFY", answers[0])
	}
	p.info.Store(info)
	p.triedOnce.Do(func() { close(p.tried) })
	p.r.log.Info("registered at an nsqlookupd", "nsqlookupd", p.address, "version", info.Version)
	return nil
}

// follow tells it of what this node leads, now and after every change, until the connection ends.
func (p *lookupdPeer) follow(ctx context.Context, c *lookupdConn) error {
	ping := time.NewTicker(p.r.ping)
	defer ping.Stop()
	known := led{}
	for {
		next := p.r.leading()
		if err := p.tell(c, next.commands(known)); err != nil {
			return err
		}
		known = next
		select {
		case <-p.wake:
		case <-ping.C:
			if err := p.tell(c, []string{"PING\n"}); err != nil {
				return err
			}
		case <-c.lost:
			return c.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell sends commands whose answer is OK. Another answer is logged, once for many: if it was a fatal one, the connection ends.
func (p *lookupdPeer) tell(c *lookupdConn, commands []string) error {
	for len(commands) > 0 {
		n := min(len(commands), maxCommandsAtOnce)
		answers, err := c.ask(n, strings.Join(commands[:n], ""))
		if err != nil {
			return err
		}
		for i, a := range answers {
			if string(a) != "OK" {
				p.r.log.Warn("an nsqlookupd refuses a registration", "nsqlookupd", p.address, "command", strings.TrimSpace(commands[i]), "answer", fmt.Sprintf("%.200q", a))
				break
			}
		}
		commands = commands[n:]
	}
	return nil
}
