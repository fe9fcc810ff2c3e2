package world

import (
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// disk is a node's device: faultaio's, whose durable writes take time. With a mutant it lies.
type disk struct {
	*faultaio.Disk
	n *host
}

func newDisk(n *host) *disk { return &disk{Disk: n.media, n: n} }

// Close implements aio.Disk; the media stay.
func (d *disk) Close() error { return nil }

// NewQueue implements aio.Disk.
func (d *disk) NewQueue(o aio.QueueOptions) (aio.Queue, error) {
	inner, err := d.Disk.NewQueue(o)
	if err != nil {
		return nil, err
	}
	return &diskQueue{Queue: inner, n: d.n, life: d.n.life}, nil
}

// diskQueue completes its writes after a while.
type diskQueue struct {
	aio.Queue
	n    *host
	life int
	due  []int64
	lies []aio.Op // completed, and not written
}

func (q *diskQueue) Submit(op aio.Op) error {
	w := q.n.w
	op.File = honest(op.File)
	if w.cfg.Break == MutantEarlySync || w.cfg.Break == MutantIllDisk && q.n.isSlow() {
		q.lies = append(q.lies, op)
		q.n.later(w.opt.syncDelay, func() {})
		return nil
	}
	if err := q.Queue.Submit(op); err != nil {
		return err
	}
	d := w.skewed(w.opt.syncDelay/4, 2*w.opt.syncDelay) + q.n.ill.slow
	q.due = append(q.due, w.now+d)
	q.n.flying++
	q.n.later(d, func() {})
	return nil
}

func (q *diskQueue) Wait(done []aio.Completion, block bool) ([]aio.Completion, error) {
	if block {
		panic("BUG: world: a simulated engine waits for its disk")
	}
	for _, op := range q.lies {
		done = append(done, aio.Completion{Tag: op.Tag})
		_ = op.File.WriteAt(op.Data, op.Offset) // in some cache
	}
	q.lies = q.lies[:0]
	if len(q.due) == 0 || q.due[0] > q.n.w.now || q.n.hangs() {
		return done, nil
	}
	before := len(done)
	done, err := q.Queue.Wait(done, false)
	if err != nil {
		return done, err
	}
	q.n.flying -= len(done) - before
	for i := range done[before:] {
		if q.n.w.cfg.Break == MutantDeafDisk {
			done[before+i].Err = nil
		}
	}
	q.due = q.due[min(len(done)-before, len(q.due)):]
	if len(q.due) > 0 && q.due[0] <= q.n.w.now {
		q.n.later(20_000, func() {}) // the device was not ready after all
	}
	return done, nil
}

func (q *diskQueue) InFlight() int { return q.Queue.InFlight() + len(q.lies) }

func (d *disk) afterKill(seed uint64) *faultaio.Disk { return d.Disk.Kill(seed) }

func (d *disk) afterCrash(seed uint64) *faultaio.Disk { return d.Disk.Crash(seed) }

// The changes of names are shown.

func (d *disk) tracef(format string, args ...any) {
	if d.n.w.watched() {
		d.n.w.showf(d.n.name+": disk: "+format, args...)
	}
}

// Create implements aio.Disk.
func (d *disk) Create(name string, size int64) (aio.File, error) {
	return d.CreateSparse(name, size, size)
}

// CreateSparse implements aio.Disk.
func (d *disk) CreateSparse(name string, size, reserved int64) (aio.File, error) {
	f, err := d.create(name, size, reserved)
	d.tracef("create %s of %d: %v", name, size, err)
	return f, err
}

// Rename implements aio.Disk.
func (d *disk) Rename(from, to string) error {
	err := d.Disk.Rename(from, to)
	d.tracef("rename %s to %s: %v", from, to, err)
	return err
}

// Remove implements aio.Disk.
func (d *disk) Remove(name string) error {
	d.n.cutPowerAtRemoval(name)
	err := d.Disk.Remove(name)
	d.tracef("remove %s: %v", name, err)
	return err
}

// RemoveAll implements aio.Disk.
func (d *disk) RemoveAll(name string) error {
	err := d.Disk.RemoveAll(name)
	d.tracef("remove all of %s: %v", name, err)
	return err
}
