package aside

import (
	"bytes"
	"errors"
	"io/fs"
	"path"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// What a log does not have is moved, with its index, and durably; of a file that it has in part, what is used is
// copied. A second call within the same second takes another directory.
func TestSetAside(t *testing.T) {
	disk := faultaio.New(faultaio.Options{})
	id, now := segment.Identity{Topic: uuid.UUID{7}, Partition: 3}, time.Unix(1_700_000_000, 5)
	from := datadir.PartitionPath(id.Topic, id.Partition)
	cut := Beyond("n1", "orders", id, &segment.State{})
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
	to, err := SetAside(disk, cut, files, now)
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
	again, err := SetAside(disk, cut, files[:1], now)
	if err != nil || again == to || path.Dir(again) != Dir {
		t.Errorf("again: %s, %v", again, err)
	}
	if to, err := SetAside(disk, cut, nil, now); to != "" || err != nil {
		t.Errorf("of nothing: %q, %v", to, err)
	}
}

// For a log that forgot what is behind any of its batches, SetAside says what the segments hold behind that, and Scan
// reads it; a node neither counts it nor removes it.
func TestSetAsideIsListed(t *testing.T) {
	const count = 40
	for _, end := range []segment.Position{0, 1, 13, count - 1} {
		w := newWorld(t, DefaultLimits)
		w.append(20, 700, 1)
		w.append(count-20, 700, 2)
		w.settle()
		st := w.states[end]
		from := datadir.PartitionPath(w.id.Topic, w.id.Partition)
		if err := errors.Join(w.disk.MkdirAll(path.Dir(from)), w.disk.Rename("topics/t/3", from)); err != nil {
			t.Fatal(err)
		}
		files, err := segment.Beyond(w.disk, from, w.id, st)
		if err != nil {
			t.Fatal(err)
		}
		to, err := SetAside(w.disk, Beyond("n1", "t", w.id, &st), files, w.clock)
		if err != nil {
			t.Fatal(err)
		}
		all, err := List(w.disk)
		if err != nil || len(all) != 1 || path.Join(Dir, all[0].Name) != to || all[0].Err != nil {
			t.Fatalf("%v: %+v", err, all)
		}
		e := &all[0]
		w.check(*e, end, count)
		if e.From != end || e.KeptFrom != end || e.Until != count || e.Lost() != 0 || e.Reason != ReasonForgot {
			t.Errorf("behind %d it says %+v", end, e.Cut)
		}
		w.begin(Limits{})
		if s := w.keep.Stats(); s != (Stats{}) {
			t.Errorf("a node counts %+v", s)
		}
		if err := Remove(w.disk, e.Name); err != nil {
			t.Error(err)
		}
		if all, err := List(w.disk); err != nil || len(all) != 0 {
			t.Errorf("after it was removed: %v, %v", all, err)
		}
	}
}
