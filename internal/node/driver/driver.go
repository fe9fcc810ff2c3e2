package driver

import (
	"runtime"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
)

// Log is the commit log, as the driver sees it. Package clog documents the methods.
type Log interface {
	StepOnSpot() bool
	GatherOnSpot() bool
	WriteOnSpot() bool
	StepBeside() bool
	CanLeave() bool
	Wake()
}

// Host is the machine, real or simulated; see platform.Host.
type Host interface {
	Mono() time.Duration
	Either(a, b <-chan struct{}) bool
	InlineLog() bool
}

// Blocker is told that the calling goroutine may hang in a write until it returns to its own work.
type Blocker interface{ MayBlock() }

// Driver lists the partitions, of type P, whose inboxes wait, and decides who seals them.
//
// Begins, Each, Gathered and Told run with clog.Log.mu held, on the one goroutine that works on the commit log at that
// time. That is the log's own goroutine, a lone caller on an idle log (Log.StepOnSpot, Log.GatherOnSpot), stepBeside
// (Log.StepBeside), or the goroutine that writes the group that a lone caller gathered (Log.WriteOnSpot). So
// clog.Log.mu guards all fields except ready (readyMu), the channels and the atomics.
type Driver[P any] struct {
	host    Host
	stop    <-chan struct{}
	large   func() bool // enough bytes wait for two groups at a time, which only the log's own goroutine can write
	log     Log
	cluster bool

	readyMu lock.Mutex[lock.CommitterReady]
	ready   []*P // partitions whose inbox was empty and has puts now

	// gathered has one value while writeGathered has a group to write. It is nil on a single node and on a simulated
	// host: there the commit log's goroutine writes every group.
	gathered  chan struct{}
	lastWrite atomic.Int64 // how long the last call of writeHere took, in ns
	// beside has one value while stepBeside has something to look at. It is nil in a cluster and on a simulated host.
	beside chan struct{}
	waited atomic.Bool // several goroutines waited for the last group
	small  int         // consecutive calls of Begins at which suitsBeside was true

	work []*P // taken from ready; the inboxes of work[at:] are not sealed yet
	at   int

	leftover        atomic.Bool // the last group was full before all inboxes of work were sealed
	lastGroupShared atomic.Bool // the last group had several puts

	inFlight atomic.Int32 // groups on the disk
}

// Init is called before any other method. stop is closed when goroutines must end.
func (d *Driver[P]) Init(host Host, stop <-chan struct{}, large func() bool) {
	d.host, d.stop, d.large = host, stop, large
}

// Use gives the driver the commit log, before any goroutine runs.
func (d *Driver[P]) Use(log Log, cluster bool) {
	d.log, d.cluster = log, cluster
	switch {
	case d.host.InlineLog():
	case cluster:
		d.gathered = make(chan struct{}, 1)
	default:
		d.beside = make(chan struct{}, 1)
	}
}

// Run starts the goroutine that works beside the log's own. It runs until stop is closed.
func (d *Driver[P]) Run(spawn func(func())) {
	if d.gathered != nil {
		spawn(d.writeGathered)
	}
	if d.beside != nil {
		spawn(d.stepBeside)
	}
}

// Drained says whether all inboxes are sealed and no group is on its way to the disk.
func (d *Driver[P]) Drained() bool { return d.inFlight.Load() == 0 && !d.hasReady() }

// maxRefills bounds how often Each takes inboxes that became ready while it worked. Without a bound it might never end:
// a producer whose put was refused may put again at once.
const maxRefills = 4

// Begins says whether a group begins now. It takes no inbox before that is certain: puts that arrive until then join
// the group.
func (d *Driver[P]) Begins() bool {
	return (d.inFlight.Load() == 0 || d.large()) && !d.leavesGroup() && d.refillWork()
}

// Each calls seal with each partition whose inbox waits, until seal returns false because the group is full. What is
// left then comes with the next group.
func (d *Driver[P]) Each(seal func(*P) bool) {
	for range maxRefills {
		for d.at < len(d.work) && seal(d.work[d.at]) {
			d.work[d.at] = nil
			d.at++
		}
		if d.at < len(d.work) || !d.refillWork() {
			break
		}
	}
}

// Gathered ends what Begins began. written says that the group has something to write, shared that it has several puts.
func (d *Driver[P]) Gathered(written, shared bool) {
	if written {
		d.inFlight.Add(1)
	}
	d.lastGroupShared.Store(shared)
	d.leftover.Store(d.at < len(d.work))
}

// Told is called when the puts of a group are answered. waiters is how many goroutines waited for them.
func (d *Driver[P]) Told(waiters int) {
	d.waited.Store(waiters > 1)
	// This comes last. Until then Push wakes nobody when a producer that was just answered puts again.
	if d.inFlight.Add(-1) == 0 && waiters > 1 {
		// The producers that were just answered are runnable on this processor. Let them run first, so that their next
		// puts join the next group. Otherwise the next group has only the puts that arrived while this group was on the
		// disk, about half of all, and each put waits for two flushes.
		runtime.Gosched()
	}
}

