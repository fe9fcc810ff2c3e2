package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/underrace"
)

// A full disk loses nothing, and space that is freed is used without a restart.
func TestNoSpace(t *testing.T) {
	d := faultaio.New(faultaio.Options{Seed: 1, CapacityBytes: 50 << 10})
	w := newWorld(t, d)
	w.fill(newRand(30), 100)
	for {
		_, err := w.log.Flush(w.w, 4<<10)
		if errors.Is(err, syscall.ENOSPC) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if flushed := w.log.Flushed(); flushed == 0 || flushed == w.st.End {
		t.Fatalf("flushed %d of %d: the disk did not fill up on the way", flushed, w.st.End)
	}
	w.sync()
	w.log.Evict(w.st.End)
	w.check()
	w.append(1, 100)
	d.SetCapacity(10 << 20)
	w.settle()
	w.check()
	w.reopen()
	w.check()
}

// A failed write or sync poisons the files: nothing is written or synced any more, Synced does not move, reads go on,
// and the commit log's files stay needed. Reopening from the last checkpoint brings everything back.
func TestFailedFilesStayFailed(t *testing.T) {
	for _, kind := range []faultaio.Kind{faultaio.KindWrite, faultaio.KindSync, faultaio.KindSyncDir} {
		t.Run(kind.String(), func(t *testing.T) {
			d := faultaio.New(faultaio.Options{Seed: 1})
			w := newWorld(t, d)
			w.fill(newRand(31), 5)
			w.settle()
			synced := w.log.Synced()
			d.Inject(faultaio.Rule{Kind: kind, Err: syscall.EIO, Count: 1})
			w.fileSeq++
			w.fill(newRand(32), 60)
			var err error
			for err == nil {
				if _, err = w.log.Flush(w.w, 4<<10); err == nil {
					err = w.log.Sync()
				}
				synced = max(synced, w.log.Synced())
			}
			if !errors.Is(err, ErrPoisoned) || !errors.Is(err, syscall.EIO) {
				t.Fatal(err)
			}
			ops := d.Ops()
			if _, err := w.log.Flush(w.w, 1<<20); !errors.Is(err, ErrPoisoned) {
				t.Errorf("flush after the failure: %v", err)
			}
			if err := w.log.Sync(); !errors.Is(err, ErrPoisoned) {
				t.Errorf("sync after the failure: %v", err)
			}
			if d.Ops() != ops {
				t.Error("the files were written or synced after the failure")
			}
			if err := w.log.Health(); !errors.Is(err, ErrPoisoned) {
				t.Errorf("Health: %v", err)
			}
			if got := w.log.Synced(); got != synced {
				t.Errorf("synced %d, want %d", got, synced)
			}
			if _, ok := w.log.OldestUnsyncedFileSeq(); !ok {
				t.Error("the commit log's files are no longer needed")
			}
			w.append(1, 10)
			if got, _, err := w.readAll(1 << 20); err != nil || len(got) != len(w.model) {
				t.Errorf("%d of %d batches are read, %v", len(got), len(w.model), err)
			}
			w.disk = d.Crash(7) // what the device really holds
			w.reopenAt(w.stateAt(synced))
			w.check()
			w.settle()
			w.check()
		})
	}
}

// A segment that somebody removes before its sync is not synced, so that the commit log keeps what it holds.
func TestSegmentIsRemovedBeforeItsSync(t *testing.T) {
	d := faultaio.New(faultaio.Options{Seed: 1})
	w := newWorld(t, d)
	w.fill(newRand(31), 60)
	if _, err := w.log.Flush(w.w, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(w.log.Segments()[0].Path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.log.Sync(); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if w.log.Synced() != 0 {
		t.Errorf("synced %d", w.log.Synced())
	}
	if seq, ok := w.log.OldestUnsyncedFileSeq(); !ok || seq != 1 {
		t.Errorf("the commit log keeps files from %d on, %v", seq, ok)
	}
}

// The first segment is removed while the checkpoint ends exactly at its end. What a version of level 2 left by its
// retention looks the same, except for the index: the segment is missing, and was not trimmed.
func TestFirstSegmentIsMissingAtACheckpoint(t *testing.T) {
	for _, old := range []bool{false, true} {
		d := faultaio.New(faultaio.Options{Seed: 1})
		w := newWorld(t, d)
		w.fill(newRand(31), 60)
		w.settle()
		all := w.log.Segments()
		st := w.stateAt(all[0].End)
		if len(all) < 2 || st.End != all[1].Start || st.Segment != 0 {
			t.Fatalf("%d segments, state %+v", len(all), st)
		}
		if err := errors.Join(w.log.Close(), d.Remove(all[0].Path)); err != nil {
			t.Fatal(err)
		}
		w.opts.OldIndexes, w.opts.Noted = old, false
		w.open(st)
		if health := w.log.Health(); old != (health == nil) {
			t.Errorf("old indexes %v: Health: %v", old, health)
		}
		if start, _, _ := w.log.Start(); old != (start == st.End) {
			t.Errorf("old indexes %v: the log begins at %d of %d", old, start, st.End)
		}
	}
}

// No descriptor is left when a new segment's directory is to be synced: nothing has failed. The next sync does it, and
// writes the indexes that are due.
func TestNoDescriptorForTheDirectory(t *testing.T) {
	for _, why := range []error{syscall.EMFILE, syscall.ENFILE} {
		d := faultaio.New(faultaio.Options{Seed: 1})
		w := newWorld(t, d)
		w.fill(newRand(31), 60)
		if _, err := w.log.Flush(w.w, 1<<20); err != nil {
			t.Fatal(err)
		}
		d.Inject(faultaio.Rule{Kind: faultaio.KindSyncDir, Err: why, Count: 2})
		for range 2 {
			if err := w.log.Sync(); !errors.Is(err, why) || errors.Is(err, ErrPoisoned) {
				t.Fatal(err)
			}
		}
		if w.log.Synced() != 0 || w.log.Health() != nil {
			t.Errorf("synced %d, health %v", w.log.Synced(), w.log.Health())
		}
		w.settle()
		if w.log.Synced() != w.st.End {
			t.Errorf("synced %d of %d", w.log.Synced(), w.st.End)
		}
		have, err := listFiles(d, w.log.dir)
		if err != nil || len(have.indexes) != len(w.log.Segments())-1 {
			t.Errorf("%d indexes of %d segments, %v", len(have.indexes), len(w.log.Segments()), err)
		}
		w.disk = d.Crash(7)
		w.reopen()
		w.check()
	}
}

// B43 (for segments): the power fails at every operation of a run that appends, flushes, syncs, cuts, trims and resets.
// The log, opened from the checkpoint after the last sync and with the rest handed over again, is whole.
func TestPowerCutAnywhere(t *testing.T) {
	total := crashLife(t, -1, 0)
	seeds := uint64(6)
	if testing.Short() {
		seeds = 1
	}
	for op := 0; op < total; op += underrace.Stride {
		for seed := range seeds {
			if t.Failed() {
				return
			}
			crashLife(t, op, seed)
		}
	}
	t.Logf("%d crash states", total*int(seeds))
}

// crashLife runs until the power fails at operation op, recovers, and checks. It returns the number of operations of a
// whole run.
func crashLife(t *testing.T, op int, seed uint64) int {
	d := faultaio.New(faultaio.Options{Seed: 1})
	d.CrashAt(op)
	w := newWorld(t, d)
	checkpoint, end := liveUntilCrash(w, rand.New(rand.NewPCG(40, 1)))
	if op < 0 {
		w.check()
		return d.Ops()
	}
	if end != nil && !errors.Is(end, faultaio.ErrCrashed) {
		t.Fatalf("op %d: %v", op, end)
	}
	_ = w.log.Close()
	w.disk = d.Crash(seed)
	for round := range 2 { // recover, then recover again
		w.open(checkpoint)
		w.trimmed() // retention may have gone further than the model saw
		for i := range w.model {
			if w.model[i].slice.Offset >= checkpoint.End {
				w.hand(&w.model[i])
			}
		}
		w.check()
		w.append(1, 50+round)
		w.settle()
		w.check()
		if t.Failed() {
			t.Fatalf("at operation %d, seed %d", op, seed)
		}
		if err := w.log.Close(); err != nil {
			t.Fatal(err)
		}
		checkpoint = w.st
	}
	return 0
}

// liveUntilCrash returns the checkpoint that the engine would have: the state at the last successful sync.
func liveUntilCrash(w *world, rng *rand.Rand) (checkpoint State, err error) {
	for step := range 40 {
		w.fill(rng, 4)
		if _, err := w.log.Flush(w.w, int64(rng.IntN(6000))); err != nil {
			return checkpoint, err
		}
		if rng.IntN(2) == 0 {
			w.log.Evict(w.log.Flushed())
		}
		if rng.IntN(3) == 0 {
			if err := w.log.Sync(); err != nil {
				return checkpoint, err
			}
			checkpoint = w.stateAt(w.log.Synced())
		}
		if step%7 == 5 {
			_, err := w.log.Trim(checkpoint.End - Offset(rng.IntN(3000)))
			w.trimmed()
			if err != nil {
				return checkpoint, err
			}
		}
		if step%9 == 8 { // a cut is in the commit log first, so a checkpoint above it is void, and replay cuts again
			keep := len(w.model) - min(len(w.model), rng.IntN(20))
			st := w.begin
			if keep > 0 {
				st = w.model[keep-1].after
			}
			w.model, w.st = w.model[:keep], st
			err := w.log.Truncate(st)
			if checkpoint.End > st.End {
				checkpoint = st
			}
			w.st.Epoch++
			if err != nil {
				return checkpoint, err
			}
		}
	}
	return checkpoint, nil
}

// B27, B42: concurrent appends, reads by position and by id, flushes, syncs, evictions, trims and reopens. Every reader
// sees every batch from its starting point on, in order, byte by byte.
func TestTorture(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorldOf(t, disk, Sizes{64 << 10, 256 << 10}, testOptions)
		for round := range 4 {
			w.tortureRound(trials(400), uint64(round))
			w.check()
			w.flush()
			w.sync()
			w.reopen()
			w.check()
		}
	})
}

func (w *world) tortureRound(batches int, seed uint64) {
	var done atomic.Bool
	var mu sync.Mutex // guards the model between the appender and the readers' comparisons
	var wg sync.WaitGroup
	fail := func(format string, args ...any) {
		w.t.Errorf(format, args...)
		done.Store(true)
	}
	background := func(fn func(rng *rand.Rand) error) {
		wg.Go(func() {
			rng := newRand(seed)
			for !done.Load() {
				if err := fn(rng); err != nil {
					fail("%v", err)
				}
			}
		})
	}
	writer := NewWriter()
	defer writer.Close()
	background(func(rng *rand.Rand) error { _, err := w.log.Flush(writer, int64(rng.IntN(100<<10))); return err })
	background(func(*rand.Rand) error { return w.log.Sync() })
	background(func(rng *rand.Rand) error {
		w.log.Evict(w.log.Flushed() - Offset(rng.IntN(20<<10)))
		_, err := w.log.Trim(w.log.Synced() - 500<<10)
		w.log.Segments()
		return err
	})
	for range 2 {
		background(func(rng *rand.Rand) error { return w.tortureRead(rng, &mu) })
	}
	rng := newRand(seed + 1000)
	for range batches {
		if done.Load() {
			break
		}
		mu.Lock()
		w.fill(rng, 1)
		mu.Unlock()
	}
	done.Store(true)
	wg.Wait()
	w.trimmed()
}

// tortureRead reads a stretch from a random place and compares it with the model.
func (w *world) tortureRead(rng *rand.Rand, mu *sync.Mutex) error {
	mu.Lock()
	if len(w.model) == 0 {
		mu.Unlock()
		return nil
	}
	from := rng.IntN(len(w.model))
	want := w.model[from:min(from+20, len(w.model))] // appending never changes existing elements
	mu.Unlock()
	at := want[0].slice.Offset
	if s := want[0].slice; s.Count > 0 && rng.IntN(2) == 0 {
		got, first, err := w.log.Seek(s.FirstID + MsgID(rng.IntN(int(s.Count))))
		if errors.Is(err, ErrBelowStart) {
			return nil
		}
		if err != nil || got != at || first != s.FirstID {
			return fmt.Errorf("seek to batch at %d: %d, %d, %w", at, got, first, err)
		}
	}
	var v View
	for len(want) > 0 {
		err := w.log.View(&v, at, rng.IntN(10<<10))
		if errors.Is(err, ErrBelowStart) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("view at %d: %w", at, err)
		}
		run := v.Bytes()
		for len(run) > 0 && len(want) > 0 {
			if n := len(want[0].data); n > len(run) || string(run[:n]) != string(want[0].data) {
				v.Release()
				return fmt.Errorf("batch at %d differs", want[0].slice.Offset)
			}
			run, want = run[len(want[0].data):], want[1:]
		}
		at += Offset(len(v.Bytes()))
		v.Release()
	}
	return nil
}

