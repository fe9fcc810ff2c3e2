package nsq

import (
	"math"
	"sync/atomic"

	"penstock/internal/lock"
	"penstock/internal/netio"
)

// flusher writes the answers of completed Puts to the sockets. The goroutine that completes a Put hands the connection
// over with add, which never waits. Nothing here waits for a client either: what a socket does not accept at once is
// left to a writer goroutine of that connection.
//
// Two goroutines write. The commit log's goroutine answers what it has just made durable (Hold, Release): it does so
// while its next group is on the disk, and nobody has to be woken for it. The flusher's own goroutine (run) answers
// everything else: Puts that other goroutines complete, and connections whose answers take longer than a system call.
//
// mu guards queue, and no other lock is taken while it is held. logMu guards logged and closed; its holder waits for
// nobody.
type flusher struct {
	wake chan struct{} // capacity 1: a token says that queue is not empty
	quit chan struct{}
	held atomic.Bool // Release will come soon and look at the queue: add wakes nobody

	mu    lock.Mutex[lock.NSQFlusher]
	queue []*conn // the connections whose queued is set

	own answering // of run

	logMu  lock.Mutex[lock.NSQLogAnswers] // held by Release, and to close
	logged answering                      // of Release
	closed bool
}

// maxLoggedAnswers is how many connections the commit log's goroutine answers at once, before it looks after its groups
// again. The flusher's goroutine answers the others.
const maxLoggedAnswers = 4 * netio.MaxSendCount

func (f *flusher) add(c *conn) {
	if c.queued.Swap(true) {
		return
	}
	f.mu.Lock()
	f.queue = append(f.queue, c)
	f.mu.Unlock()
	if !f.held.Load() {
		f.wakeRun()
	}
}

func (f *flusher) wakeRun() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Hold implements clog.Holder. An add that comes before Release wakes nobody:
//
//	completing goroutine       commit log's goroutine
//	A1 appends to the queue    B1 clears held
//	A2 loads held              B2 takes the queue
//
// If A2 sees held set, A1 was before B1, so B2 finds the connection.
func (f *flusher) Hold() { f.held.Store(true) }

// Release implements clog.Holder: it answers the clients of the Puts that were completed since Hold, and others that
// wait.
func (f *flusher) Release() {
	f.logMu.Lock()
	defer f.logMu.Unlock()
	f.held.Store(false)
	if f.closed {
		return
	}
	batch, more := f.take(&f.logged, maxLoggedAnswers)
	for i, c := range batch {
		batch[i] = nil
		c.crowding.answered(len(batch))
		c.queued.Store(false) // before drain: a Put that completes from here on adds the connection again
		c.drain()
		if !f.logged.collect(&c.out) && c.out.unflushed() {
			if !c.queued.Swap(true) {
				f.mu.Lock()
				f.queue = append(f.queue, c)
				f.mu.Unlock()
			}
			more = true
		}
	}
	f.logged.send()
	if more {
		f.wakeRun()
	}
}

// take moves at most most connections from the queue to a's batch. more says that the queue still has some.
func (f *flusher) take(a *answering, most int) (batch []*conn, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) <= most {
		a.batch, f.queue = f.queue, a.batch[:0]
		return a.batch, false
	}
	a.batch = append(a.batch[:0], f.queue[:most]...)
	n := copy(f.queue, f.queue[most:])
	clear(f.queue[n:])
	f.queue = f.queue[:n]
	return a.batch, true
}

// run is the flusher's goroutine.
func (f *flusher) run() {
	for {
		select {
		case <-f.wake:
		case <-f.quit:
			return
		}
		batch, _ := f.take(&f.own, math.MaxInt)
		for i, c := range batch {
			batch[i] = nil
			c.crowding.answered(len(batch))
			c.queued.Store(false) // as in Release
			c.drain()
			if len(batch) == 1 || !f.own.collect(&c.out) {
				c.out.flushAside()
			}
		}
		f.own.send()
	}
}

// close frees the rings. run has ended.
func (f *flusher) close() {
	f.own.close()
	f.logMu.Lock()
	defer f.logMu.Unlock()
	f.logged.close()
	f.closed = true
}

// answering is what one goroutine writes at a time: the answers to many clients, since a group of the commit log
// completes Puts of many clients at once. One system call writes them. Separate writes would each wake a client on this
// machine, and that client would run before the next one is answered.
type answering struct {
	sender   *netio.Sender // nil: each output is flushed separately
	batch    []*conn
	sendings []netio.Sending
	lent     []lentOutput
}

// lentOutput is the output that lent the chunk of a sending.
type lentOutput struct {
	out *output
	c   chunk
}

// collect adds the unsent frames of o to those that send will write. It returns false if the caller has to flush o
// separately.
func (a *answering) collect(o *output) bool {
	if a.sender == nil {
		return false
	}
	c, ok := o.lend()
	if !ok {
		return false
	}
	a.sendings = append(a.sendings, netio.Sending{FD: o.fd, Data: c.p})
	a.lent = append(a.lent, lentOutput{o, c})
	if len(a.lent) == netio.MaxSendCount {
		a.send()
	}
	return true
}

// send writes the collected frames to their sockets.
func (a *answering) send() {
	if len(a.lent) == 0 {
		return
	}
	err := a.sender.Send(a.sendings)
	for i := range a.lent {
		s, l := &a.sendings[i], &a.lent[i]
		l.out.giveBack(l.c, s.N, s.Err)
	}
	clear(a.sendings)
	clear(a.lent)
	a.sendings, a.lent = a.sendings[:0], a.lent[:0]
	if err != nil {
		a.close() // from here on each output is flushed separately
	}
}

func (a *answering) close() {
	if a.sender != nil {
		a.sender.Close()
		a.sender = nil
	}
}
