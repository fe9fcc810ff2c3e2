package native

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// output is the room for batches and messages that are for one client and are not written to its connection yet. It
// takes part in a limit for all connections.
type output struct {
	own, all     *semaphore.Weighted
	most, allMax int64
}

// newOutput returns the room of one connection, of most bytes; all is the room of all connections, of allMax bytes.
func newOutput(most int64, all *semaphore.Weighted, allMax int64) output {
	return output{own: semaphore.NewWeighted(most), all: all, most: most, allMax: allMax}
}

// try takes room for n bytes, if there is. More than a whole limit counts as the limit: it fits when nothing else is
// there.
func (o *output) try(n int) bool {
	if !o.own.TryAcquire(min(int64(n), o.most)) {
		return false
	}
	if !o.all.TryAcquire(min(int64(n), o.allMax)) {
		o.own.Release(min(int64(n), o.most))
		return false
	}
	return true
}

// give returns room that try has taken.
func (o *output) give(n int) {
	o.own.Release(min(int64(n), o.most))
	o.all.Release(min(int64(n), o.allMax))
}

// take takes room for n bytes, and waits for it. Those who wait get it in their order; try fails while anybody waits.
func (o *output) take(ctx context.Context, n int) error {
	if err := o.own.Acquire(ctx, min(int64(n), o.most)); err != nil {
		return err
	}
	if err := o.all.Acquire(ctx, min(int64(n), o.allMax)); err != nil {
		o.own.Release(min(int64(n), o.most))
		return err
	}
	return nil
}

// resize changes room for from bytes, which was taken, to room for to bytes. If that is more and there is none, all of
// it is given back, and resize returns false.
func (o *output) resize(from, to int) bool {
	own, all := min(int64(to), o.most)-min(int64(from), o.most), min(int64(to), o.allMax)-min(int64(from), o.allMax)
	switch {
	case own > 0 && !o.own.TryAcquire(own):
		o.give(from)
		return false
	case all > 0 && !o.all.TryAcquire(all):
		o.own.Release(max(own, 0))
		o.give(from)
		return false
	}
	o.own.Release(max(-own, 0))
	o.all.Release(max(-all, 0))
	return true
}

// parcel is the netproto.Releaser of batches on their way to a client.
type parcel struct {
	output  *output
	bytes   int
	pinned  *atomic.Int64 // Server.pinned
	release func()        // engine.Stored.Release; nil: what is sent is a copy
}

// unpin gives back the memory of the engine.
func (p *parcel) unpin() {
	if p.release != nil {
		p.release()
		p.release = nil
		p.pinned.Add(-int64(p.bytes))
	}
}

// Release implements netproto.Releaser.
func (p *parcel) Release() {
	p.unpin()
	p.output.give(p.bytes)
}
