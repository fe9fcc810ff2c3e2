package netio

import (
	"errors"
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
// Its own goroutine sends: the commit log's, which completes most answers, writes the next group meanwhile. A node has
// one Flusher for all its protocols.
//
// mu guards queue, and no other lock is taken while it is held.
type Flusher struct {
	wake chan struct{} // capacity 1: a token says that queue is not empty
	quit chan struct{}
	done chan struct{} // closed when run has ended

	mu    lock.Mutex[lock.AnswersQueue]
	queue []*Place // those that are taken by the queue

	sendings answering // of run
}

// NewFlusher starts a Flusher. With ring false it uses no io_uring. An error says why the kernel refuses the ring; the
// Flusher works all the same, and Outputs are flushed one by one.
func NewFlusher(ring bool) (*Flusher, error) {
	f := &Flusher{wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	var err error
	if ring {
		f.sendings.sender, err = newSender()
	}
	go f.run()
	return f, err
}

// Add has the answers of an Output sent soon.
func (f *Flusher) Add(p *Place) {
	if p.Take() {
		f.push(p)
		f.wakeRun()
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

// run is the Flusher's goroutine.
func (f *Flusher) run() {
	defer close(f.done)
	for {
		select {
		case <-f.wake:
		case <-f.quit:
			return
		}
		f.serve()
	}
}

// serve sends the answers of all Outputs in the queue.
func (f *Flusher) serve() {
	a := &f.sendings
	f.mu.Lock()
	a.batch, f.queue = f.queue, a.batch[:0]
	f.mu.Unlock()
	for i, p := range a.batch {
		a.batch[i] = nil
		p.Leave() // before Collect: an answer that is due from here on adds the Output again
		p.Output.Collect(len(a.batch))
		if len(a.batch) == 1 || a.collect(p.Output) {
			p.Output.Flush()
		}
	}
	a.send()
}

// Close ends the Flusher's goroutine and frees the ring. Answers that are due are not sent.
func (f *Flusher) Close() {
	close(f.quit)
	<-f.done
	f.sendings.close()
}

// answering is what the Flusher's goroutine sends at a time: the answers to many clients, since a group of the commit
// log completes requests of many clients at once. One system call sends them. Separate writes would each wake a
// client on this machine, and that client would run before the next one is answered.
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
