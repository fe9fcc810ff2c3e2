package client

import (
	"context"
	"sync"
	"time"

	"penstock/netproto"
)

// syncCall is one call of ProduceSync.
type syncCall struct {
	m      Message // the caller may use its own again if its context ends first
	result chan result
	done   func(*Message, ID, error)
}

type result struct {
	id  ID
	err error
}

var syncCalls = sync.Pool{New: func() any {
	c := &syncCall{result: make(chan result, 1)}
	c.done = func(_ *Message, id ID, err error) { c.result <- result{id, err} }
	return c
}}

// ProduceSync produces a message and waits until it is stored. If ctx ends before that, the error matches ErrUnknown,
// and the message may still be stored. Many goroutines that call it at once share batches; one alone is slow.
func (p *Producer) ProduceSync(ctx context.Context, m *Message) (ID, error) {
	c := syncCalls.Get().(*syncCall)
	c.m = *m
	if err := p.produce(ctx, true, &c.m, c.done, c); err != nil {
		c.free()
		return 0, err
	}
	var r result
	if len(c.result) > 0 { // most often, if the call was a guest
		r = <-c.result
	} else {
		select {
		case r = <-c.result:
		case <-ctx.Done():
			return 0, because(ErrUnknown, context.Cause(ctx)) // c is told later, and must not be used again
		}
	}
	c.free()
	return r.id, r.err
}

func (c *syncCall) free() {
	c.m = Message{}
	syncCalls.Put(c)
}

// produce is add. For a call of ProduceSync that finds the lane idle, it also does the lane's work until the call has
// its result: a lone message then needs no switch to the lane's goroutine and back, which would take as long as a fast
// disk's write. If the connection lets it (netproto.Conn.ReadHere), it also reads the answer itself.
//
//	a caller of ProduceSync                      the lane's goroutine
//	-----------------------                      --------------------
//	A1 takes the turn, lone                      B1 idle: without the turn, waits for kicked
//	A2 adds, advances, reads; if it cannot,      B2 kicked all the same: waits for the turn
//	   or no more: waits for nudged (wake
//	   signals nudged, and ends its reading)
//	A3 has its result: not lone; gives the
//	   turn back; if anything is left, or
//	   nudged was signalled, signals kicked      B3 takes the turn, advances
//
// The caller leaves early, and then waits for its result like any other, if its context ends, or when a message waits
// whose done function belongs to the application: the caller may hold locks that the function takes.
func (l *lane) produce(
	ctx context.Context, m *Message, done func(*Message, ID, error), room int64, call *syncCall,
) bool {
	if call == nil || !l.turn.TryLock() {
		return l.add(m, done, call != nil, room)
	}
	l.lone.Store(true)
	l.guest = ctx
	defer l.leave()
	if !l.add(m, done, true, room) {
		return false
	}
	end, ends := ctx.Deadline()
	for l.reads = !ends || time.Until(end) > netproto.MaxGuestTime; ; {
		select {
		case <-l.nudged: // advance sees what it was for
		default:
		}
		s := l.advance()
		if len(call.result) > 0 || s.over || s.foreign {
			return true
		}
		if l.reads {
			l.reads = l.readHere(ctx, &s)
			continue
		}
		l.timer.Reset(time.Until(s.until)) // a message that waits has a deadline
		select {
		case <-l.timer.C:
		case <-l.nudged:
		case <-s.known.changed:
		case <-ctx.Done():
			return true
		}
	}
}

// readHere reads the answer from the connection. It returns false if the caller must wait without reading. Either way
// an answer may have arrived.
func (l *lane) readHere(ctx context.Context, s *standing) bool {
	if l.link == nil {
		return false
	}
	c := l.link.conn
	l.lookAfter(ctx)
	l.reading.Store(c)
	read := len(l.nudged) == 0 && ctx.Err() == nil && s.until.Sub(s.at) > netproto.MaxGuestTime && c.ReadHere(l.answered)
	l.reading.Store(nil)
	if !read {
		c.Recall()
	}
	return read
}

// leave gives the turn back, to the lane's goroutine if there is anything to do.
func (l *lane) leave() {
	l.guest, l.reads = nil, false
	l.lone.Store(false)
	more := false
	select {
	case <-l.nudged:
		more = true
	default:
	}
	l.mu.Lock()
	l.looked.ctx = nil
	more = more || !l.flow.idle() || len(l.flow.queue) > 0 || len(l.events) > 0 || l.flow.ended != nil
	l.mu.Unlock()
	if more && l.link != nil {
		l.link.conn.Recall() // the lane's goroutine does not read
	}
	l.turn.Unlock()
	if more {
		signal(l.kicked)
	}
}
