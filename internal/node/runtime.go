package node

import (
	"encoding/binary"
	"time"

	"penstock/internal/node/clock"
	"penstock/internal/node/platform"
)

// The engine reaches clocks, goroutines and the network only through Engine.host; the disk is Engine.disk. This file
// has helpers built on the host.

// wallNow replaces the host's wall clock if it is not nil. Test builds set it before any engine is opened
// (clock_offset.go).
var wallNow func() time.Time

// newEngineClock makes the clock of an engine that opens now: it reads the wall clock once.
func newEngineClock(o *Options, h platform.Host) *clock.Clock {
	wall := h.Wall
	if wallNow != nil {
		wall = wallNow
	}
	if o.wall != nil {
		wall = o.wall
	}
	return clock.New(wall, h.Mono)
}

// firstRequest returns a random number for this process's first request to other nodes. Answers to an earlier process's
// requests may still arrive, and must not be taken for answers to requests of this process.
func (e *Engine) firstRequest() uint64 {
	id := e.host.NewUUID()
	return binary.LittleEndian.Uint64(id[8:]) >> 2
}

// clockLogEvery is the least time between two log lines about steps of the wall clock.
const clockLogEvery = time.Minute

// lookAtClock logs a step of the wall clock, at most once in clockLogEvery.
func (w *watch) lookAtClock() {
	e := w.e
	step := e.clock.Compare()
	if step == 0 || !w.clockTold.IsZero() && e.host.Since(w.clockTold) < clockLogEvery {
		return
	}
	w.clockTold = e.host.Instant()
	ahead := e.clock.Ahead()
	e.log.Warn("the wall clock of this node was set: timeouts, delays and retention go on by the time that has passed,"+
		" and nothing is removed because of it. New messages carry the time of the clock as it was at the start;"+
		" restart the node if the new time is the right one",
		"by", step.Round(time.Millisecond), "now_ahead_by", ahead.Round(time.Millisecond), "steps", e.clock.Steps())
}

// CheckHeaders returns nil if a message may have these headers, or else an ErrHeaders that says why not. A Put is
// refused as a whole, so a server that gathers messages of several requests in one Put should check each request first.
// CheckHeaders borrows the headers until it returns.
func (e *Engine) CheckHeaders(headers []Header) error {
	return e.limits.CheckHeaders(headers, false)
}
