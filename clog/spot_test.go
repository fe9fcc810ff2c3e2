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

// TestStepOnSpot checks that a caller makes its record durable before StepOnSpot returns true, while the log sleeps.
// Once the log is to stop, its own goroutine writes the rest.
func TestStepOnSpot(t *testing.T) {
	_, m, l, ran := spotLog(t)
	onSpot := 0
	for n := uint64(2); n < 5; n++ { // nothing is released: the log has room for only a few
		idle(t, l)
		m.put(1)
		if l.StepOnSpot() {
			onSpot++
			if m.durable() != n {
				t.Fatalf("%d records are durable, want %d", m.durable(), n)
			}
			continue
		} // the log needs a new file, or woke up briefly
		l.Wake()
		soon(t, "the log's goroutine writes", func() bool { return m.durable() == n })
	}
	if onSpot == 0 {
		t.Error("nothing was written on the spot")
	}
	l.mu.Lock()
	m.put(1)
	l.Stop()
	l.mu.Unlock()
	if err := <-ran; err != nil || l.StepOnSpot() || m.durable() != 5 {
		t.Errorf("%v, %d records are durable, want 5", err, m.durable())
	}
	closeLog(t, l)
}

// TestStepOnSpotDoesNotWait checks that a caller does not wait for the lock, whose holder may be in a write that hangs.
func TestStepOnSpotDoesNotWait(t *testing.T) {
	_, m, l, ran := spotLog(t)
	m.put(1)
	l.mu.Lock()
	stepped := make(chan bool, 1)
	go func() { stepped <- l.StepOnSpot() }()
	select {
	case did := <-stepped:
		if n := m.gathered(); did || n != 1 {
			t.Errorf("%v: %d records were gathered without the lock, want 1", did, n)
		}
	case <-time.After(patience.Or(time.Minute)):
		t.Error("the caller waits for whoever has the lock")
	}
	l.mu.Unlock()
	l.Wake()
	soon(t, "the log has both records", func() bool { return m.durable() == 2 })
	l.Stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	closeLog(t, l)
}

// TestStepOnSpotFails checks that a failed write on the spot ends the log, like any other failed write.
func TestStepOnSpotFails(t *testing.T) {
	d, m, l, ran := spotLog(t)
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Count: -1, Err: syscall.EIO})
	m.put(1)
	if !l.StepOnSpot() {
		l.Wake()
	}
	if err := <-ran; !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) || m.failed != 1 || m.durable() != 1 {
		t.Errorf("%v, failed %d times, %d records are durable, want 1", err, m.failed, m.durable())
	}
	if m.put(1); l.StepOnSpot() {
		t.Error("a failed log asks its source")
	}
	closeLog(t, l)
}

// TestLargeGroupsOverlap checks that a group above Options.DirectBytes goes through the queue, so that the next one is
// gathered while it is on its way, and that a smaller one is durable when Step returns.
func TestLargeGroupsOverlap(t *testing.T) {
	for _, c := range []struct {
		direct int
		queued bool
	}{{0, false}, {-1, true}, {aio.BlockBytes, false}} {
		d := faultaio.New(faultaio.Options{})
		m := newModel()
		opts := small(0)
		opts.DirectBytes = c.direct
		l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), opts, m)
		m.put(1)
		step(t, l, 5)
		d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Waits: 3})
		for n := uint64(2); n < 4; n++ {
			m.put(1)
			if _, err := l.Step(false); err != nil {
				t.Fatal(err)
			}
			if queued := m.durable() < n; queued != c.queued || m.gathered() != n {
				t.Errorf("up to %d bytes: a group of one block is on its way: %v; %d are gathered", c.direct, queued, m.gathered())
			}
		}
		step(t, l, 10)
		closeLog(t, l)
	}
}
