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

	"penstock/internal/lock"
	"penstock/internal/netio"
	"penstock/internal/node"
	"penstock/internal/server/auth"
	"penstock/internal/server/nsq/command"
	"penstock/internal/strangers"
)

const magic = "  V2"

// target is a topic that a connection publishes to. It is immutable except for the count, which drain increments and
// /stats reads.
type target struct {
	name      string
	topic     *node.Topic
	published atomic.Uint64 // number of messages answered OK
}

// conn is one client's connection.
//
// Its reader goroutine (serve) parses and executes commands, and owns the fields that are not marked otherwise. Other
// goroutines act on the connection, too: those that complete its Puts (pending.completed), the flusher, the channel
// that delivers through sink, the sweep, /stats, and at times a writer goroutine of its output. They use the fields
// below "Any goroutine", which are atomic or have locks of their own.
//
// A connection ends in one of two ways. stop lets the reader leave its loop, and the answers that are owed are still
// sent. kill closes the socket at once. In both cases the consumer is closed, so that the messages in flight to it are
// delivered again.
type conn struct {
	srv     *Server
	remote  string
	started time.Time

	ctx    context.Context // canceled by kill; for the engine's blocking calls
	cancel context.CancelFunc

	parser  command.Parser
	in      input
	attempt func(fd uintptr) bool // readOnce, as raw.Read wants it
	readN   int
	readErr error
	run     *pending  // pipelined publishes that will become one Put; nil: none
	last    *target   // the target of the last publish; nil: none
	pace    pace      // of a consumer's reads
	lone    bool      // the commands that were handled last were one PUB whose answer the client waits for
	settled uint64    // FIN and REQ so far
	ready   int       // of the last RDY
	settles bool      // the commands that were handled last had a FIN, REQ, TOUCH or RDY
	pump    bool      // a FIN, REQ, TOUCH or RDY may have made room: pump the consumer once the input is handled
	wire    *wire     // below TLS and compression; nil: the socket is read directly
	tls     *tls.Conn // nil: none
	stream  io.Reader // the decoded bytes of the wire; nil if wire is nil

	// What the client may do if AUTH is required. Any goroutine may read login; the others belong to the reader.
	login    atomic.Pointer[login] // nil: no successful AUTH yet
	granted  granted
	known    auth.Place          // among the clients that have sent AUTH; the reader uses it
	stranger *strangers.Stranger // its place in Options.Strangers; nil: it need not send AUTH, or has

	// While the connection is in Server.poll, the fields above and these belong to the poll's goroutine.
	lonely   int      // reads in a row in which no other publisher had input
	unsent   *pending // a Put that the engine refused to take without waiting; it is among the answers
	pollErr  error    // of a read by the poll
	crowding crowding
	returned chan struct{} // capacity 1: the poll has given the connection back
	pollFD   int32         // its descriptor while it is in the poll, else 0; guarded by publisherPoll.mu

	// Of Options.Received, for the command that is being received, and who pays for it.
	reserved   int64
	reservedBy string

	// Any goroutine:
	out       output
	answers   answers
	place     netio.Place              // in the flusher's queue
	set       atomic.Pointer[agreed]   // never nil; replaced by IDENTIFY
	link      atomic.Pointer[link]     // never nil; replaced by upgrade
	consumer  atomic.Pointer[consumer] // set once, by SUB
	flight    flight
	delivered atomic.Uint64 // messages so far
	form      *messageForm  // set by SUB before the consumer is attached; nil: NSQ's own message format
	stopping  atomic.Bool
	stopped   chan struct{} // closed by stop once stopping is set and the read deadline interrupts the reader
	waiting   atomic.Bool   // the reader waits for something other than the client, and progress must be signalled
	kick      chan struct{} // capacity 1: the signal

	targetsMu lock.Mutex[lock.NSQTargets]
	targets   map[string]*target // by topic; written only by the reader, under targetsMu; others hold targetsMu to read

	// The sweep reads these. Times are in ns since the server's start; 0: not applicable now.
	lastByte     atomic.Int64 // when bytes of the client last arrived
	commandSince atomic.Int64 // when the command began that is still incomplete
	arrived      atomic.Int64 // bytes of it, if room is reserved for it; else 0
	beatEvery    atomic.Int64 // heartbeat interval
	nextBeat     atomic.Int64
	authBy       atomic.Int64 // when AUTH must have succeeded
	renewing     atomic.Bool  // renew runs
	acked        uint64       // bytes that the client's side had acknowledged when it was found silent; of the sweep
}

