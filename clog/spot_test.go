package clog

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/patience"
)

// spotLog is a running log on a disk that can hang. The log is idle and has one record in its first file.
func spotLog(t *testing.T) (d *faultaio.Disk, m *model, l *Log, ran chan error) {
	t.Helper()
	d, m = faultaio.New(faultaio.Options{}), newModel()
	opts := small(0)
	opts.Inline = false
	l, _, err := Open(d, testArena(t, 4*aio.BlockBytes, 3), opts, &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	ran = make(chan error, 1)
	go func() { ran <- l.Run() }()
	m.put(1)
	l.Wake()
	soon(t, "the log has a record", func() bool { return m.durable() == 1 })
	idle(t, l)
	return d, m, l, ran
}

func (m *model) durable() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.acked
}

func (m *model) gathered() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.added
}

func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience.Or(time.Minute)); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("did not come in time: %s", what)
		}
	}
}

func idle(t *testing.T, l *Log) {
	t.Helper()
	soon(t, "the log is idle", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.canStepOnSpot()
	})
}

func closeLog(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestGatherOnSpot checks that the caller gathers and does not wait for the disk, to which the log's goroutine writes.
func TestGatherOnSpot(t *testing.T) {
	for _, solo := range []bool{false, true} {
		d, m, l, ran := spotLog(t)
		m.mu.Lock()
		m.solo = solo
		m.mu.Unlock()
		d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Hold: true, Count: -1})
		m.put(1)
		back := make(chan struct{})
		go func() {
			defer close(back)
			for m.gathered() < 2 && !t.Failed() { // the log may have woken up briefly, as when a file becomes ready
				l.GatherOnSpot()
			}
		}()
		select {
		case <-back:
		case <-time.After(patience.Or(time.Minute)):
			t.Fatalf("solo %v: the caller waits for a disk that hangs, or gathers nothing", solo)
		}
		m.put(1)
		l.GatherOnSpot() // a group is in flight: nothing happens
		l.Wake()
		if n := m.durable(); n != 1 {
			t.Errorf("solo %v: %d records are durable on a disk that hangs, want 1", solo, n)
		}
		d.ClearRules()
		soon(t, "what was written is durable", func() bool {
			d.ReleaseHeld()
			return m.durable() == 3
		})
		l.Stop()
		if err := <-ran; err != nil {
			t.Errorf("solo %v: %v", solo, err)
		}
		closeLog(t, l)
		if _, _, err := recovered(d, l.arena, m); err != nil {
			t.Errorf("solo %v: %v", solo, err)
		}
	}
}

// TestGatherOnSpotDoesNotWait checks that a caller does not wait for the holder of the log's lock, which may be in a
// write that hangs.
func TestGatherOnSpotDoesNotWait(t *testing.T) {
	_, m, l, ran := spotLog(t)
	m.put(1)
	l.mu.Lock()
	back := make(chan struct{})
	go func() {
		defer close(back)
		l.GatherOnSpot()
	}()
	select {
	case <-back:
	case <-time.After(patience.Or(time.Minute)):
		t.Error("the caller waits for whoever has the lock")
	}
	if n := m.gathered(); n != 1 {
		t.Errorf("%d records were gathered without the lock, want 1", n)
	}
	l.mu.Unlock()
	<-back
	l.Wake()
	soon(t, "the log has both records", func() bool { return m.durable() == 2 })
	l.Stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	closeLog(t, l)
}

// TestGatherOnSpotThenStop checks that a group that was gathered on the spot is written even if the log is to stop.
func TestGatherOnSpotThenStop(t *testing.T) {
	_, m, l, ran := spotLog(t)
	m.put(1)
	l.GatherOnSpot()
	l.Stop()
	if err := <-ran; err != nil || m.durable() != 2 {
		t.Errorf("%v, %d records are durable, want 2", err, m.durable())
	}
	closeLog(t, l)
}

