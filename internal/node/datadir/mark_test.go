package datadir

import (
	"errors"
	"io/fs"
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// A directory has a log.mark before its node.json says that it is used, whenever the power goes. A mark that tells of
// a log is not replaced by that of a new store.
func TestMarkComesBeforeNodeFile(t *testing.T) {
	whole := faultaio.New(faultaio.Options{})
	openNode(t, whole, 2, false)
	for op := range whole.Ops() {
		disk := faultaio.New(faultaio.Options{})
		disk.CrashAt(op)
		_, _ = OpenNodeFile(disk, nil, "n", 2, false, uuid.New)
		for crash := range uint64(4) {
			left := disk.Crash(crash)
			_, err := left.ReadFile(NodePath, MaxFileBytes)
			if _, mark := left.ReadFile(clog.MarkName, MaxFileBytes); err == nil && mark != nil {
				t.Errorf("op %d, crash %d: there is a node.json and no mark: %v", op, crash, mark)
			}
			f := openNode(t, left, 2, false)
			if begun, err := clog.BegunWithoutStore(left); f.Level() != 2 || begun || err != nil {
				t.Errorf("op %d, crash %d: level %d, begun %v, %v", op, crash, f.Level(), begun, err)
			}
		}
	}
}

// The level that requires a mark is not entered without one.
func TestRaiseNeedsMark(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	f := openNode(t, disk, MarkLevel, true)
	if err := disk.Remove(clog.MarkName); err != nil {
		t.Fatal(err)
	}
	if err := f.Raise(MarkLevel); !errors.Is(err, fs.ErrNotExist) || f.Level() != FirstLevel {
		t.Errorf("level %d: %v", f.Level(), err)
	}
	if err := clog.CreateMark(disk, f.StoreID()); err != nil {
		t.Fatal(err)
	}
	if err := f.Raise(MarkLevel); err != nil || f.Level() != MarkLevel {
		t.Errorf("level %d: %v", f.Level(), err)
	}
}

// An upgrade to the level that requires a log.mark makes one, before the level is raised.
func TestUpgradeMakesMark(t *testing.T) {
	path := t.TempDir()
	disk, err := aio.OpenDisk(path, aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		t.Fatal(err)
	}
	f, err := OpenNodeFile(disk, slog.New(slog.DiscardHandler), "n", FirstLevel, false, uuid.New)
	if err := errors.Join(err, disk.Remove(clog.MarkName), disk.Close()); err != nil {
		t.Fatal(err)
	}
	if from, to, err := Upgrade(path, MarkLevel); err != nil || from != FirstLevel || to != MarkLevel {
		t.Fatalf("from %d to %d: %v", from, to, err)
	}
	disk, err = aio.OpenDisk(path, aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := OfflineArena()
	if err != nil {
		t.Fatal(err)
	}
	report, err := clog.Read(disk, arena, clog.Options{Store: f.StoreID(), MarkRequired: true}, nothing{})
	if err != nil || report.Forgotten != nil {
		t.Errorf("%v, %+v", err, report.Forgotten)
	}
	if err := errors.Join(arena.Close(), disk.Close()); err != nil {
		t.Fatal(err)
	}
}

// nothing is a Replayer of a log of which nobody wants anything.
type nothing struct{}

func (nothing) Restart()                  {}
func (nothing) Checkpoint([]byte) error   { return nil }
func (nothing) Record(*clog.Record) error { return nil }