func newConn(s *Server, nc *net.TCPConn) (*conn, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{
		srv:      s,
		remote:   nc.RemoteAddr().String(),
		started:  time.Now(),
		parser:   command.Parser{Limits: s.settings().limits(), Heartbeats: true, TLSRequired: s.opts.TLSRequired},
		flight:   flight{most: s.settings().MaxInFlightBytes},
		pace:     pace{within: int64(s.settings().ModerationPace)},
		stopped:  make(chan struct{}),
		kick:     make(chan struct{}, 1),
		returned: make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.place.Output = c
	host, _, _ := net.SplitHostPort(c.remote)
	set := s.settings().defaultSettings(host)
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
	c.commandSince.Store(s.now()) // the magic counts as a command that has begun
	if s.opts.Auth != nil {
		c.beStranger()
	}
	return c, nil
}

// applyOutput applies the settings that concern the output.
func (c *conn) applyOutput(set *agreed) {
	timeout := c.srv.settings().WriteTimeout
	if set.heartbeat > 0 {
		timeout = min(timeout, set.heartbeat)
	}
	c.out.timeout.Store(int64(timeout))
	c.out.mu.Lock()
	c.out.most = max(c.srv.settings().MaxConnOutputBytes, set.outputBuffer)
	c.out.bound = min(c.out.most, 2*minOutputBytes)
	c.out.shorten(c.out.bound < c.out.most)
	c.out.mu.Unlock()
}

// serve is the reader goroutine.
func (c *conn) serve() {
	defer c.srv.remove(c)
	defer c.unreserve()
	defer c.known.Leave()
	defer c.out.dispose()
	defer c.kill()
	c.end(c.readLoop())
}

// readLoop reads and executes commands. It returns nil after a fault was answered or stop was called, and the error
// when the stream ends.
func (c *conn) readLoop() error {
	for len(c.in.unread()) < len(magic) {
		if err := c.read(len(magic)); err != nil {
			return err
		}
	}
	if string(c.in.unread()[:len(magic)]) != magic {
		c.refuse(command.NewFault("E_BAD_PROTOCOL"))
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
		if f := c.largeInput(c.parser.Need, len(c.in.unread())); f != nil {
			c.refuse(f)
			return nil
		}
		if c.stream == nil && c.pace.read(c.lastByte.Load(), c.settles && c.busy()) {
			f, err := c.moderate()
			switch {
			case err != nil:
				return err
			case f != nil:
				c.refuse(f)
				return nil
			case c.stopping.Load(): // stop could not interrupt a read while the socket was detached
				return nil
			}
		}
		if c.stream == nil && c.lone && c.crowding.isOne() {
			if err := c.srv.poll.serve(c); err != nil {
				return err
			}
			continue // the poll may have left commands
		}
		if err := c.read(c.parser.Need); err != nil {
			return err
		}
	}
}

// read waits for bytes from the client. need is the total number of bytes that the first unread command has, as far as
// known.
func (c *conn) read(need int) error {
	c.parser.Need = need
	if c.stream != nil {
		return c.readWrapped()
	}
	if err := c.out.raw.Read(c.attempt); err != nil {
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

// readOnce attempts to read once. It returns false if nothing has arrived, and raw.Read must wait. An idle connection
// waits without a buffer.
func (c *conn) readOnce(fd uintptr) bool {
	c.readN, c.readErr = c.in.readOnce(fd, c.parser.Need)
	return c.readErr != syscall.EAGAIN
}

// handle executes every complete command that was read. Then it submits the last run, pumps the consumer and flushes
// the output.
func (c *conn) handle() *command.Fault {
	var cmd command.Command
	var f *command.Fault
	consumed := 0
	for !c.stopping.Load() {
		n, bad := c.parser.Next(c.in.unread(), &cmd)
		if f = bad; n == 0 || f != nil {
			break
		}
		if f = c.execute(&cmd, n); f != nil {
			break
		}
		c.in.r += n
		consumed += n
	}
	c.lone = false
	c.submit()
	if c.settles = c.pump; c.pump {
		c.pump = false
		c.consumer.Load().Pump()
	}
	c.out.flush()
	if c.reserved > 0 && consumed > 0 {
		c.unreserve()
	}
	if c.parser.Exceeded {
		c.countStranger(&c.srv.counts.strangerBytes, f.Text)
	}
	c.handled(consumed)
	return f
}

// handled notes since when a command is incomplete, after consumed bytes of commands were executed.
func (c *conn) handled(consumed int) {
	switch {
	case len(c.in.unread()) == 0:
		c.commandSince.Store(0)
	case consumed > 0 || c.commandSince.Load() == 0:
		c.commandSince.Store(c.srv.now())
	}
}

// refuse ends the connection with an error frame, after the answers that are still owed. A fault without text sends no
// frame.
func (c *conn) refuse(f *command.Fault) {
	c.submit()
	c.srv.opts.Logger.Debug("closing an NSQ connection after an error", "client", c.remote, "error", f.Text)
	p := newPending(c, command.VerbNone)
	p.frame, p.fatal, p.count = []byte{}, true, 1
	if f.Text != "" {
		p.frame = appendFrame(nil, frameError, f.Text)
	}
	p.done.Store(true)
	c.answers.push(p)
	c.drain()
	c.out.flush()
}

// reply sends a frame after the answers to all earlier commands.
func (c *conn) reply(kind uint32, data string) {
	c.submit()
	c.replyAside(kind, data)
	c.waitRoom()
}

// replyAside is reply for goroutines other than the reader: it neither submits the run nor waits for room.
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
		p := newPending(c, command.VerbNone)
		p.frame, p.count, p.bytes = frame, 1, len(frame)
		p.done.Store(true)
		a.push(p)
		c.drain() // the earlier answers may have been sent in the meantime
	}
}

// end is the last thing the reader does. It closes the consumer, which gives messages in flight back to the channel,
// waits until all answers that are owed have been sent, and gives the client time to read them.
func (c *conn) end(err error) {
	if consumer := c.consumer.Load(); consumer != nil {
		consumer.Close()
	}
	c.stop()
	<-c.stopped
	eof := err == io.EOF
	if eof {
		if f := c.parser.Truncated(c.in.unread()); f != nil {
			c.refuse(f)
		}
	}
	c.in.drop()
	if c.wire != nil {
		c.wire.in.drop()
	}
	if err != nil && !eof && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.out.flush() // TLS may have an alert to send
		c.srv.opts.Logger.Debug("an NSQ connection failed; what its client had in flight is delivered again",
			"client", c.remote, "error", err)
		return
	}
	c.wait(func() bool { return c.answers.idle() && c.out.allSent() })
	if eof || c.out.failure() != nil || c.out.nc == nil {
		return
	}
	c.sayGoodbye()
	if c.out.nc.CloseWrite() != nil {
		return
	}
	c.linger()
}

