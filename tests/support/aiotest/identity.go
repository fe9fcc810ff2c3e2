package aiotest

import (
	"errors"
	"io/fs"
	"testing"

	"penstock/segment/aio"
)

// A name leads to the same file until it is renamed, removed or replaced, and the open file keeps its identity. A file
// is linked until its last name goes.
func testIdentity(t *testing.T, d aio.Disk) {
	must(t, d.MkdirAll("dir"))
	f, err := d.Create("dir/a", block)
	must(t, err)
	defer f.Close()
	id, err := f.ID()
	must(t, err)
	expect := func(step, name string, lost bool) {
		t.Helper()
		is, err := d.Identify(name)
		if err := aio.CompareGround(name, id, is, err); (err != nil) != lost {
			t.Errorf("%s: %s says %v, want that it is lost: %v", step, name, err, lost)
		}
		if now, err := f.ID(); err != nil || now != id {
			t.Errorf("%s: the open file is %v (%v), was %v", step, now, err, id)
		}
	}
	linked := func(step string, want bool) {
		t.Helper()
		if got, err := f.Links(); err != nil || got > 0 != want {
			t.Errorf("%s: %d links (%v), want any: %v", step, got, err, want)
		}
	}
	expect("made", "dir/a", false)
	linked("made", true)
	expect("made", "dir", true)
	must(t, d.Rename("dir/a", "dir/b"))
	expect("renamed", "dir/b", false)
	expect("renamed", "dir/a", true)
	linked("renamed", true)
	must(t, d.WriteFile("dir/c", []byte("c")))
	must(t, d.Rename("dir/c", "dir/b"))
	expect("replaced", "dir/b", true)
	linked("replaced", false)
	must(t, d.RemoveAll("dir"))
	expect("removed", "dir/b", true)
	if _, err := d.Identify("dir/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing name: %v, want fs.ErrNotExist", err)
	}
	if err := d.CheckPlace(); err != nil {
		t.Errorf("the directory is where it was: %v", err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = f.Links() }); n != 0 {
		t.Errorf("Links allocates %v times", n)
	}
}
