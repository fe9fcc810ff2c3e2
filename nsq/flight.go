package nsq

import (
	"time"

	"penstock/engine"
	"penstock/internal/lock"
)

// flight bounds the bytes of messages that a consumer was sent and has not finished (Options.MaxInFlightBytes). RDY
// bounds only their number. Without a bound it costs nothing.
//
// Whoever delivers counts what it delivers (took), the reader what the client finishes, requeues and touches, and the
// sweep forgets what timed out, since the engine does not tell a connection of that. mu guards the fields behind it,
// and nothing is taken inside it. A client at its bound gets no messages until it finishes some, or they time out.
type flight struct {
	most int64 // 0: no bound; never changed

	mu    lock.Mutex[lock.NSQFlight]
	bytes int64 // = the sum of sizes
	full  bool  // Deliver told the engine to stop: flyOn has to call Unblock
	sizes map[engine.ID]flown
}

// flown is one message of a flight.
type flown struct {
	bytes int64
	since int64 // ns since the server's start: delivered or touched last
}

// took counts a message that is delivered, and says whether there is room for another one. The message that reaches the
// bound still goes out, so one that is larger than the bound passes alone.
func (f *flight) took(id engine.ID, size int, now int64) (room bool) {
	if f.most == 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sizes == nil {
		f.sizes = map[engine.ID]flown{}
	}
	f.bytes += int64(size) - f.sizes[id].bytes // it may have come before
	f.sizes[id] = flown{int64(size), now}
	f.full = f.full || f.bytes >= f.most
	return !f.full
}

// gave forgets a message that is finished or requeued. It is called before the engine is told: afterwards the same
// message may be delivered again, and that delivery must stay counted.
func (f *flight) gave(id engine.ID) {
	if f.most == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes -= f.sizes[id].bytes
	delete(f.sizes, id)
}

// touched says that a message's timeout begins anew.
func (f *flight) touched(id engine.ID, now int64) {
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

// blocks says that nothing more may be delivered.
func (f *flight) blocks() bool {
	if f.most == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

// freed says, once, that there is room again.
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

// expire forgets what has timed out.
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

// flyOn lets the consumer go on if its bytes in flight allow that again. While the output is full, that is left to
// drained. Each of the two looks at the other's bound after it lifted its own, so one of them sees both lifted.
func (c *conn) flyOn() {
	if c.flight.freed() && !c.out.stopsDelivery() {
		if consumer := c.consumer.Load(); consumer != nil {
			consumer.Unblock()
			consumer.Pump()
		}
	}
}