// TestGatherOnSpotThenFailure checks that such a group's write fails like any other.
func TestGatherOnSpotThenFailure(t *testing.T) {
	d, m, l, ran := spotLog(t)
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Count: -1, Err: syscall.EIO})
	m.put(1)
	l.GatherOnSpot()
	l.Wake()
	if err := <-ran; !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) || m.failed != 1 || m.durable() != 1 {
		t.Errorf("%v, failed %d times, %d records are durable, want 1", err, m.failed, m.durable())
	}
	l.GatherOnSpot() // a failed log asks its source for nothing
	closeLog(t, l)
}

// TestWriteOnSpot checks that a gathered group is durable when WriteOnSpot returns true, and is written once. Without a
// gathered group WriteOnSpot does nothing.
func TestWriteOnSpot(t *testing.T) {
	_, m, l, ran := spotLog(t)
	if l.WriteOnSpot() {
		t.Error("there was nothing to write")
	}
	onSpot := 0
	for n := uint64(2); n < 5; n++ { // nothing is released: the log has room for only a few
		m.put(1)
		switch gathered := l.GatherOnSpot(); {
		case gathered && l.WriteOnSpot():
			onSpot++
			if m.durable() != n {
				t.Fatalf("%d records are durable, want %d", m.durable(), n)
			}
			if l.WriteOnSpot() {
				t.Fatal("the same group was written twice")
			}
		default: // the log needs a new file, or woke up briefly
			l.Wake()
			soon(t, "the log's goroutine writes", func() bool { return m.durable() == n })
		}
	}
	if onSpot == 0 {
		t.Error("nothing was written on the spot")
	}
	l.Stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	closeLog(t, l)
}

// TestWriteOnSpotFails checks that a failed write on the spot ends the log, like any other failed write.
func TestWriteOnSpotFails(t *testing.T) {
	d, m, l, ran := spotLog(t)
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Count: -1, Err: syscall.EIO})
	m.put(1)
	if !l.GatherOnSpot() || !l.WriteOnSpot() {
		l.Wake()
	}
	if err := <-ran; !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) || m.failed != 1 || m.durable() != 1 {
		t.Errorf("%v, failed %d times, %d records are durable, want 1", err, m.failed, m.durable())
	}
	closeLog(t, l)
}

// TestStepBeside checks that StepBeside waits for the lock, makes what waits durable before it returns, and does
// nothing once the log is to stop: then the log's own goroutine writes the rest. CanLeave says beforehand which of the
// two holds.
func TestStepBeside(t *testing.T) {
	_, m, l, ran := spotLog(t)
	beside := 0
	for n := uint64(2); n < 5; n++ {
		idle(t, l)
		l.mu.Lock()
		m.put(1)
		if l.onSpot = true; l.CanLeave() {
			t.Error("whoever does the log's work for it would leave it to itself")
		}
		l.onSpot = false
		left, stepped := l.CanLeave(), make(chan bool, 1)
		go func() { stepped <- l.StepBeside() }()
		l.mu.Unlock()
		if <-stepped {
			if beside++; !left || m.durable() != n {
				t.Errorf("%d records are durable, want %d; the log could leave them: %v", m.durable(), n, left)
			}
			continue
		} // the log needs a new file, or was woken late by an earlier Wake, and may have written the record itself
		if m.durable() < n {
			l.Wake()
		}
		soon(t, "the log's goroutine writes", func() bool { return m.durable() == n })
	}
	if beside == 0 {
		t.Error("nothing was written beside the log's goroutine")
	}
	l.mu.Lock()
	m.put(1)
	l.Stop()
	if l.CanLeave() {
		t.Error("a log that is to stop leaves its work to others")
	}
	l.mu.Unlock()
	if err := <-ran; err != nil || l.StepBeside() || m.durable() != 5 {
		t.Errorf("%v, %d records are durable, want 5", err, m.durable())
	}
	closeLog(t, l)
}
