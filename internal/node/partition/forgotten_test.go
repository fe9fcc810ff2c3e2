package partition

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/node/aside"
	"penstock/internal/node/datadir"
	"penstock/tests/support/faultaio"
)

// replayedAt runs the recovery of a bare node's commit log on a disk.
func replayedAt(t *testing.T, disk *faultaio.Disk, level int, alone bool) (*Recovery, *Replica, error) {
	t.Helper()
	r := bareReplica()
	s := r.pt.store
	s.disk, s.aside = disk, aside.New(disk, s.log, s.now, aside.DefaultLimits)
	if alone {
		s.replicas = nil
	}
	s.opts.CommitFileBytes, s.opts.CommitLiveBytes, s.opts.GroupsInFlight = 256<<10, 1<<20, 2
	if err := s.Begin(4 << 20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Release() })
	rec := NewRecovery(s)
	err := rec.Replay(uuid.UUID{1}, level)
	rec.Log.Release()
	return rec, r, err
}

// A directory that cannot be without a log.mark and has none has forgotten: a single node is refused, and a node of a
// cluster lists all its copies as shortened, durably. A directory that may be from before marks is trusted.
func TestMissingMarkAtItsLevel(t *testing.T) {
	for _, alone := range []bool{false, true} {
		for level := datadir.FirstLevel; level <= datadir.MarkLevel; level++ {
			disk := faultaio.New(faultaio.Options{})
			rec, r, err := replayedAt(t, disk, level, alone)
			forgot := level >= datadir.MarkLevel
			if refused := forgot && alone; refused != errors.Is(err, clog.ErrForgotten) || !refused && err != nil {
				t.Fatalf("alone %v, level %d: %v", alone, level, err)
			}
			if alone {
				continue
			}
			if rec.Report().Forgotten != forgot || r.node.Shortened.Has(datadir.UnnamedCopies) != forgot {
				t.Errorf("level %d: forgotten %v", level, rec.Report().Forgotten)
			}
			if list, err := datadir.ReadShortened(disk.Crash(1)); err != nil || list.Has(datadir.UnnamedCopies) != forgot {
				t.Errorf("level %d, after a crash: %v", level, err)
			}
		}
	}
}
