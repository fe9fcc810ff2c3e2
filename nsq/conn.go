package nsq

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/engine"
	"penstock/internal/lock"
)

const magic = "  V2"

// target is a topic that a connection publishes to. Immutable but for the count, which drain adds to and /stats reads.
type target struct {
	name      string
	topic     *engine.Topic
	published atomic.Uint64 // messages answered OK
}

// conn is one client's connection.
//
// Its reader goroutine (serve) parses and carries out commands, and owns the fields that are not marked otherwise.
// Besides it there act on a connection: the goroutines that complete its Puts (pending.completed), the flusher, the
// channel that delivers through sink, the sweep, /stats, and for a time a writer goroutine of its output. They use the
// fields marked "any goroutine", which are atomic or have locks of their own.
//
// It ends in one of two ways. stop lets the reader leave its loop; what is owed is answered first. kill closes the
// socket at once. In both cases the consumer is closed, so that what its client had in flight is delivered again.
type conn struct {
	srv     *Server
	nc      *net.TCPConn
	raw     syscall.RawConn
	remote  string
	started time.Time

	ctx    context.Context // ends with kill; for the engine's blocking calls
	cancel context.CancelFunc

	parser  parser
	in      input
	attempt func(fd uintptr) bool // reads once into in
	readN   int
	readErr error
	run     *pending  // pipelined PUBs or DPUBs that become one Put; nil: none
	last    *target   // of the last publish; nil: none
	pump    bool      // a FIN, REQ or RDY made room: the consumer is pumped when the input is handled
	wire    *wire     // under TLS and compression; nil: the socket is read as it is
	tls     *tls.Conn // nil: none
	stream  io.Reader // what the wire's bytes become

	// What the client may do, if AUTH is required. login is for any goroutine, granted the reader's.
	login   atomic.Pointer[login] // nil: AUTH was not sent
	granted granted

	// Any goroutine:
	out      output
	answers  answers
	queued   atomic.Bool                     // at the flusher
	set      atomic.Pointer[settings]        // never nil; replaced by IDENTIFY
	link     atomic.Pointer[link]            // never nil; replaced by upgrade
	consumer atomic.Pointer[engine.Consumer] // set once, by SUB
	flight   flight
	form     *messageForm // set by SUB before the consumer is attached; nil: as NSQ says
	stopping atomic.Bool
	stopped  chan struct{} // closed when stopping is set and the reader's wait was cut short
	waiting  atomic.Bool   // the reader waits for something else than the client; progress must be signalled
	kick     chan struct{} // has room for one: the signal

	targetsMu lock.Mutex[lock.NSQTargets]
	targets   map[string]*target // by topic; written by the reader under targetsMu, which others hold to read

	// The sweep reads these; ns since the server's start, 0: not now.
	lastByte     atomic.Int64 // when the client was last heard of
	commandSince atomic.Int64 // when the command began that is not complete yet
	beatEvery    atomic.Int64 // heartbeat interval
	nextBeat     atomic.Int64
}

