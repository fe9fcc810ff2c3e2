package clog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/underrace"
)

// small makes files of a few groups, so that a short run passes through every step of the log's life.
func small(seed uint64) Options {
	return Options{
		FileBytes: int64(8+seed%3*4) * aio.BlockBytes, MaxLiveBytes: 32 * aio.BlockBytes, Store: testStore, Inline: true,
		DirectBytes: -1, // see direct
	}
}

// life is one run of the log on a disk, driven step by step by a seed or a script.
type life struct {
	disk   aio.Disk
	arena  *aio.Arena
	m      *model
	opts   Options
	rng    *rand.Rand
	report *Report
	stats  Stats
	script []byte // what to do, in place of chance
	fills  bool   // now and then the disk, a *faultaio.Disk, has no room for a while
	full   bool
	held   []*aio.Buf // buffers that readers of the tail hold
}

func newLife(disk aio.Disk, arena *aio.Arena, m *model, seed uint64) *life {
	return &life{disk: disk, arena: arena, m: m, opts: small(seed), rng: rand.New(rand.NewPCG(seed, 7))}
}

// crashModel has records of all sizes: several in a block, several blocks long, one that needs a buffer of its own.
func crashModel() *model {
	m := newModel()
	m.chunks, m.silent = 9, true // files keep their size
	m.size = func(id uint64) int {
		switch id % 23 {
		case 5:
			return 18_000
		case 7, 15:
			return 5_000
		}
		return segment.HeaderBytes + int(id*37%900)
	}
	return m
}

// run opens the log, checks what was recovered, works for some turns and closes the log, cleanly or not. It returns the
// error that ended the run. A failed check is not such an error: it panics.
func (f *life) run(turns int, clean bool) (err error) {
	r := &replayed{m: f.m, keep: true}
	l, report, err := Open(f.disk, f.arena, f.opts, r)
	r.release()
	f.report = report
	if err != nil {
		return err
	}
	if err := r.check(); err != nil {
		panic(fmt.Sprintf("%v (%+v)", err, report))
	}
	m := f.m
	// Everything that recovery found is durable from here on, whether it was acknowledged before or not.
	m.added, m.acked, m.waiting = r.next, r.next, 0
	m.files = append(m.files[:0], fileEnd{report.NewestFile, r.next})
	m.retain = func(b *aio.Buf) {
		if f.rng.IntN(3) > 0 {
			b.Retain()
			f.held = append(f.held, b)
		}
	}
	defer func() {
		f.drop(len(f.held))
		f.stats = l.Stats()
		err = errors.Join(err, l.Close())
	}()
	l.SetSource(m)
	if err := l.Start(); err != nil {
		return err
	}
	for range turns {
		if err := f.turn(l); err != nil {
			return err
		}
	}
	if !clean {
		return nil
	}
	f.fill(false)
	l.Release(m.release())
	f.drop(len(f.held))
	return l.drain()
}

// fill sets whether the disk has room, if it is one that fills.
func (f *life) fill(full bool) {
	if f.fills {
		f.full = full
		f.disk.(*faultaio.Disk).SetNoRoom(full)
	}
}

func (f *life) turn(l *Log) error {
	if f.fills && f.rng.IntN(8) == 0 {
		f.fill(!f.full)
	}
	if len(f.script) > 0 {
		return f.scripted(l)
	}
	direct(l, f.rng.IntN(3) == 0)
	f.m.put(f.rng.IntN(6))
	if f.rng.IntN(5) == 0 || l.Full() {
		l.Release(f.m.release())
	}
	if f.rng.IntN(3) == 0 {
		f.drop(f.rng.IntN(len(f.held) + 1))
	}
	_, err := l.Step(false)
	return err
}

// direct has the log write each group itself, or through its queue.
func direct(l *Log, on bool) {
	if l.opts.DirectBytes = -1; on {
		l.opts.DirectBytes = MaxPayloadBytes
	}
}

// scripted does what the next byte of the script says.
func (f *life) scripted(l *Log) error {
	b := f.script[0]
	f.script = f.script[1:]
	switch {
	case b >= 200:
		f.m.put(int(b) - 200)
	case b%5 == 1, b%5 == 2:
		_, err := l.Step(false)
		return err
	case b%5 == 3:
		l.Release(f.m.release())
	case b%5 == 4:
		f.drop(min(int(b/5), len(f.held)))
	default:
		f.m.put(1 + int(b%8))
		direct(l, b%3 == 0)
	}
	return nil
}

// drop releases the first n buffers.
func (f *life) drop(n int) {
	for _, b := range f.held[:n] {
		b.Release()
	}
	f.held = f.held[:copy(f.held, f.held[n:])]
}

// recovered is what recovery finds on a disk. The log does not go on.
func recovered(disk aio.Disk, arena *aio.Arena, m *model) (*replayed, *Report, error) {
	r := &replayed{m: m}
	l, report, err := Open(disk, arena, small(0), r)
	if l != nil {
		err = errors.Join(err, l.Close())
	}
	return r, report, err
}

