package diskwatch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/machine"
)

// Pause returns at once.
func (h *testHost) Pause(_ time.Duration, stop <-chan struct{}) bool {
	select {
	case <-stop:
		return false
	default:
		return true
	}
}

// member is a Member whose reports and hand-overs are answered by the test.
type member struct {
	*Member
	wg       sync.WaitGroup
	reported []meta.DiskState
	refuse   []error // answers to the next reports
}

func newMember(w *watched, led func() []func() (bool, bool)) *member {
	m := new(member)
	m.Member = NewMember(MemberConfig{
		Watch: w.Watch, Host: w.host, Log: slog.New(slog.DiscardHandler), Ctx: context.Background(), Led: led,
		Spawn: func(f func()) { m.wg.Go(f) },
		Report: func(_ context.Context, s meta.DiskState) error {
			m.reported = append(m.reported, s)
			if len(m.refuse) == 0 {
				return nil
			}
			err := m.refuse[0]
			m.refuse = m.refuse[1:]
			return err
		},
	})
	return m
}

// hang returns a watch whose disk hangs.
func hang() *watched {
	w := newWatched(-1)
	w.pulse.Begin()
	w.pass(time.Second)
	return w
}

// A report that the store does not accept is repeated, unless the store does not know the node any more.
func TestMemberReports(t *testing.T) {
	m := newMember(newWatched(-1), nil)
	m.refuse = []error{errors.New("later"), nil, meta.ErrNotFound}
	for _, s := range []machine.DiskState{machine.DiskHung, machine.DiskSlow, machine.DiskGood} {
		m.Judged(machine.DiskVerdict{State: s, Tell: true, HandOver: true})
		m.wg.Wait()
	}
	want := []meta.DiskState{meta.DiskHung, meta.DiskHung, meta.DiskSlow, meta.DiskGood}
	if !slices.Equal(m.reported, want) {
		t.Errorf("reported %v, want %v", m.reported, want)
	}
}

// While the disk hangs, all leaderships are handed over, a few at a time. Those that cannot be handed over at once are
// retried.
func TestMemberHandsOver(t *testing.T) {
	const partitions = 100
	w := hang()
	var now, most, tries atomic.Int64
	left := map[int]bool{}
	var mu sync.Mutex
	led := func() (all []func() (bool, bool)) {
		for i := range partitions {
			if left[i] {
				continue
			}
			all = append(all, func() (handed, again bool) {
				mu.Lock()
				defer mu.Unlock()
				if tries.Add(1) == 1 {
					return false, true // another one is in its way
				}
				left[i] = true
				return true, false
			})
		}
		for i, f := range all {
			all[i] = func() (bool, bool) {
				defer now.Add(-1)
				for n := now.Add(1); ; {
					if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
						return f()
					}
				}
			}
		}
		return all
	}
	m := newMember(w, led)
	m.Judged(machine.DiskVerdict{State: machine.DiskHung, HandOver: true})
	m.wg.Wait()
	if len(left) != partitions || w.Stats().HandOvers != partitions || most.Load() > maxEvacuateCount {
		t.Errorf("%d of %d partitions, counted %d, %d at a time", len(left), partitions, w.Stats().HandOvers, most.Load())
	}
	if !slices.Equal(m.reported, []meta.DiskState{meta.DiskHung}) || w.movedNone.Load() {
		t.Errorf("reported %v, moved nothing: %v", m.reported, w.movedNone.Load())
	}
}

// A node that cannot hand over anything tells the watch. A node whose disk answers hands over nothing.
func TestMemberMovesNothing(t *testing.T) {
	w := hang()
	m := newMember(w, func() []func() (bool, bool) { return nil })
	m.Judged(machine.DiskVerdict{State: machine.DiskHung, HandOver: true})
	if m.wg.Wait(); !w.movedNone.Load() {
		t.Error("the watch is not told")
	}
	w.pulse.End()
	w.pass(Interval)
	m.Led = func() []func() (bool, bool) { t.Error("the disk answers"); return nil }
	m.Judged(machine.DiskVerdict{State: machine.DiskSlow, HandOver: true})
	m.wg.Wait()
}
