package nsq

import (
	"sync"
	"time"

	"penstock/engine"
)

// flight bounds the bytes of messages that one consumer has and has not finished (Options.MaxInFlightBytes), which RDY counts
// only as messages. The engine does not tell a connection of messages that timed out, so each is forgotten when the client's timeout is over.
// Without a bound it costs nothing.
type flight struct {
	most int64 // 0: no bound; never changed

	mu    sync.Mutex
	bytes int64
	full  bool // the engine was told to stop
	sizes map[engine.ID]flown
}

// flown is one message of a flight.
type flown struct {
	bytes int64
	since int64 // ns since the server's start: delivered or touched last
}

// took counts a message, and says whether there is room for another one: a single message larger than the bound passes alone.
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

// gave is called before the engine hears that a message is finished or requeued: behind it the same message may come again.
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

// flyOn lets the consumer go on if its bytes in flight allow it again. If the output is full, drained does it: each looks at
// the other's bound after it lifted its own, so one of the two sees both.
func (c *conn) flyOn() {
	if c.flight.freed() && !c.out.stopsDelivery() {
		if consumer := c.consumer.Load(); consumer != nil {
			consumer.Unblock()
			consumer.Pump()
		}
	}
}
