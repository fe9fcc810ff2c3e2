package bench

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/internal/node"
	"penstock/segment/aio"
)

// slowCommit is how long a durable write takes at least on a slowed device.
const slowCommit = time.Millisecond

// slowDisk is a disk of the real file system on which every durable write takes at least commit, and so does every
// flush. The time that the device needs itself is part of commit: slowDisk waits only for the rest of it.
type slowDisk struct {
	aio.Disk
	commit time.Duration
}

// openSlowEngine is openEngine on a slowed disk.
func openSlowEngine(b *testing.B, commit time.Duration) *node.Engine {
	b.Helper()
	disk, err := aio.OpenDisk(b.TempDir(), aio.DiskOptions{Mode: ioMode()})
	if err != nil {
		b.Fatal(err)
	}
	return openEngineWith(b, node.Options{Disk: &slowDisk{disk, commit}})
}

// sleepUntil waits in the kernel, as a thread does that waits for a device: Go's own timers are late by up to 1 ms.
func sleepUntil(at time.Time) {
	for d := time.Until(at); d > 0; d = time.Until(at) {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil) // a signal ends it early; then the loop goes on
	}
}

func (d *slowDisk) slow(f aio.File, err error) (aio.File, error) {
	if err != nil {
		return nil, err
	}
	return &slowFile{f, d.commit}, nil
}

func (d *slowDisk) Create(name string, size int64) (aio.File, error) {
	return d.slow(d.Disk.Create(name, size))
}

func (d *slowDisk) CreateSparse(name string, size, reserved int64) (aio.File, error) {
	return d.slow(d.Disk.CreateSparse(name, size, reserved))
}

func (d *slowDisk) Open(name string) (aio.File, error) { return d.slow(d.Disk.Open(name)) }

// NewQueue makes a queue whose completions come no earlier than the disk's commit time after Submit.
func (d *slowDisk) NewQueue(opts aio.QueueOptions) (aio.Queue, error) {
	inner, err := d.Disk.NewQueue(opts)
	if err != nil {
		return nil, err
	}
	q := &slowQueue{Queue: inner, commit: d.commit, due: map[uint64]time.Time{}}
	q.alarms = make(chan time.Time, aio.MaxQueueDepth)
	q.ringing.Go(func() {
		for at := range q.alarms {
			sleepUntil(at)
			inner.Wake()
		}
	})
	return q, nil
}

type slowFile struct {
	aio.File
	commit time.Duration
}

func (f *slowFile) WriteSyncAt(p []byte, off int64) error {
	due := time.Now().Add(f.commit)
	err := f.File.WriteSyncAt(p, off)
	sleepUntil(due)
	return err
}

func (f *slowFile) Sync() error {
	due := time.Now().Add(f.commit)
	err := f.File.Sync()
	sleepUntil(due)
	return err
}

// slowQueue keeps what the real queue has completed until it is due. The owner sleeps in the real queue; a goroutine
// wakes it when something is due. All fields but woken and alarms belong to the owner.
type slowQueue struct {
	aio.Queue
	commit  time.Duration
	due     map[uint64]time.Time // by tag, of what is in flight
	held    []aio.Completion     // not due yet
	woken   atomic.Bool          // the engine called Wake since the last blocking Wait
	alarms  chan time.Time
	ringing sync.WaitGroup
}

func (q *slowQueue) Submit(op aio.Op) error {
	at := time.Now().Add(q.commit)
	op.File = op.File.(*slowFile).File
	if err := q.Queue.Submit(op); err != nil {
		return err
	}
	q.due[op.Tag] = at
	q.alarms <- at
	return nil
}

func (q *slowQueue) Wait(done []aio.Completion, block bool) ([]aio.Completion, error) {
	for n, wait := len(done), false; ; wait = block {
		var err error
		if q.held, err = q.Queue.Wait(q.held, wait); err != nil {
			return done, err
		}
		early := q.held[:0]
		for _, c := range q.held {
			if time.Now().Before(q.due[c.Tag]) {
				early = append(early, c)
			} else {
				done = append(done, c)
				delete(q.due, c.Tag)
			}
		}
		q.held = early
		if !block || q.woken.Swap(false) || len(done) > n {
			return done, nil
		}
	}
}

func (q *slowQueue) InFlight() int { return len(q.due) }

func (q *slowQueue) Wake() {
	q.woken.Store(true)
	q.Queue.Wake()
}

func (q *slowQueue) Close() error {
	close(q.alarms)
	q.ringing.Wait()
	return q.Queue.Close()
}
