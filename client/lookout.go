package client

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// lookEvery is how late a call of ProduceSync that reads may notice the end of its context.
	lookEvery = time.Millisecond
	// maxQuietLooks is how many looks at a lane are made after the last call that has read.
	maxQuietLooks = 20
)

// lookout looks every millisecond whether the contexts of those callers of ProduceSync have ended that read their
// answers themselves, which they cannot see meanwhile. It looks at a lane as long as such calls come, so that a call
// need not start a timer, and allocates nothing. A client has one lookout, because a timer for each lane would wake the
// processor once a millisecond for each.
type lookout struct {
	mu    sync.Mutex // lane.mu may be taken inside it
	lanes []*lane    // whose looked.on is set
	timer *time.Timer
}

// looked is what the lookout knows of a lane. lane.mu guards it.
type looked struct {
	ctx   context.Context // of the caller that reads; nil: there is none, or its context is Background
	on    bool            // the lookout looks at the lane
	quiet int             // looks since the last call
}

// lookAfter begins to look after the context of a caller.
func (l *lane) lookAfter(ctx context.Context) {
	if ctx == context.Background() { // another one may end; Done, which says so, would allocate
		return
	}
	l.mu.Lock()
	begins := !l.looked.on
	l.looked = looked{ctx: ctx, on: true}
	l.mu.Unlock()
	if begins {
		l.producer.client.lookout.add(l)
	}
}

// add begins to look at a lane.
func (o *lookout) add(l *lane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lanes = append(o.lanes, l)
	switch {
	case len(o.lanes) > 1: // the timer runs
	case o.timer == nil:
		o.timer = time.AfterFunc(lookEvery, o.look)
	default:
		o.timer.Reset(lookEvery)
	}
}

// look is one look at all lanes.
func (o *lookout) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lanes = slices.DeleteFunc(o.lanes, func(l *lane) bool { return !l.look() })
	if len(o.lanes) > 0 {
		o.timer.Reset(lookEvery)
	}
}

// look makes a caller whose context has ended stop reading. It returns false if the lookout need not look any more.
func (l *lane) look() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.looked
	w.quiet++
	w.on = w.ctx != nil || w.quiet <= maxQuietLooks
	if w.ctx != nil && w.ctx.Err() != nil {
		if c := l.reading.Load(); c != nil {
			c.Recall()
		}
	}
	return w.on
}
