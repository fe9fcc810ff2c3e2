package nsq

import (
	"errors"
	"sync"
	"sync/atomic"

	"penstock/engine"
	"penstock/internal/lock"
	"penstock/internal/netio"
)

const (
	// maxRunCount and maxRunBytes bound how many PUBs of one connection become one Put.
	maxRunCount = 4096
	maxRunBytes = 512 << 10
)

// pending is an answer that is owed to a client: to a Put, or a frame that must wait for earlier answers.
//
// The reader fills it and pushes it. From then on only done and next change, until drain takes it from the queue and
// frees it. It is pooled with the memory of its Put, so that a publish allocates nothing.
type pending struct {
	put           engine.Put
	c             *conn
	verb          verb
	partitionArgs        // the partition that a client of youzan's named
	count         int    // "OK" frames: PUBs of the run, or 1
	bytes         int    // of input that it keeps, counted against the connection's limit
	buf           *block // the bodies of the Put lie in it: held until the Put is answered

	headers []engine.Header   // of all messages of the run, one after the other
	lists   [][]engine.Header // one per message: its part of headers

	to *target

	trace  uint64 // the client's id of its message
	traced bool   // it wants to know where the message is

	frame []byte // instead of a Put: the encoded frame
	fatal bool   // the connection ends after it

	done atomic.Bool // set once, by the engine or before push
	next *pending
}

var pendings = sync.Pool{New: func() any {
	p := new(pending)
	p.put.Done = func(*engine.Put) { p.completed() }
	return p
}}

func newPending(c *conn, v verb) *pending {
	p := pendings.Get().(*pending)
	p.c, p.verb = c, v
	return p
}

func (p *pending) free() {
	if p.buf != nil {
		p.buf.release()
	}
	p.put = engine.Put{Done: p.put.Done, Messages: emptied(p.put.Messages)}
	p.headers, p.lists = emptied(p.headers), emptied(p.lists)
	p.partitionArgs, p.trace, p.traced = partitionArgs{}, 0, false
	p.c, p.buf, p.to, p.frame, p.next = nil, nil, nil, nil, nil
	p.verb, p.count, p.bytes, p.fatal = verbNone, 0, 0, false
	p.done.Store(false)
	pendings.Put(p)
}

// emptied is the list's memory for the next one, unless it is larger than a run of PUBs needs: an MPUB may have had
// very many messages.
func emptied[T any](list []T) []T {
	if cap(list) > 2*maxRunCount {
		return nil
	}
	clear(list)
	return list[:0]
}

// completed is the Done of every Put. It runs on whoever answers the put: the engine's committer, or in a cluster also
// the reader of a connection to another node. It only marks, and hands the connection to the flusher when the answer's
// turn has come.
//
// The order is what makes it safe without a lock: completed stores done and then loads first; drain stores first
// and then loads done. One of them sees the other, so a completed head is never left behind.
func (p *pending) completed() {
	c := p.c // p may be gone as soon as done is set
	p.done.Store(true)
	if c.answers.first.Load() == p {
		c.srv.flusher.add(c)
	}
}

// answers is the queue of what is owed to one client, in the order of its commands.
//
// The reader pushes; the reader and the flusher drain. mu guards all but first, which completed reads without a lock on
// the goroutine that completes a Put. Inside mu only output.mu is taken. When the connection ends before an answer was
// sent, the client cannot know whether its message was stored, and publishes it again.
type answers struct {
	first atomic.Pointer[pending] // = head; written under mu

	mu         lock.Mutex[lock.NSQAnswers]
	head, tail *pending
	count      int  // answers owed
	bytes      int  // input kept
	broken     bool // a fatal frame went out: later answers are dropped
}

// push queues p. Its Put may be submitted only afterwards.
func (a *answers) push(p *pending) {
	a.mu.Lock()
	if a.tail == nil {
		a.head = p
		a.first.Store(p)
	} else {
		a.tail.next = p
	}
	a.tail = p
	a.count += p.count
	a.bytes += p.bytes
	a.mu.Unlock()
}

// exceeds says that more is owed than the connection may have.
func (a *answers) exceeds(count, bytes int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count > count || a.bytes > bytes
}

// idle says that nothing is owed.
func (a *answers) idle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.head == nil
}