func newConn(s *Server, nc *net.TCPConn) (*conn, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{
		srv: s, nc: nc, raw: raw,
		remote:  nc.RemoteAddr().String(),
		started: time.Now(),
		parser:  parser{limits: s.opts.limits(), heartbeats: true, tlsRequired: s.opts.TLS.Required != requiredNot},
		flight:  flight{most: s.opts.MaxInFlightBytes},
		stopped: make(chan struct{}),
		kick:    make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	host, _, _ := net.SplitHostPort(c.remote)
	set := s.opts.defaultSettings(host)
	c.set.Store(&set)
	c.link.Store(plain)
	if err := raw.Control(func(fd uintptr) { c.out.fd = int(fd) }); err != nil {
		return nil, err
	}
	c.out.init(nc, raw)
	c.out.onDrained, c.out.onProgress = c.drained, c.progress
	c.applyOutput(&set)
	c.attempt = c.readOnce
	c.lastByte.Store(s.now())
	c.commandSince.Store(s.now()) // the magic must come in time, too
	return c, nil
}

// applyOutput sets what the settings say about the output.
func (c *conn) applyOutput(set *settings) {
	timeout := c.srv.opts.WriteTimeout
	if set.heartbeat > 0 {
		timeout = min(timeout, set.heartbeat)
	}
	c.out.timeout.Store(int64(timeout))
	c.out.mu.Lock()
	c.out.bound = max(c.srv.opts.MaxConnOutputBytes, set.outputBuffer)
	c.out.mu.Unlock()
}

// serve is the reader goroutine.
func (c *conn) serve() {
	defer c.srv.remove(c)
	defer c.kill()
	c.end(c.readLoop())
}

// readLoop reads and handles commands until the stream ends (the error), a fault was answered or stop was
// called (nil).
func (c *conn) readLoop() error {
	for len(c.in.unread()) < len(magic) {
		if err := c.read(len(magic)); err != nil {
			return err
		}
	}
	if string(c.in.unread()[:len(magic)]) != magic {
		c.refuse(&fault{"E_BAD_PROTOCOL"})
		return nil
	}
	c.in.r += len(magic)
	c.startBeats(c.set.Load().heartbeat)
	for {
		if f := c.handle(); f != nil {
			c.refuse(f)
			return nil
		}
		if c.stopping.Load() {
			return nil
		}
		if err := c.read(c.parser.need); err != nil {
			return err
		}
	}
}

// read waits for bytes of the client. need is how many the command at the front has in all.
func (c *conn) read(need int) error {
	c.parser.need = need
	if c.stream != nil {
		return c.readWrapped()
	}
	if err := c.raw.Read(c.attempt); err != nil {
		return err
	}
	switch {
	case c.readErr != nil:
		return c.readErr
	case c.readN == 0:
		return io.EOF
	}
	c.lastByte.Store(c.srv.now())
	return nil
}

// readOnce is one attempt to read; false: nothing is there, wait. An idle connection waits without a buffer.
func (c *conn) readOnce(fd uintptr) bool {
	c.readN, c.readErr = c.in.readOnce(fd, c.parser.need)
	return c.readErr != syscall.EAGAIN
}

// handle carries out every complete command that was read, then submits the last run, pumps the consumer and flushes.
func (c *conn) handle() *fault {
	var cmd command
	var f *fault
	consumed := 0
	for !c.stopping.Load() {
		n, bad := c.parser.next(c.in.unread(), &cmd)
		if f = bad; n == 0 || f != nil {
			break
		}
		if f = c.execute(&cmd, n); f != nil {
			break
		}
		c.in.r += n
		consumed += n
	}
	c.submit()
	if c.pump {
		c.pump = false
		c.consumer.Load().Pump()
	}
	c.out.flush()
	switch {
	case len(c.in.unread()) == 0:
		c.commandSince.Store(0)
	case consumed > 0 || c.commandSince.Load() == 0:
		c.commandSince.Store(c.srv.now())
	}
	return f
}

// refuse ends the connection with an error frame behind the answers that are still owed. A fault without text has none.
func (c *conn) refuse(f *fault) {
	c.submit()
	c.srv.opts.Logger.Debug("closing an NSQ connection after an error", "client", c.remote, "error", f.text)
	p := newPending(c, verbNone)
	p.frame, p.fatal, p.count = []byte{}, true, 1
	if f.text != "" {
		p.frame = appendFrame(nil, frameError, f.text)
	}
	p.done.Store(true)
	c.answers.push(p)
	c.drain()
	c.out.flush()
}

// reply sends a frame when all earlier commands are answered.
func (c *conn) reply(kind uint32, data string) {
	c.submit()
	c.replyAside(kind, data)
	c.waitRoom()
}

// replyAside is reply for goroutines other than the reader.
func (c *conn) replyAside(kind uint32, data string) {
	frame := appendFrame(nil, kind, data)
	a := &c.answers
	a.mu.Lock()
	direct := a.head == nil
	if direct && !a.broken {
		c.out.append(frame)
	}
	a.mu.Unlock()
	if !direct {
		p := newPending(c, verbNone)
		p.frame, p.count, p.bytes = frame, 1, len(frame)
		p.done.Store(true)
		a.push(p)
		c.drain() // the answers before it may have gone meanwhile
	}
}

// end is what the reader does after its loop. It closes the consumer, which gives messages in flight back to the
// channel, waits until what is owed is answered, and gives the client the time to read it.
func (c *conn) end(err error) {
	if consumer := c.consumer.Load(); consumer != nil {
		consumer.Close()
	}
	c.stop()
	<-c.stopped
	eof := err == io.EOF
	if eof {
		if f := c.parser.truncated(c.in.unread()); f != nil {
			c.refuse(f)
		}
	}
	c.in.drop()
	if c.wire != nil {
		c.wire.in.drop()
	}
	if err != nil && !eof && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.out.flush() // TLS may have an alert for the client
		c.srv.opts.Logger.Debug("an NSQ connection failed; what its client had in flight is delivered again",
			"client", c.remote, "error", err)
		return
	}
	c.wait(func() bool { return c.answers.idle() && c.out.allSent() })
	if eof || c.out.failure() != nil {
		return
	}
	c.sayGoodbye()
	if c.nc.CloseWrite() != nil {
		return
	}
	c.linger()
}

