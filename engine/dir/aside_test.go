package dir

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"path"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/segment/aio/faultaio"
)

// What a log does not have is moved, with its index, and durably; of a file that it has in part, what is used is
// copied. A second call within the same second takes another directory.
func TestSetAside(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	id, now := segment.Identity{Topic: uuid.UUID{7}, Partition: 3}, time.Unix(1_700_000_000, 5)
	from := PartitionPath(id.Topic, id.Partition)
	content := func(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }
	err := errors.Join(disk.MkdirAll(from), disk.WriteFile(from+"/0000000004.seg", content(4, 3*4096)),
		disk.WriteFile(from+"/0000000005.seg", content(5, 4096)), disk.WriteFile(from+"/0000000005.idx", content(6, 9)))
	if err != nil {
		t.Fatal(err)
	}
	files := []segment.BeyondFile{
		{Path: from + "/0000000004.seg", UsedBytes: 5000, SizeBytes: 3 * 4096},
		{Path: from + "/0000000005.seg", Whole: true, UsedBytes: 100, SizeBytes: 4096},
	}
	to, err := SetAside(disk, id, files, now)
	if err != nil || to != "aside/segments-"+id.Topic.String()+"-3-1700000000" {
		t.Fatal(to, err)
	}
	disk = disk.Crash(1)
	for name, want := range map[string][]byte{
		from + "/0000000004.seg": content(4, 3*4096), from + "/0000000005.seg": nil, from + "/0000000005.idx": nil,
		to + "/0000000004.seg": append(content(4, 5000), make([]byte, 3*4096-5000)...),
		to + "/0000000005.seg": content(5, 4096), to + "/0000000005.idx": content(6, 9),
	} {
		got, err := disk.ReadFile(name, 1<<20)
		if want == nil && !errors.Is(err, fs.ErrNotExist) || want != nil && !bytes.Equal(got, want) {
			t.Errorf("%s has %d bytes (%v)", name, len(got), err)
		}
	}
	again, err := SetAside(disk, id, files[:1], now)
	if err != nil || again == to || path.Dir(again) != Aside {
		t.Errorf("again: %s, %v", again, err)
	}
	if to, err := SetAside(disk, id, nil, now); to != "" || err != nil {
		t.Errorf("of nothing: %q, %v", to, err)
	}
}

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
