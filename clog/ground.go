package clog

import (
	"errors"
	"sync/atomic"

	"penstock/segment/aio"
)

// The log's files can be taken away while it runs, and no write to them fails: see aio.GroundError. So with each group
// the log looks whether its current file still has a name, before it reports the group, and CheckFiles compares all
// files that recovery needs. Either ends the log like a failed write: from then on nothing is reported as durable.

// lostError is the ErrFailed of a log whose ground is gone. It promises nothing about what was reported before.
type lostError struct{ found error }

func (e *lostError) Error() string {
	return "clog: " + e.found.Error() + ": nothing more is answered OK on this node; do not trust that what it answered " +
		"is still on this disk; if something was moved away, move it back; then restart the node; in a cluster its copies " +
		"are then compared with other replicas and fetched from them"
}

func (e *lostError) Unwrap() []error { return []error{ErrFailed, e.found} }

// ground is what the log knows about its ground besides its files.
type ground struct {
	lost atomic.Pointer[lostError] // set by Lose, for good; read by the holder of Log.mu
}

// Lose ends the log because of found, which is a *aio.GroundError, like a failed write: groups that are in flight now
// are not reported any more. It waits for nothing, so it may be called while the disk hangs. Any goroutine may call it.
func (l *Log) Lose(found error) {
	l.ground.lost.CompareAndSwap(nil, &lostError{found})
	l.Wake()
}

// stands fails the log if its ground is gone. It is called when groups of the current file are durable, before they are
// reported. The caller holds Log.mu.
func (l *Log) stands() error {
	if lost := l.ground.lost.Load(); lost != nil {
		return l.failLost(lost)
	}
	if !l.current.linked {
		return nil
	}
	links, err := l.current.Links()
	switch {
	case err != nil:
		return l.fail("looking whether the current file has a name", err)
	case links == 0:
		return l.failLost(&lostError{&aio.GroundError{Name: fileName(l.current.number), Seen: "was removed"}})
	}
	return nil
}

func (l *Log) failLost(lost *lostError) error {
	if l.err == nil {
		l.opts.Logger.Error("the commit log ends: its ground is gone", "err", lost)
	}
	return l.failWith(lost)
}

// Lost returns the *aio.GroundError with which the log ended, or nil.
func Lost(err error) error {
	if lost := (*lostError)(nil); errors.As(err, &lost) {
		return lost.found
	}
	return nil
}

// CheckFiles returns a *aio.GroundError if the name of a file that recovery would need does not lead to that file any
// more. It takes no lock, and may hang as long as the disk does. Any goroutine may call it before Close.
func (l *Log) CheckFiles() error {
	list := l.stored.Load()
	if list == nil {
		return nil
	}
	for _, f := range *list {
		is, err := l.disk.Identify(fileName(f.number))
		lost := aio.CompareGround(fileName(f.number), f.id, is, err)
		if lost != nil && l.isStored(f) { // else it was given back meanwhile
			return lost
		}
	}
	return nil
}
