package segment

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"
	"testing"

	"penstock/tests/support/faultaio"
)

// trimmed is a log of some segments, of which retention has removed the first n.
func trimmed(t *testing.T, n int) (*world, *faultaio.Disk) {
	t.Helper()
	d := faultaio.New(faultaio.Options{Seed: 1})
	w := newWorld(t, d)
	w.fill(newRand(31), 120)
	w.settle()
	all := w.log.Segments()
	if len(all) < n+3 {
		t.Fatalf("%d segments", len(all))
	}
	if _, err := w.log.Trim(all[n].Start); err != nil {
		t.Fatal(err)
	}
	if first := w.log.Segments()[0].Number; first != uint32(n) {
		t.Fatalf("it begins with segment %d", first)
	}
	return w, d
}

// reopened is the health of the log when it is opened again, and whether it begins where it did.
func (w *world) reopened(noted bool) (health error, same bool) {
	before, _, _ := w.log.Start()
	if err := w.log.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.opts.Noted = noted
	w.open(w.st)
	after, _, _ := w.log.Start()
	return w.log.Health(), after == before
}

// Somebody removes the first segment of a log and its index: the log is not taken for one that retention has trimmed.
// What retention removes is not missed, whatever else it had to do for it.
func TestFirstSegmentAndIndexAreMissed(t *testing.T) {
	for trims := range 3 {
		w, d := trimmed(t, trims)
		if err, same := w.reopened(true); err != nil || !same {
			t.Fatalf("after %d trims: %v, it begins where it did: %v", trims, err, same)
		}
		first := w.log.Segments()[0].Path
		if err := errors.Join(d.Remove(first), d.Remove(indexPath(first))); err != nil {
			t.Fatal(err)
		}
		err, _ := w.reopened(true)
		if c := new(CorruptError); !errors.As(err, &c) || c.Path != first {
			t.Errorf("after %d trims %s and its index were removed, and Health says %v", trims, first, err)
		}
		if start, _, _ := w.log.Start(); start != 0 {
			t.Errorf("after %d trims the log begins at %d: what is missing reads as removed by retention", trims, start)
		}
		if err, _ := w.reopened(false); err != nil { // as before there were notes
			t.Errorf("without notes: %v", err)
		}
	}
}

// Retention trims what is left of a log whose first file is missing, and then the log is whole again.
func TestMissedSegmentIsTrimmed(t *testing.T) {
	w, d := trimmed(t, 1)
	first, second := w.log.Segments()[0], w.log.Segments()[1]
	if err := errors.Join(d.Remove(first.Path), d.Remove(indexPath(first.Path))); err != nil {
		t.Fatal(err)
	}
	if err, _ := w.reopened(true); err == nil {
		t.Fatal("nothing is missed")
	}
	if _, err := w.log.Trim(second.Start); err != nil {
		t.Fatal(err)
	}
	if err, same := w.reopened(true); err != nil || !same {
		t.Errorf("%v, it begins where it did: %v", err, same)
	}
	if start, _, _ := w.log.Start(); start != second.Start {
		t.Errorf("it begins at %d, not at %d", start, second.Start)
	}
}

// An older version has trimmed the log and left the note, or there was none. NoteStart makes it right, once.
func TestNoteStart(t *testing.T) {
	for _, old := range []uint32{0, 1, 9} {
		w, d := trimmed(t, 2)
		note := path.Join(testDir, noteName(2))
		err := d.Remove(note)
		if old != 0 {
			err = errors.Join(err, d.WriteFile(path.Join(testDir, noteName(old)), nil))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err, _ := w.reopened(false); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := w.log.NoteStart(); err != nil {
				t.Fatal(err)
			}
		}
		have, err := listFiles(d, testDir)
		if err != nil || !slices.Equal(have.notes, []uint32{2}) {
			t.Errorf("note %d: %v, %v", old, have.notes, err)
		}
		w.disk = d.Crash(1)
		w.log.Close()
		if w.open(w.st); w.log.Health() != nil {
			t.Errorf("note %d: %v", old, w.log.Health())
		}
	}
}

// Retention works on a disk on which nothing can be made any more: the note is made of the index.
func TestNoteNeedsNoRoom(t *testing.T) {
	w, d := trimmed(t, 0)
	d.Inject(faultaio.Rule{Kind: faultaio.KindCreate, Err: syscall.ENOSPC, Count: -1})
	all := w.log.Segments()
	for i := 1; i <= 2; i++ {
		if _, err := w.log.Trim(all[i].Start); err != nil {
			t.Fatal(err)
		}
	}
	if err, same := w.reopened(true); err != nil || !same {
		t.Errorf("%v, it begins where it did: %v", err, same)
	}
}

// Each case of the rule.
func TestLacksBelow(t *testing.T) {
	for _, c := range []struct {
		first          uint32
		indexed, noted bool
		notes          []uint32
		want           bool
	}{
		{first: 0, noted: true},
		{first: 1, noted: true, want: true},
		{first: 1},
		{first: 1, indexed: true, want: true},
		{first: 5, noted: true, notes: []uint32{5}},
		{first: 4, noted: true, notes: []uint32{5}}, // a crash came before retention removed segment 4
		{first: 6, noted: true, notes: []uint32{5}, want: true},
		{first: 6, notes: []uint32{5}},
		{first: 6, noted: true, notes: []uint32{2, 6}},
	} {
		if got := LacksBelow(c.first, c.indexed, c.notes, c.noted); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	for name, want := range map[string]string{
		"0000000003.start": "3 true", "3.start": "0 false", "0000000003.seg": "0 false", "0000000003.start.tmp": "0 false",
	} {
		n, ok := ParseNoteName(name)
		if got := fmt.Sprint(n, ok); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
