package driver

import (
	"runtime"
	"sync/atomic"

	"penstock/internal/lock"
)

// Log is the commit log, as the driver sees it. Package clog documents the methods.
type Log interface {
	StepOnSpot() bool
	Wake()
}

// Driver lists the partitions, of type P, whose inboxes wait, and decides when the commit log begins a group.
//
// Begins, Each, Gathered and Told run with clog.Log.mu held, on the one goroutine that works on the commit log at that
// time: the log's own, or a lone caller on an idle log (Log.StepOnSpot). So clog.Log.mu guards all fields except ready
// (readyMu) and the atomics.
type Driver[P any] struct {
	large   func() bool // enough bytes wait for two groups at a time
	log     Log
	cluster bool

	readyMu lock.Mutex[lock.CommitterReady]
	ready   []*P // partitions whose inbox was empty and has puts now

	work []*P // taken from ready; the inboxes of work[at:] are not sealed yet
	at   int

	leftover        atomic.Bool // the last group was full before all inboxes of work were sealed
	lastGroupShared atomic.Bool // the last group had several puts

	inFlight atomic.Int32 // groups on the disk
}

// Init is called before any other method.
func (d *Driver[P]) Init(large func() bool) { d.large = large }

// Use gives the driver the commit log, before any goroutine runs.
func (d *Driver[P]) Use(log Log, cluster bool) { d.log, d.cluster = log, cluster }

// Drained says whether all inboxes are sealed and no group is on its way to the disk.
func (d *Driver[P]) Drained() bool { return d.inFlight.Load() == 0 && !d.hasReady() }

// maxRefills bounds how often Each takes inboxes that became ready while it worked. Without a bound it might never end:
// a producer whose put was refused may put again at once.
const maxRefills = 4

// Begins says whether a group begins now. It takes no inbox before that is certain: puts that arrive until then join
// the group.
func (d *Driver[P]) Begins() bool {
	return (d.inFlight.Load() == 0 || d.large()) && d.refillWork()
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
// for the answer to its put; on a single node whose commit log is idle, it then does the committer's work itself, and
// hangs as long as the disk does. Any goroutine may call Push, without Inbox.mu.
func (d *Driver[P]) Push(p *P, alone bool) {
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
	// of its own: the other puts would have to wait for that write. In a cluster no caller writes: those who wait for
	// other nodes must not hang when this node's disk does.
	if alone && !d.cluster && !d.lastGroupShared.Load() && d.log.StepOnSpot() && !d.hasReady() {
		return
	}
	d.log.Wake()
}

// hasReady says whether any inbox waits to be sealed.
func (d *Driver[P]) hasReady() bool {
	d.readyMu.Lock()
	defer d.readyMu.Unlock()
	return len(d.ready) > 0 || d.leftover.Load()
}
