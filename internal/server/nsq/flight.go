package nsq

import (
	"time"

	"penstock/internal/lock"
	"penstock/internal/node"
)

// flight bounds the bytes of the messages that are in flight to a consumer (Options.MaxInFlightBytes); RDY bounds only
// their number. Without a bound it costs nothing.
//
// The goroutine that delivers counts each message (took). The reader accounts for the messages that the client
// finishes, requeues and touches. The sweep forgets messages that timed out, because the engine does not report
// timeouts to a connection. mu guards the fields below it, and no other lock is taken while it is held. A client at its
// bound gets no messages until it finishes some, or some time out.
type flight struct {
	most int64 // 0: no bound; immutable

	mu    lock.Mutex[lock.NSQFlight]
	bytes int64 // = the sum of sizes
	full  bool  // Deliver has told the engine to stop: flyOn must call Unblock
	sizes map[node.ID]flown
}

// flown is one message of a flight.
type flown struct {
	bytes int64
	since int64 // last delivered or touched, in ns since the server's start
}

// took counts a message that is being delivered, and reports whether there is room for another one. The message that
// reaches the bound is still delivered, so a message larger than the bound is delivered alone.
func (f *flight) took(id node.ID, size int, now int64) (room bool) {
	if f.most == 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sizes == nil {
		f.sizes = map[node.ID]flown{}
	}
	f.bytes += int64(size) - f.sizes[id].bytes // the message may have been delivered before
	f.sizes[id] = flown{int64(size), now}
	f.full = f.full || f.bytes >= f.most
	return !f.full
}

// gave forgets a message that is finished or requeued. It must be called before the engine is told: after that the same
// message may be delivered again, and that delivery must stay counted.
func (f *flight) gave(id node.ID) {
	if f.most == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes -= f.sizes[id].bytes
	delete(f.sizes, id)
}

// touched notes that a message's timeout begins anew.
func (f *flight) touched(id node.ID, now int64) {
	if f.most == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m, ok := f.sizes[id]; ok {
		m.since = now
		f.sizes[id] = m
	}
}

// blocks reports whether the bound stops deliveries.
func (f *flight) blocks() bool {
	if f.most == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

// freed reports, once, that there is room again.
func (f *flight) freed() bool {
	if f.most == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.full || f.bytes >= f.most {
		return false
	}
	f.full = false
	return true
}

// expire forgets the messages that have timed out.
func (f *flight) expire(now int64, timeout time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, m := range f.sizes {
		if now-m.since > int64(timeout) {
			f.bytes -= m.bytes
			delete(f.sizes, id)
		}
	}
}

// flyOn resumes deliveries if the bytes in flight allow that again. While the output is full it leaves that to drained.
// Each of the two functions first lifts its own bound and then looks at the other's, so at least one of them sees both
// lifted.
func (c *conn) flyOn() {
	if c.flight.freed() && !c.out.stopsDelivery() {
		if consumer := c.consumer.Load(); consumer != nil {
			consumer.Unblock()
			consumer.Pump()
		}
	}
}
