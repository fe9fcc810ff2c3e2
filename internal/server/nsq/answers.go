package nsq

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/server/nsq/command"
	"penstock/internal/server/publish"
)

const (
	// maxRunCount and maxRunBytes bound how many PUBs of one connection are combined into one Put.
	maxRunCount = 4096
	maxRunBytes = 512 << 10
)

// pending is an answer that is owed to a client: the answer to a Put, or a frame that must wait for earlier answers.
//
// The reader fills it in and pushes it. From then on only done and next change, until drain removes it from the queue
// and frees it. It is pooled together with the memory of its Put, so that a publish allocates nothing.
type pending struct {
	put                   node.Put
	c                     *conn
	verb                  command.Verb
	command.PartitionArgs        // the partition, if a client of youzan's named one
	count                 int    // number of "OK" frames: the number of PUBs in the run, or 1
	bytes                 int    // of input that it retains, counted against the connection's limit
	arrived               int64  // Server.now when the last of it was read, if its duration is measured; else 0
	buf                   *block // contains the bodies of the Put; retained until the Put is answered

	headers []node.Header   // the headers of all messages of the run, consecutively
	lists   [][]node.Header // one element per message: its part of headers

	to *target

	at int // partition of the keys of a PUB_EXT or MPUB_EXT that names none; -1: it has no key

	numbers  *publish.Numbers // with numbered: which messages of a producer the Put has; kept for later Puts
	numbered bool

	trace  uint64 // the trace id that the client gave its message
	traced bool   // the client asked where its message is stored

	frame []byte // the encoded frame, instead of a Put
	fatal bool   // the connection ends after this answer

	done atomic.Bool // set once: by the engine, or before push
	next *pending
}

var pendings = sync.Pool{New: func() any { return new(pending) }}

func newPending(c *conn, v command.Verb) *pending {
	p := pendings.Get().(*pending)
	if p.put.Done == nil {
		p.put.Done = func(*node.Put) { p.completed() }
	}
	p.c, p.verb, p.at = c, v, -1
	return p
}

func (p *pending) free() {
	if p.buf != nil {
		p.buf.release()
	}
	p.put = node.Put{Done: p.put.Done, Messages: emptied(p.put.Messages)}
	p.headers, p.lists = emptied(p.headers), emptied(p.lists)
	p.PartitionArgs, p.trace, p.traced, p.numbered = command.PartitionArgs{}, 0, false, false
	if p.numbers != nil {
		*p.numbers = publish.Numbers{} // it borrowed from buf
	}
	p.c, p.buf, p.to, p.frame, p.next = nil, nil, nil, nil, nil
	p.verb, p.count, p.bytes, p.arrived, p.fatal = command.VerbNone, 0, 0, 0, false
	p.done.Store(false)
	pendings.Put(p)
}

// emptied returns an empty list that reuses the list's memory. It returns nil if the memory is more than a run of PUBs
// needs, because an MPUB may have had very many messages.
func emptied[T any](list []T) []T {
	if cap(list) > 2*maxRunCount {
		return nil
	}
	clear(list)
	return list[:0]
}

// completed is the Done function of every Put. It runs on the goroutine that completes the put: the engine's committer,
// or in a cluster also the reader of a connection to another node. It sets done. If this answer is the next one to be
// sent, it adds the connection to the flusher's queue, or sends the answer itself (answerNow).
//
// The order of accesses makes this safe without a lock. completed stores done and then loads first; drain stores first
// and then loads done. At least one of them sees the other's store, so a completed answer at the head is never left
// behind.
func (p *pending) completed() {
	c, now := p.c, p.put.Alone && p.put.Lone && p.put.Err == nil // p may be freed as soon as done is set
	p.done.Store(true)
	switch {
	case c.answers.first.Load() != p:
	case now:
		c.answerNow()
	default:
		c.srv.opts.Answers.Add(&c.place)
	}
}

// answerNow sends the answer to a client that waits for it alone, on the goroutine that completes the Put: to wake the
// flusher takes longer than the write. It never waits: see output.flushAside.
func (c *conn) answerNow() {
	if !c.place.Take() { // the flusher, or the reader in submit, will drain
		return
	}
	c.place.Leave() // before Collect: a Put that completes from here on adds the connection
	c.Collect(1)
	c.out.flushAside()
}

// Collect, Lend, GiveBack and Flush implement netio.Output.
func (c *conn) Collect(together int) {
	c.crowding.answered(together)
	c.drain()
}

func (c *conn) Lend() (fd int, data []byte, left bool) { return c.out.lend() }

func (c *conn) GiveBack(n int, err error) { c.out.giveBack(n, err) }

func (c *conn) Flush() { c.out.flushAside() }

// answers is the queue of the answers that are owed to one client, in the order of its commands.
//
// The reader pushes; the reader and the flusher drain. mu guards everything except first, which completed reads without
// a lock. Only output.mu is taken while mu is held. If the connection ends before an answer was sent, the client cannot
// know whether its message was stored, and publishes it again.
type answers struct {
	first atomic.Pointer[pending] // = head; written under mu

	mu         lock.Mutex[lock.NSQAnswers]
	head, tail *pending
	count      int  // number of answers owed
	bytes      int  // bytes of input retained
	broken     bool // a fatal frame was sent: later answers are dropped
}

// push appends p to the queue. The Put of p may be submitted only after that.
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

// exceeds reports whether more answers, or more input, are pending than the connection may have.
func (a *answers) exceeds(count, bytes int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count > count || a.bytes > bytes
}

// idle reports whether no answers are owed.
func (a *answers) idle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.head == nil
}

// drain moves the completed answers at the head of the queue to the output. The flusher and the reader call it.
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

// answer encodes one answer, and reports whether the connection ends with it.
func (c *conn) answer(p *pending) (fatal bool) {
	switch {
	case p.frame != nil:
		c.out.append(p.frame)
		fatal = p.fatal
	case p.put.Err == nil:
		p.to.published.Add(uint64(len(p.put.Messages)))
		if p.arrived != 0 {
			c.srv.opts.Publishes.NSQ.Observe(time.Duration(c.srv.now() - p.arrived))
		}
		if p.traced {
			c.out.append(p.tracedFrame())
		} else {
			c.out.appendOKs(p.count)
		}
	default:
		c.srv.opts.Publishes.Refuse(p.put.Err)
		for range p.count { // only one, unless the connection survives it
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

// publishFailed returns the error frame for a Put that failed, or whose outcome is unknown.
func publishFailed(v command.Verb, err error) string {
	why := err.Error()
	if errors.Is(err, errs.ErrClosed) {
		why = "exiting"
	}
	return "E_" + v.String() + "_FAILED " + v.String() + " failed " + why
}
