package clog

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// TestFailedWrite fails every durable write of a run in turn, wholly and in part. The source is told once, nothing is
// acknowledged afterwards (else the model panics), the error stays, and recovery finds everything that was acknowledged
// before (B18; invariant 7).
func TestFailedWrite(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	rules := map[string]faultaio.Rule{
		"EIO":   {Kind: faultaio.KindWriteSync, Name: "clog/*", Err: syscall.EIO},
		"short": {Kind: faultaio.KindWriteSync, Name: "clog/*", ShortBytes: 512, Err: io.ErrShortWrite},
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for n := range 40 {
				d := faultaio.New(faultaio.Options{Seed: uint64(n)})
				rule.After = n
				d.Inject(rule)
				m := crashModel()
				err := newLife(d, arena, m, uint64(n)).run(60, true)
				if !errors.Is(err, ErrFailed) || !errors.Is(err, rule.Err) || m.failed != 1 || !errors.Is(m.err, ErrFailed) {
					t.Fatalf("write %d: %v; failed %d times: %v", n, err, m.failed, m.err)
				}
				for crash := range uint64(3) {
					r, _, err := recovered(d.Crash(crash), arena, m)
					if err == nil {
						err = r.check()
					}
					if err != nil {
						t.Fatalf("write %d: %v", n, err)
					}
				}
			}
		})
	}
}

// TestFailedForEver checks that Step keeps returning the error and touches nothing.
func TestFailedForEver(t *testing.T) {
	d := faultaio.New(faultaio.Options{Log: true})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	step(t, l, 1)
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Err: syscall.EIO})
	m.put(3)
	var first error
	const most = 1000 // a queue has the completion long before that
	for range most {
		if _, first = l.Step(false); first != nil {
			break
		}
	}
	if first == nil || m.acked != 0 {
		t.Fatalf("a failed write is not told: %d acknowledged", m.acked)
	}
	ops := d.Ops()
	for range 5 {
		m.put(1)
		l.Wake()
		if _, err := l.Step(true); err != first {
			t.Errorf("%v, then %v", first, err)
		}
	}
	if d.Ops() != ops || m.failed != 1 || m.acked != 0 || !l.Stats().Failed {
		t.Errorf("%d operations after the failure, failed %d times, %d acknowledged: %v",
			d.Ops()-ops, m.failed, m.acked, d.Log()[ops:])
	}
}

// TestFailedPreparation checks that the log fails with its spare file: a disk that cannot be trusted with a spare file
// cannot be trusted with the log.
func TestFailedPreparation(t *testing.T) {
	for _, rule := range []faultaio.Rule{
		{Kind: faultaio.KindSync, Name: "spare/*", Err: syscall.EIO},
		{Kind: faultaio.KindWrite, Name: "spare/*", Err: syscall.EIO},
		{Kind: faultaio.KindSyncDir, Name: dirName, Err: syscall.EIO},
		{Kind: faultaio.KindRename, Name: "spare/*", Err: syscall.EROFS},
	} {
		for n := range 4 {
			t.Run(fmt.Sprintf("%v %d", rule.Kind, n), func(t *testing.T) {
				d := faultaio.New(faultaio.Options{})
				rule.After = n
				d.Inject(rule)
				m := crashModel()
				err := newLife(d, testArena(t, 4*aio.BlockBytes, 3), m, 1).run(60, true)
				if !errors.Is(err, ErrFailed) || !errors.Is(err, rule.Err) || m.failed != 1 {
					t.Fatalf("%v; failed %d times", err, m.failed)
				}
			})
		}
	}
}

// TestFailedInBackground checks that the failure of a spare file stops the log even if the log's own file has room.
func TestFailedInBackground(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	opts := small(0)
	opts.Inline = false
	d.Inject(faultaio.Rule{Kind: faultaio.KindSync, Name: "spare/*", After: 1, Count: -1, Err: syscall.EIO})
	l, _, err := Open(d, testArena(t, 4*aio.BlockBytes, 3), opts, &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	if err := l.Run(); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) || m.failed != 1 {
		t.Errorf("%v, failed %d times", err, m.failed)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestDiskFull checks that lack of room is not a failure. The log waits, and goes on when there is room or when Release
// gives a file back.
func TestDiskFull(t *testing.T) {
	opts := small(0)
	for _, how := range []string{"more room", "release"} {
		t.Run(how, func(t *testing.T) {
			d := faultaio.New(faultaio.Options{CapacityBytes: 3*opts.FileBytes + markSlots*aio.BlockBytes})
			m := newModel()
			l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), opts, m)
			opts := l.opts
			l.opts.MaxLiveBytes = 100 * opts.FileBytes // the disk is the limit, not the log
			m.put(1 << 20)
			step(t, l, 200)
			if s := l.Stats(); s.StallsSpare != 1 || s.Files != 3 || s.Full {
				t.Fatalf("the log does not wait for room: %+v", s)
			}
			acked := m.acked
			if how == "release" {
				l.Release(m.release())
			} else {
				d.SetCapacity(6 * opts.FileBytes)
			}
			step(t, l, 20)
			if m.acked <= acked || m.failed != 0 {
				t.Errorf("%d acknowledged after %d: %+v", m.acked, acked, l.Stats())
			}
			r, _, err := recovered(d.Crash(1), l.arena, m)
			if err == nil {
				err = r.check()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNoQueue checks that a log that cannot make a queue fails before it takes any record.
func TestNoQueue(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l, _, err := Open(d, testArena(t, 4*aio.BlockBytes, 3), small(0), &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Run(); !errors.Is(err, ErrFailed) || m.failed != 1 {
		t.Errorf("%v, failed %d times", err, m.failed)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// openOn opens and starts a log that is closed at the end of the test.
func openOn(t testing.TB, d aio.Disk, arena *aio.Arena, opts Options, s Source) *Log {
	t.Helper()
	var r Replayer = &keeper{}
	if m, ok := s.(*model); ok {
		r = &replayed{m: m}
	}
	l, _, err := Open(d, arena, opts, r)
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(s)
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func step(t testing.TB, l *Log, turns int) {
	t.Helper()
	for range turns {
		if _, err := l.Step(false); err != nil {
			t.Fatal(err)
		}
	}
}