// refillWork takes the partitions of ready once all of work is sealed. It says whether an inbox waits at d.work[d.at].
func (d *Driver[P]) refillWork() bool {
	if d.at == len(d.work) {
		d.work, d.at = d.work[:0], 0
		d.readyMu.Lock()
		d.work, d.ready = d.ready, d.work
		d.readyMu.Unlock()
	}
	return len(d.work) > 0
}

// Push tells the committer that the inbox of p is no longer empty. With alone, the caller has nothing to do but wait
// for the answer to its put; if the commit log is idle, the caller then does the committer's work itself. b is nil if
// the caller must not hang in a write. Any goroutine may call Push, without Inbox.mu.
func (d *Driver[P]) Push(p *P, alone bool, b Blocker) {
	d.readyMu.Lock()
	d.ready = append(d.ready, p)
	d.readyMu.Unlock()
	// While a group is on the disk, no wake-up is needed: clog calls Gather after Durable has decremented inFlight, and
	// ready already lists p. A wake-up would only take a processor from the producers. If enough bytes wait for a
	// second group, the inbox wakes the log.
	if d.inFlight.Load() > 0 {
		return
	}
	// If the last group had several puts, the next one probably will too. Then the first caller must not write a group
	// of its own: the other puts would have to wait for that write.
	switch {
	case !alone || d.lastGroupShared.Load():
	case d.cluster:
		// The caller may be the goroutine of a client's connection. It must not hang when this node's disk does. So it
		// only seals the batch and sends it to the followers, and another goroutine writes the group. The goroutine of
		// a connection to another node may write itself, because it can be replaced while it hangs
		// (netproto.Conn.MayBlock). It does not write either if the disk is slow.
		if d.log.GatherOnSpot() && d.gathered != nil {
			if b != nil && d.lastWrite.Load() < int64(maxSpotWrite) {
				b.MayBlock()
				d.writeHere()
				return
			}
			select {
			case d.gathered <- struct{}{}:
			default: // writeGathered has not taken the previous value yet, and will find this group too
			}
			return
		}
	case d.log.StepOnSpot() && !d.hasReady():
		return
	}
	if d.suitsBeside() {
		d.leave()
	} else {
		d.log.Wake()
	}
}

// suitsBeside says whether stepBeside is to do the commit log's work: the last group had several waiting goroutines,
// which the committer lets run before the next group, and puts do not wait for two groups at a time.
func (d *Driver[P]) suitsBeside() bool { return d.beside != nil && d.waited.Load() && !d.large() }

// leave lets stepBeside do the commit log's work.
func (d *Driver[P]) leave() {
	select {
	case d.beside <- struct{}{}:
	default: // it has not taken the previous value yet, and will find all that waits
	}
}

// leavesGroup leaves the next group to stepBeside, if that suits it and several groups before, and the commit log's own
// goroutine is about to write it. It says whether it did.
func (d *Driver[P]) leavesGroup() bool {
	if d.small++; !d.suitsBeside() {
		d.small = 0
	}
	if d.small <= maxSmall || !d.log.CanLeave() {
		return false
	}
	if d.hasReady() {
		d.leave()
	}
	return true
}

// stepBeside does the commit log's work while that suits it, until stop is closed. It has its own goroutine, on a
// single node only. Like the commit log's goroutine, it may hang as long as the disk does.
func (d *Driver[P]) stepBeside() {
	for d.host.Either(d.beside, d.stop) {
		for d.hasReady() {
			if !d.suitsBeside() || !d.log.StepBeside() {
				d.log.Wake()
				break
			}
		}
	}
}

// writeGathered writes the groups that Push gathered on other goroutines, until stop is closed. It has its own
// goroutine, on nodes of a cluster only. Like the commit log's goroutine, it may hang as long as the disk does.
func (d *Driver[P]) writeGathered() {
	for d.host.Either(d.gathered, d.stop) {
		d.writeHere()
	}
}

// writeHere writes the group that Push gathered, on the calling goroutine.
func (d *Driver[P]) writeHere() {
	h := d.host
	begin := h.Mono()
	wrote := d.log.WriteOnSpot()
	d.lastWrite.Store(int64(h.Mono() - begin))
	// A put that arrived while the group was on the disk did not wake the log. See Push.
	if !wrote || d.hasReady() {
		d.log.Wake()
	}
}

// maxSpotWrite bounds how long the last write may have taken if a connection's goroutine is to make the next one. While
// that goroutine writes, it reads nothing from the other node.
const maxSpotWrite = 2 * time.Millisecond

// maxSmall is how many small groups the commit log's goroutine writes before it leaves the next ones to stepBeside. A
// producer with much on its way leaves an inbox nearly empty now and then; it would suffer from each change.
const maxSmall = 8

// hasReady says whether any inbox waits to be sealed.
func (d *Driver[P]) hasReady() bool {
	d.readyMu.Lock()
	defer d.readyMu.Unlock()
	return len(d.ready) > 0 || d.leftover.Load()
}
