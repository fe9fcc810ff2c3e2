package client

import (
	"context"
	"sync"
	"time"
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
	if len(c.result) > 0 {
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
// disk's write.
//
//	a caller of ProduceSync                      the lane's goroutine
//	-----------------------                      --------------------
//	A1 takes the turn, lone                      B1 idle: without the turn, waits for kicked
//	A2 adds, advances, waits for nudged          B2 kicked all the same: waits for the turn
//	   (wake signals nudged)
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
	l.caller = ctx
	defer l.leave()
	if !l.add(m, done, true, room) {
		return false
	}
	for {
		select {
		case <-l.nudged: // advance sees what it was for
		default:
		}
		s := l.advance()
		if len(call.result) > 0 || s.over || s.foreign {
			return true
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

// leave gives the turn back, to the lane's goroutine if there is anything to do.
func (l *lane) leave() {
	l.caller = nil
	l.lone.Store(false)
	more := false
	select {
	case <-l.nudged:
		more = true
	default:
	}
	l.mu.Lock()
	more = more || !l.flow.idle() || len(l.flow.queue) > 0 || len(l.events) > 0 || l.flow.ended != nil
	l.mu.Unlock()
	l.turn.Unlock()
	if more {
		signal(l.kicked)
	}
}