// A reset of a log whose files are poisoned removes all of them; the new files are written and read back. If the files
// cannot be removed, the log stays as it is.
func TestResetOfFailedFiles(t *testing.T) {
	for _, kind := range []faultaio.Kind{faultaio.KindWrite, faultaio.KindSync, faultaio.KindSyncDir} {
		t.Run(kind.String(), func(t *testing.T) {
			d := faultaio.New(faultaio.Options{Seed: 1})
			w := newWorld(t, d)
			w.fill(newRand(31), 5)
			w.settle()
			d.Inject(faultaio.Rule{Kind: kind, Err: syscall.EIO})
			w.fill(newRand(32), 60)
			_, err := w.log.Flush(w.w, 1<<20)
			if err = errors.Join(err, w.log.Sync()); !errors.Is(err, ErrPoisoned) {
				t.Fatal(err)
			}
			d.ClearRules()
			d.Inject(faultaio.Rule{Kind: faultaio.KindRename, Err: syscall.EIO})
			if err := w.log.Reset(State{}); !errors.Is(err, ErrPoisoned) || !errors.Is(w.log.Health(), ErrPoisoned) {
				t.Fatalf("%v, and Health says %v", err, w.log.Health())
			}
			if err := w.log.Reset(State{}); err != nil || w.log.Health() != nil {
				t.Fatalf("%v, and Health says %v", err, w.log.Health())
			}
			w.st, w.begin, w.model = State{}, State{}, nil
			w.fill(newRand(33), 60)
			w.settle()
			w.check()
			w.disk = d.Crash(7) // what the device really holds
			w.reopen()
			w.check()
		})
	}
}
