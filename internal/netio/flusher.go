package netio

import (
	"errors"
	"math"
	"sync/atomic"
	"syscall"

	"penstock/internal/lock"
)

// Output is a client's connection whose answers a Flusher sends. Its methods never wait for the client. The Flusher
// calls them, one at a time for each Output.
type Output interface {
	// Collect puts the answers that are due among the unsent bytes, which Lend or Flush then sends. together is how many
	// outputs the Flusher serves now, this one included.
	Collect(together int)
	// Lend returns the socket and the unsent bytes, which stay as they are until GiveBack; until then the socket stays
	// open, because another connection would get the number of a closed one. If the bytes cannot be lent, or there are
	// none, data is nil and GiveBack is not called; left says that Flush has to send something.
	Lend() (fd int, data []byte, left bool)
	// GiveBack ends what Lend began: the socket has taken n bytes. A nil err with fewer bytes than were lent says that
	// its buffer is full, an error that the connection has failed. It sees to the rest, and to what Collect has found
	// meanwhile.
	GiveBack(n int, err error)
	// Flush sends the unsent bytes without the Flusher's socket calls. It may take longer than a system call.
	Flush()
}

// Place is an Output's place in the queue of its Flusher. Every Output has one, for as long as it lives.
type Place struct {
	Output Output // constant
	taken  atomic.Bool
}

// Take takes the place: Add does nothing until Leave is called, because the caller serves the Output meanwhile. It
// returns false if the place is taken already, by the queue or by somebody else.
func (p *Place) Take() bool { return !p.taken.Swap(true) }

// Leave gives the place back. The caller then looks once for answers that became due before; later ones need an Add.
func (p *Place) Leave() { p.taken.Store(false) }

// Flusher sends the answers to many clients, those that are due together with one system call. The goroutine that
// completes an answer hands the client's Output over with Add, which never waits. Nothing here waits for a client
// either: the Output itself sends the bytes that its socket does not accept at once. A crash loses answers only, never
// a message: clients that got no answer must publish again.
//
// Two goroutines send. The commit log's goroutine answers what it has just made durable (Hold, Release), and nobody has
// to be woken for it. The Flusher's own goroutine answers everything else: what other goroutines complete, and Outputs
// that have to be flushed. So a Flusher is the clog.Holder of an engine. One Flusher serves all the protocols of a
// node.
//
// mu guards queue, and no other lock is taken while it is held. logMu guards logged and closed; its holder waits for
// nobody.
type Flusher struct {
	wake chan struct{} // capacity 1: a token says that queue is not empty
	quit chan struct{}
	done chan struct{} // closed when run has ended
	held atomic.Bool   // Release will come soon and look at the queue: Add wakes nobody

	mu    lock.Mutex[lock.AnswersQueue]
	queue []*Place // those that are taken by the queue

	own answering // of run

	logMu  lock.Mutex[lock.AnswersOfLog] // held by Release, and to close
	logged answering                     // of Release
	closed bool
}

// maxLoggedAnswers is how many Outputs the commit log's goroutine answers at once, before it looks after its groups
// again. The Flusher's goroutine answers the others.
const maxLoggedAnswers = 4 * MaxSendCount

// NewFlusher starts a Flusher. With ring false it uses no io_uring. An error says why the kernel refuses the rings; the
// Flusher works all the same, and Outputs are flushed one by one.
func NewFlusher(ring bool) (*Flusher, error) {
	f := &Flusher{wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	var err error
	for _, a := range []*answering{&f.own, &f.logged} {
		if ring && err == nil {
			a.sender, err = newSender()
		}
	}
	go f.run()
	return f, err
}

// Add has the answers of an Output sent soon.
func (f *Flusher) Add(p *Place) {
	if p.Take() {
		f.push(p)
		if !f.held.Load() {
			f.wakeRun()
		}
	}
}

func (f *Flusher) push(p *Place) {
	f.mu.Lock()
	f.queue = append(f.queue, p)
	f.mu.Unlock()
}

func (f *Flusher) wakeRun() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Hold implements clog.Holder. An Add that comes before Release wakes nobody:
//
//	completing goroutine       commit log's goroutine
//	A1 appends to the queue    B1 clears held
//	A2 loads held              B2 takes the queue
//
// If A2 sees held set, A1 was before B1, so B2 finds the Output.
func (f *Flusher) Hold() { f.held.Store(true) }

// Held says that Release will come soon: an Add costs nothing more than a place in its queue.
func (f *Flusher) Held() bool { return f.held.Load() }

// Release implements clog.Holder: it sends the answers that became due since Hold, and others that wait.
func (f *Flusher) Release() {
	f.logMu.Lock()
	defer f.logMu.Unlock()
	f.held.Store(false)
	if f.closed {
		return
	}
	batch, more := f.take(&f.logged, maxLoggedAnswers)
	for i, p := range batch {
		batch[i] = nil
		p.Leave() // before Collect: an answer that is due from here on adds the Output again
		p.Output.Collect(len(batch))
		if f.logged.collect(p.Output) {
			if p.Take() {
				f.push(p)
			}
			more = true
		}
	}
	f.logged.send()
	if more {
		f.wakeRun()
	}
}

// take moves at most most places from the queue to a's batch. more says that the queue still has some.
func (f *Flusher) take(a *answering, most int) (batch []*Place, more bool) {
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

// run is the Flusher's goroutine.
func (f *Flusher) run() {
	defer close(f.done)
	for {
		select {
		case <-f.wake:
		case <-f.quit:
			return
		}
		batch, _ := f.take(&f.own, math.MaxInt)
		for i, p := range batch {
			batch[i] = nil
			p.Leave() // as in Release
			p.Output.Collect(len(batch))
			if len(batch) == 1 || f.own.collect(p.Output) {
				p.Output.Flush()
			}
		}
		f.own.send()
	}
}

// Close ends the Flusher's goroutine and frees the rings. The engine must have let go of the Flusher, or may still call
// Hold and Release, which then do nothing. Answers that are due are not sent.
func (f *Flusher) Close() {
	close(f.quit)
	<-f.done
	f.own.close()
	f.logMu.Lock()
	defer f.logMu.Unlock()
	f.logged.close()
	f.closed = true
}

// answering is what one goroutine sends at a time: the answers to many clients, since a group of the commit log
// completes requests of many clients at once. One system call sends them. Separate writes would each wake a client on
// this machine, and that client would run before the next one is answered.
type answering struct {
	sender   *Sender // nil: each output is flushed separately
	batch    []*Place
	sendings []Sending
	lent     []Output // whose bytes are in sendings
}

// collect adds the unsent bytes of o to those that send will send. It returns true if the caller has to see to it that
// o is flushed.
func (a *answering) collect(o Output) (left bool) {
	if a.sender == nil {
		return true
	}
	fd, data, left := o.Lend()
	switch {
	case data == nil:
		return left
	case len(data) == 0: // what there was is not to be sent any more
		o.GiveBack(0, nil)
		return false
	}
	a.sendings = append(a.sendings, Sending{FD: fd, Data: data})
	a.lent = append(a.lent, o)
	if len(a.lent) == MaxSendCount {
		a.send()
	}
	return false
}

// send sends the collected bytes.
func (a *answering) send() {
	if len(a.lent) == 0 {
		return
	}
	err := a.sender.Send(a.sendings)
	for i, o := range a.lent {
		s := &a.sendings[i]
		if errors.Is(s.Err, syscall.EAGAIN) {
			s.Err = nil
		}
		o.GiveBack(s.N, s.Err)
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