// linger reads and discards input until the client closes the connection or lingerTime is over.
func (c *conn) linger() {
	if c.out.nc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	waste := newBlock(minReadBytes)
	defer waste.release()
	for {
		if _, err := c.out.nc.Read(waste.b); err != nil {
			return
		}
	}
}

// stop makes the reader leave its loop; answers that are owed are still sent. Any goroutine may call it, more than
// once.
func (c *conn) stop() {
	if !c.stopping.CompareAndSwap(false, true) {
		return
	}
	c.out.interrupt()
	c.srv.poll.recall(c)
	close(c.stopped)
	c.signal()
}

// kill closes the socket; nothing more is answered. Any goroutine may call it, more than once.
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

// progress is called by the output when something was sent or the output failed.
func (c *conn) progress() {
	if err := c.out.failure(); err != nil {
		if stuck(err) {
			c.srv.opts.Log.Info("closing an NSQ connection whose client does not read", "client", c.remote)
		}
		if errors.Is(err, errLate) {
			c.srv.opts.Log.Info("closing an NSQ connection: a message of an ordered channel is half written and may be "+
				"another client's by now; it is delivered again, nothing is lost", "client", c.remote)
		}
		c.kill()
		return
	}
	c.signal()
}

// drained resumes deliveries after the client has caught up. It runs on the writer goroutine.
func (c *conn) drained() {
	if consumer := c.consumer.Load(); consumer != nil && !c.flight.blocks() {
		consumer.Unblock()
		consumer.Pump()
	}
}

// wait blocks the reader until ready returns true or the connection is dead. The client is not held responsible for the
// time that passes here.
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

// waitRoom blocks the reader while the connection has more answers owed, or more unsent output, than it may have.
func (c *conn) waitRoom() {
	if c.full() {
		c.out.flush()
		c.wait(func() bool { return c.stopping.Load() || !c.full() })
	}
}

// full reports whether the connection has as many answers owed, or as much unsent output, as it may have.
func (c *conn) full() bool {
	o := c.srv.settings()
	return c.answers.exceeds(o.MaxConnInFlightCount, o.MaxConnInFlightBytes) || c.out.backlog()
}

// target returns the topic to publish to, and creates it if necessary. It remembers the last topic, because producers
// rarely change it.
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

// resolve finds or creates the topic. Creating it waits for the disk and for lookup services, so resolve first submits
// the client's earlier publishes.
func (c *conn) resolve(t *target) error {
	c.submit()
	c.waiting.Store(true)
	topic, created, err := c.srv.opts.Topic(c.ctx, t.name, c.maker)
	c.lastByte.Store(c.srv.now())
	c.waiting.Store(false)
	if err != nil {
		return err
	}
	if created {
		c.changed("create", "topic="+t.name, nil)
	}
	t.topic = topic
	return nil
}
