package segment

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"penstock/tests/support/faultaio"
	"penstock/tests/support/underrace"
)

// A cut or a reset that finds no descriptor, or no room, at any of its steps has failed nothing: it is refused, nothing
// is written meanwhile, and a later call goes on where the first one stopped.
func TestCutWaits(t *testing.T) {
	anchored := State{
		Next: 7, NextID: 100, End: 777_777, LastCRC: 5, Segment: 40, SegmentBase: 770_000, SegmentCapacity: 32 << 10,
	}
	at := func(keep int) func(w *world) (State, func() error) {
		return func(w *world) (State, func() error) {
			st := w.begin
			if keep > 0 {
				st = w.model[keep-1].after
			}
			w.model = w.model[:keep]
			return st, func() error { return w.log.Truncate(st) }
		}
	}
	for _, tc := range []struct {
		name string
		cut  func(w *world) (State, func() error)
	}{
		{"in the middle", at(20)},
		{"in the middle, and somebody reads", func(w *world) (State, func() error) {
			v := new(View)
			if err := w.log.View(v, w.model[19].slice.Offset, 1); err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(v.Release)
			return at(20)(w)
		}},
		{"at the start", at(0)},
		{"a reset", func(w *world) (State, func() error) {
			w.model, w.begin = nil, anchored
			return anchored, func() error { return w.log.Reset(anchored) }
		}},
	} {
		for kind, refusals := range map[faultaio.Kind][]error{
			faultaio.KindCreate:  {syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC},
			faultaio.KindMkdir:   {syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC},
			faultaio.KindRename:  {syscall.ENOMEM},
			faultaio.KindRemove:  {syscall.ENOMEM},
			faultaio.KindRead:    {syscall.ENOMEM},
			faultaio.KindSyncDir: {syscall.EMFILE, syscall.ENFILE}, // with any other error, a failed sync is a failure
		} {
			for _, why := range refusals {
				for step := 0; step < 12; step += underrace.Stride {
					t.Run(fmt.Sprint(tc.name, "/", kind, "/", why, "/", step), func(t *testing.T) {
						cutWaits(t, tc.cut, faultaio.Rule{Kind: kind, Err: why, After: step, Count: 2})
					})
				}
			}
		}
	}
}

func cutWaits(t *testing.T, begin func(w *world) (State, func() error), rule faultaio.Rule) {
	d := faultaio.New(faultaio.Options{Seed: 1})
	w := newWorld(t, d)
	w.fill(newRand(31), 60)
	w.settle()
	w.log.Evict(w.st.End)
	st, cut := begin(w)
	d.Inject(rule)
	refused := 0
	err := cut()
	for ; err != nil && refused < 5; err = cut() {
		refused++
		if !Waiting(err) || errors.Is(err, ErrPoisoned) || w.log.Health() != nil {
			t.Fatalf("%v; health %v", err, w.log.Health())
		}
		if end, _, _ := w.log.End(); end != st.End {
			t.Fatalf("the log ends at %d, and the cut is at %d", end, st.End)
		}
		if err := w.log.Sync(); !errors.Is(err, rule.Err) {
			t.Fatalf("a sync in the middle of a cut: %v", err)
		}
	}
	if err != nil {
		t.Fatalf("it never ends: %v", err)
	}
	d.ClearRules()
	w.st = st
	w.st.Epoch++
	w.check()
	w.reopen()
	w.check()
	if len(w.model) == 0 && st.Segment > 0 {
		return // nothing knows the times of what a reset passes over, which check asks for when there are messages
	}
	w.fill(newRand(32), 20)
	w.settle()
	w.check()
	w.disk = d.Crash(7)
	w.reopen()
	w.check()
}
