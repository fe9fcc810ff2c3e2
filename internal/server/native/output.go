package native

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"penstock/internal/shares"
)

// output is the room for batches and messages that are for one client and are not written to its connection yet. It
// takes part in a limit for all connections, of which each token or address has a share: clients that do not read take
// no room from those of others.
type output struct {
	own  *semaphore.Weighted
	most int64
	all  *shares.Budget
	pays func() string // who has the share; it does not change while anything is taken
}

// newOutput returns the room of one connection, of most bytes; all is the room of all connections.
func newOutput(most int64, all *shares.Budget, pays func() string) output {
	return output{own: semaphore.NewWeighted(most), most: most, all: all, pays: pays}
}

// counts is what n bytes count as in the room of the connection and in that of all. More than a whole limit counts as
// the limit: it fits when nothing else is there.
func (o *output) counts(n int) (own, all int64) {
	return min(int64(n), o.most), min(int64(n), o.all.Share())
}

// try takes room for n bytes, if there is.
func (o *output) try(n int) bool {
	own, all := o.counts(n)
	if !o.own.TryAcquire(own) {
		return false
	}
	if o.all.TryTake(o.pays(), all) != nil {
		o.own.Release(own)
		return false
	}
	return true
}

// give returns room that try has taken.
func (o *output) give(n int) {
	own, all := o.counts(n)
	o.own.Release(own)
	o.all.Give(o.pays(), all)
}

// take takes room for n bytes, and waits for it. Those who wait get it in their order.
func (o *output) take(ctx context.Context, n int) error {
	own, all := o.counts(n)
	if err := o.own.Acquire(ctx, own); err != nil {
		return err
	}
	if err := o.all.Take(ctx, o.pays(), all); err != nil {
		o.own.Release(own)
		return ctx.Err()
	}
	return nil
}

// resize changes room for from bytes, which was taken, to room for to bytes. If that is more and there is none, all of
// it is given back, and resize returns false.
func (o *output) resize(from, to int) bool {
	fromOwn, fromAll := o.counts(from)
	own, all := o.counts(to)
	own, all = own-fromOwn, all-fromAll
	switch {
	case own > 0 && !o.own.TryAcquire(own):
		o.give(from)
		return false
	case all > 0 && o.all.TryTake(o.pays(), all) != nil:
		o.own.Release(max(own, 0))
		o.give(from)
		return false
	}
	o.own.Release(max(-own, 0))
	if all < 0 {
		o.all.Give(o.pays(), -all)
	}
	return true
}

// parcel is the netproto.Releaser of batches on their way to a client.
type parcel struct {
	output  *output
	bytes   int
	pinned  *atomic.Int64 // Server.pinned
	release func()        // node.Stored.Release; nil: what is sent is a copy
}

// unpin gives back the memory of the engine.
func (p *parcel) unpin() {
	if p.release != nil {
		p.release()
		p.release = nil
		p.pinned.Add(-int64(p.bytes))
	}
}

func (p *parcel) Release() {
	p.unpin()
	p.output.give(p.bytes)
}