// TestCrashAtEveryOperation cuts the power in every operation of a run, and of the recovery after it (B29, B36, B43;
// invariants 7 to 9).
func TestCrashAtEveryOperation(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	const turns = 60
	seeds, states := uint64(6), 0
	var passed [6]uint64
	if testing.Short() {
		seeds = 2
	}
	start := func(d *faultaio.Disk, m *model, seed uint64) *life {
		f := newLife(d, arena, m, seed)
		f.fills = seed%2 == 1
		return f
	}
	for seed := range seeds {
		whole := faultaio.New(faultaio.Options{Seed: seed})
		first := start(whole, crashModel(), seed)
		if err := first.run(turns, true); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		passed[0] += first.stats.Recycled
		passed[1] += first.stats.DirectGroups
		passed[2] += first.stats.StallsBuffer
		passed[3] += first.stats.StallsFull
		passed[4] += first.stats.Marks
		passed[5] += first.stats.StallsRoom
		for op := 0; op < whole.Ops(); op += underrace.Stride {
			d := faultaio.New(faultaio.Options{Seed: seed})
			d.CrashAt(op)
			m := crashModel()
			if err := start(d, m, seed).run(turns, true); !errors.Is(err, faultaio.ErrCrashed) {
				t.Fatalf("seed %d, op %d: %v", seed, op, err)
			}
			if m.failed > 1 {
				t.Fatalf("seed %d, op %d: failed %d times", seed, op, m.failed)
			}
			for crash := range uint64(3) {
				name := fmt.Sprintf("seed %d, op %d, crash %d", seed, op, crash)
				states += afterCrash(t, name, func() *faultaio.Disk { return d.Crash(crash) }, arena, m, seed*1000+crash, op%5 == 0)
			}
			states += afterCrash(t, fmt.Sprintf("seed %d, op %d, kill", seed, op), func() *faultaio.Disk { return d.Kill(seed) },
				arena, m, seed, false)
		}
	}
	t.Logf("%d crash states", states)
	if slices.Contains(passed[:], 0) {
		t.Errorf("the runs did not pass through all of the log's life: recycled, direct, stalls for buffers, files "+
			"and room, marks: %d", passed)
	}
	if states < 1000/underrace.Stride {
		t.Errorf("only %d crash states", states)
	}
}

// afterCrash recovers what a crash left. It checks invariants 7 to 9, lets the log go on and crash again, and with deep
// it cuts the power in every operation of the recovery. It returns the number of states it looked at.
func afterCrash(
	t *testing.T, name string, left func() *faultaio.Disk, arena *aio.Arena, was *model, seed uint64, deep bool,
) int {
	t.Helper()
	d := left()
	r, report, err := recovered(d, arena, was)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		t.Fatalf("%s: %v (%+v)", name, err, report)
	}
	states := 1
	for range 2 {
		again, _, err := recovered(d, arena, was)
		if err != nil || again.next != r.next || again.start != r.start || again.begun != r.begun {
			t.Fatalf("%s: recovery of recovery: %v; %+v, then %+v", name, err, r, again)
		}
		// What recovery handed out must survive the next power cut: it counts as acknowledged from here on.
		d = d.Crash(seed)
		states++
	}
	if deep {
		for op := range recoveryOps(t, left(), arena, was) {
			d := left()
			d.CrashAt(op)
			if _, _, err := recovered(d, arena, was); err != nil && !errors.Is(err, faultaio.ErrCrashed) {
				t.Fatalf("%s, recovery op %d: %v", name, op, err)
			}
			again, _, err := recovered(d.Crash(seed), arena, was)
			// What the first recovery found may be gone, because that recovery did not end. Acknowledged records may
			// not.
			if err == nil {
				err = again.check()
			}
			if err != nil {
				t.Fatalf("%s, recovery op %d: %v", name, op, err)
			}
			states++
		}
	}
	secondLife(t, name, d, arena, was, r, seed)
	return states + 1
}

func recoveryOps(t *testing.T, d *faultaio.Disk, arena *aio.Arena, m *model) int {
	t.Helper()
	before := d.Ops()
	if _, _, err := recovered(d, arena, m); err != nil {
		t.Fatal(err)
	}
	return d.Ops() - before
}

// secondLife lets the log go on after a crash, crashes it elsewhere, and recovers.
func secondLife(t *testing.T, name string, d *faultaio.Disk, arena *aio.Arena, was *model, r *replayed, seed uint64) {
	t.Helper()
	m := crashModel()
	m.chunks, m.grows, m.silent = was.chunks, was.grows, was.silent
	m.added, m.acked, m.stored = r.next, r.next, was.stored
	d.CrashAt(d.Ops() + int(seed*31+uint64(r.next)*17)%90)
	err := newLife(d, arena, m, seed+99).run(30, true)
	if err != nil && !errors.Is(err, faultaio.ErrCrashed) {
		t.Fatalf("%s, second life: %v", name, err)
	}
	again, report, err := recovered(d.Crash(seed), arena, m)
	if err == nil {
		err = again.check()
	}
	if err != nil {
		t.Fatalf("%s, second life: %v (%+v)", name, err, report)
	}
}