// drain moves every answer whose turn has come to the output. It is called by the flusher and the reader.
func (c *conn) drain() {
	a := &c.answers
	a.mu.Lock()
	for p := a.head; p != nil && p.done.Load(); p = a.head {
		a.head = p.next
		a.first.Store(p.next)
		if p.next == nil {
			a.tail = nil
		}
		a.count -= p.count
		a.bytes -= p.bytes
		if !a.broken {
			a.broken = c.answer(p)
		}
		p.free()
	}
	a.mu.Unlock()
	c.signal()
}

// answer encodes one answer and says whether the connection ends with it.
func (c *conn) answer(p *pending) (fatal bool) {
	switch {
	case p.frame != nil:
		c.out.append(p.frame)
		fatal = p.fatal
	case p.put.Err == nil:
		p.to.published.Add(uint64(len(p.put.Messages)))
		if p.traced {
			c.out.append(p.tracedFrame())
		} else {
			c.out.appendOKs(p.count)
		}
	default:
		for range p.count { // one, unless the client reads on after it
			c.out.append(appendFrame(nil, frameError, publishRefused(p, p.put.Err)))
			if fatal = !p.survives(p.put.Err); fatal {
				break
			}
		}
	}
	if fatal {
		c.out.seal()
		c.stop()
	}
	return fatal
}

// publishFailed is the error frame for a Put that was not stored, or not known to be.
func publishFailed(v verb, err error) string {
	why := err.Error()
	if errors.Is(err, engine.ErrClosed) {
		why = "exiting"
	}
	return "E_" + v.String() + "_FAILED " + v.String() + " failed " + why
}

// flusher writes the answers of completed Puts to the sockets. A server has one, with one goroutine (run): whoever
// completes a Put hands the connection over by add, which sets a flag and appends, and goes on. It never waits for a
// client: what a socket does not take at once is left to a writer goroutine of that connection.
//
// mu guards queue, and nothing is taken inside it.
type flusher struct {
	wake chan struct{} // has room for one: a token says that queue is not empty
	quit chan struct{}

	mu    lock.Mutex[lock.NSQFlusher]
	queue []*conn // those whose conn.queued is set

	// The following belong to run. A group of the commit log completes Puts of many clients at once. One system call
	// writes to all of them; writes one by one would each wake a client on this machine, which would run before the next
	// is answered.
	sender   *netio.Sender // nil: each output is flushed by itself
	sendings []netio.Sending
	lent     []lentOutput
}

// lentOutput is the output whose bytes a sending has.
type lentOutput struct {
	out *output
	c   chunk
}

func (f *flusher) add(c *conn) {
	if c.queued.Swap(true) {
		return
	}
	f.mu.Lock()
	f.queue = append(f.queue, c)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *flusher) run() {
	var batch []*conn
	defer f.closeSender()
	for {
		select {
		case <-f.wake:
		case <-f.quit:
			return
		}
		f.mu.Lock()
		batch, f.queue = f.queue, batch[:0]
		f.mu.Unlock()
		for i, c := range batch {
			batch[i] = nil
			c.queued.Store(false) // before drain: a completion from here on queues it again
			c.drain()
			if len(batch) == 1 || !f.collect(&c.out) {
				c.out.flushAside()
			}
		}
		f.send()
	}
}

// collect adds what o has to send to what is sent together. false: the caller flushes o by itself.
func (f *flusher) collect(o *output) bool {
	if f.sender == nil {
		return false
	}
	c, ok := o.lend()
	if !ok {
		return false
	}
	f.sendings = append(f.sendings, netio.Sending{FD: o.fd, Data: c.p})
	f.lent = append(f.lent, lentOutput{o, c})
	if len(f.lent) == netio.MaxSendCount {
		f.send()
	}
	return true
}

// send sends what was collected.
func (f *flusher) send() {
	if len(f.lent) == 0 {
		return
	}
	err := f.sender.Send(f.sendings)
	for i := range f.lent {
		s, l := &f.sendings[i], &f.lent[i]
		l.out.giveBack(l.c, s.N, s.Err)
	}
	clear(f.sendings)
	clear(f.lent)
	f.sendings, f.lent = f.sendings[:0], f.lent[:0]
	if err != nil {
		f.closeSender() // from here on each output is flushed by itself
	}
}

func (f *flusher) closeSender() {
	if f.sender != nil {
		f.sender.Close()
		f.sender = nil
	}
}