// linger reads what the client still sends, until it closes or lingerTime is over.
func (c *conn) linger() {
	if c.nc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	waste := newBlock(minReadBytes)
	defer waste.release()
	for {
		if _, err := c.nc.Read(waste.b); err != nil {
			return
		}
	}
}

// stop makes the reader leave its loop; what is owed is still answered. Any goroutine may call it, again and again.
func (c *conn) stop() {
	if !c.stopping.CompareAndSwap(false, true) {
		return
	}
	// An error here means that the socket is closed, which wakes the reader as well.
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	close(c.stopped)
	c.signal()
}

// kill closes the socket: nothing more is answered. Any goroutine may call it, again and again.
func (c *conn) kill() {
	c.cancel()
	c.out.close()
	c.signal()
}

// signal wakes the reader if it waits for progress.
func (c *conn) signal() {
	if c.waiting.Load() {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
}

// progress is called when the output moved or failed.
func (c *conn) progress() {
	if err := c.out.failure(); err != nil {
		if stuck(err) {
			c.srv.opts.Logger.Info("closing an NSQ connection whose client does not read", "client", c.remote)
		}
		if errors.Is(err, errLate) {
			c.srv.opts.Logger.Info("closing an NSQ connection: a message of an ordered channel is half written and may be "+
				"another client's by now; it is delivered again, nothing is lost", "client", c.remote)
		}
		c.kill()
		return
	}
	c.signal()
}

// drained lets the consumer go on after the client caught up. It runs on the writer goroutine.
func (c *conn) drained() {
	if consumer := c.consumer.Load(); consumer != nil && !c.flight.blocks() {
		consumer.Unblock()
		consumer.Pump()
	}
}

// wait blocks the reader until ready says so or the connection is dead. Time that passes here is not the client's.
func (c *conn) wait(ready func() bool) {
	c.waiting.Store(true)
	for !ready() {
		select {
		case <-c.kick:
		case <-c.ctx.Done():
			c.waiting.Store(false)
			return
		}
	}
	c.lastByte.Store(c.srv.now())
	c.waiting.Store(false)
}

// waitRoom stops reading while the connection has more at the disk or in its output than it may.
func (c *conn) waitRoom() {
	o := &c.srv.opts
	full := func() bool {
		return c.answers.exceeds(o.MaxConnInFlightCount, o.MaxConnInFlightBytes) || c.out.backlog()
	}
	if full() {
		c.out.flush()
		c.wait(func() bool { return c.stopping.Load() || !full() })
	}
}

// target finds or creates the topic to publish to. The last one is remembered: producers rarely change it.
func (c *conn) target(name []byte) (*target, error) {
	if t := c.last; t != nil && t.name == string(name) {
		return t, nil
	}
	t := c.targets[string(name)]
	if t == nil {
		t = &target{name: string(name)}
		if err := c.resolve(t); err != nil {
			return nil, err
		}
		c.targetsMu.Lock()
		if c.targets == nil {
			c.targets = make(map[string]*target)
		}
		c.targets[t.name] = t
		c.targetsMu.Unlock()
	}
	c.last = t
	return t, nil
}

// resolve asks for the topic. It may have to be created, which waits for the disk and for lookup services, so what the
// client published before is submitted first.
func (c *conn) resolve(t *target) error {
	c.submit()
	c.waiting.Store(true)
	topic, err := c.srv.lookups.Topic(c.ctx, t.name)
	c.lastByte.Store(c.srv.now())
	c.waiting.Store(false)
	if err != nil {
		return err
	}
	t.topic = topic
	return nil
}
