package lookup

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
	// pingInterval is the time between PINGs to an nsqlookupd, the same as nsqd's.
	pingInterval = 15 * time.Second

	dialTime   = 3 * time.Second
	answerTime = 5 * time.Second // for the answers to all commands sent together

	// The pause before connecting again, which doubles with each failure.
	minRetryPause = 250 * time.Millisecond
	maxRetryPause = 15 * time.Second

	// maxAnswerBytes bounds an answer of nsqlookupd, which has at most about 150 bytes.
	maxAnswerBytes = 64 << 10

	// maxCommandsAtOnce is how many commands are sent before their answers are read. Their answers must fit into the
	// connection's buffers, or both sides would block on writing.
	maxCommandsAtOnce = 256
)

// nsqlookupd is a stock nsqlookupd at which this node registers.
//
// One goroutine (run) talks to it in one session after the other: it connects, sends IDENTIFY, then REGISTER and
// UNREGISTER as the topics that this node leads change, with PINGs in between. A second goroutine reads the answers of
// the session's connection. Goroutines that create a topic wait for tried and read info (channels). There is no lock.
//
// When the connection is lost, the nsqlookupd no longer names this node. Consumers that ask only there do not find the
// node until a later session has registered everything again.
type nsqlookupd struct {
	address   string
	registrar *registrar
	cancel    context.CancelFunc // makes run return
	wake      chan struct{}      // capacity 1: the topics that this node leads have changed

	tried     chan struct{} // closed when the first attempt to connect has succeeded or failed
	triedOnce sync.Once
	info      atomic.Pointer[lookupdInfo] // the answer to IDENTIFY; nil while there is no connection
}

// lookupdInfo is nsqlookupd's answer to IDENTIFY.
type lookupdInfo struct {
	BroadcastAddress string `json:"broadcast_address"`
	HTTPPort         int    `json:"http_port"`
	Version          string `json:"version"`
}

// httpAddress returns the address of nsqlookupd's HTTP API, or "" if it is not known.
func (i *lookupdInfo) httpAddress() string {
	if i == nil || i.BroadcastAddress == "" || i.HTTPPort <= 0 {
		return ""
	}
	return net.JoinHostPort(i.BroadcastAddress, strconv.Itoa(i.HTTPPort))
}

// run keeps this node registered until ctx ends. It logs only the first of several failures in a row.
func (n *nsqlookupd) run(ctx context.Context) {
	log := n.registrar.log.With("nsqlookupd", n.address)
	defer n.triedOnce.Do(func() { close(n.tried) })
	pause, warned := minRetryPause, false
	for ctx.Err() == nil {
		began := time.Now()
		registered, err := n.session(ctx)
		n.info.Store(nil)
		n.triedOnce.Do(func() { close(n.tried) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxRetryPause {
			pause = minRetryPause
		}
		if registered || !warned {
			log.Warn("not registered: lookups there do not mention this node until the connection is back", "error", err)
		}
		warned = true
		select {
		case <-time.After(pause + rand.N(pause/4)):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxRetryPause)
	}
}

// sessionConn is the connection of one session. A goroutine of its own (read) reads the answers, so that the end of the
// connection is noticed at once; the session's goroutine does the rest.
type sessionConn struct {
	nc      net.Conn
	answers chan []byte   // unbuffered: read waits until ask takes the answer
	lost    chan struct{} // closed by read when the connection has ended
	err     error         // why the connection ended; written before lost is closed, read after
}

func (c *sessionConn) read(ctx context.Context) {
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

// readAnswer reads one answer: its size as an int32, and then its bytes.
func readAnswer(r io.Reader) ([]byte, error) {
	var head [sizeBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxAnswerBytes {
		return nil, fmt.Errorf("an answer of %d bytes: this is no nsqlookupd", size)
	}
	answer := make([]byte, size)
	_, err := io.ReadFull(r, answer)
	return answer, err
}

// ask sends count commands and waits for their answers.
func (c *sessionConn) ask(count int, commands string) ([][]byte, error) {
	if err := c.nc.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c.nc, commands); err != nil {
		return nil, err
	}
	late := time.NewTimer(answerTime)
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

// session runs one connection from its beginning to its end. registered says whether IDENTIFY was answered.
func (n *nsqlookupd) session(parent context.Context) (registered bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	dialer := net.Dialer{Timeout: dialTime}
	nc, err := dialer.DialContext(ctx, "tcp", n.address)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // closing makes the nsqlookupd forget this node
	defer stop()
	defer nc.Close()
	c := &sessionConn{nc: nc, answers: make(chan []byte), lost: make(chan struct{})}
	n.registrar.wg.Go(func() { c.read(ctx) })
	if err := n.identify(c); err != nil {
		return false, err
	}
	return true, n.follow(ctx, c)
}

func (n *nsqlookupd) identify(c *sessionConn) error {
	body, err := json.Marshal(n.registrar.self)
	if err != nil {
		return err
	}
	size := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	answers, err := c.ask(1, magicV1+"IDENTIFY\n"+string(size)+string(body))
	if err != nil {
		return err
	}
	info := new(lookupdInfo)
	if json.Unmarshal(answers[0], info) != nil {
		return fmt.Errorf("it answers %.200q to IDENTIFY", answers[0])
	}
	n.info.Store(info)
	n.triedOnce.Do(func() { close(n.tried) })
	n.registrar.log.Info("registered at an nsqlookupd", "nsqlookupd", n.address, "version", info.Version)
	return nil
}

// follow keeps the nsqlookupd informed of what this node leads, now and after every change, until the connection ends.
func (n *nsqlookupd) follow(ctx context.Context, c *sessionConn) error {
	ping := time.NewTicker(n.registrar.ping)
	defer ping.Stop()
	known := led{}
	for {
		next := n.registrar.leading()
		if err := n.tell(c, next.commands(known)); err != nil {
			return err
		}
		known = next
		select {
		case <-n.wake:
		case <-ping.C:
			if err := n.tell(c, []string{"PING\n"}); err != nil {
				return err
			}
		case <-c.lost:
			return c.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell sends commands that should be answered with OK. Of the commands sent together, it logs the first one with any
// other answer. Such an answer is not an error of tell: if it is fatal, the nsqlookupd ends the connection.
func (n *nsqlookupd) tell(c *sessionConn, commands []string) error {
	for len(commands) > 0 {
		count := min(len(commands), maxCommandsAtOnce)
		answers, err := c.ask(count, strings.Join(commands[:count], ""))
		if err != nil {
			return err
		}
		for i, a := range answers {
			if string(a) != "OK" {
				n.registrar.log.Warn("an nsqlookupd refuses a registration", "nsqlookupd", n.address,
					"command", strings.TrimSpace(commands[i]), "answer", fmt.Sprintf("%.200q", a))
				break
			}
		}
		commands = commands[count:]
	}
	return nil
}
