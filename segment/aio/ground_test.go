package aio_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock/segment/aio"
)

// A disk notices that its directory or its LOCK is taken away, whoever did it and in whatever way.
func TestCheckPlace(t *testing.T) {
	tests := []struct {
		name string
		do   func(dir string) error
		seen string
	}{
		{"nothing", func(string) error { return nil }, ""},
		{"LOCK is removed", func(dir string) error { return os.Remove(filepath.Join(dir, "LOCK")) }, "LOCK was removed"},
		{"LOCK is replaced", func(dir string) error {
			lock := filepath.Join(dir, "LOCK")
			return errors.Join(os.Remove(lock), os.WriteFile(lock, nil, 0o600))
		}, "LOCK was replaced"},
		{"the directory is renamed", func(dir string) error { return os.Rename(dir, dir+".old") }, "was removed or renamed"},
		{"the directory is replaced", func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
		}, "was replaced"},
		{"a parent is renamed", func(dir string) error {
			parent := filepath.Dir(dir)
			return os.Rename(parent, parent+".old")
		}, "was removed or renamed"},
		{"a file is written", func(dir string) error { return os.WriteFile(filepath.Join(dir, "x"), nil, 0o600) }, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "parent", "data")
			d := open(t, dir, aio.DiskOptions{})
			defer d.Close()
			if err := test.do(dir); err != nil {
				t.Fatal(err)
			}
			err := d.CheckPlace()
			lost := (*aio.GroundError)(nil)
			switch {
			case test.seen == "" && err != nil:
				t.Errorf("a false alarm: %v", err)
			case test.seen != "" && (!errors.As(err, &lost) || !strings.Contains(err.Error(), test.seen)):
				t.Errorf("%v, want a GroundError that says %q", err, test.seen)
			}
		})
	}
}

// What is mounted over a directory is on another device. Without a time of birth, the number alone counts.
func TestCompareGround(t *testing.T) {
	was := aio.FileID{Device: 1, Number: 2, BornNs: 3}
	for _, test := range []struct {
		is   aio.FileID
		err  error
		seen string
	}{
		{was, nil, ""},
		{aio.FileID{Device: 1, Number: 2}, nil, ""},
		{aio.FileID{Device: 9, Number: 2, BornNs: 3}, nil, "covered by another file system"},
		{aio.FileID{Device: 1, Number: 9, BornNs: 3}, nil, "replaced"},
		{aio.FileID{Device: 1, Number: 2, BornNs: 9}, nil, "replaced"},
		{aio.FileID{}, fs.ErrNotExist, "removed"},
		{aio.FileID{}, syscall.ENOTDIR, "removed"},
		{aio.FileID{}, syscall.EIO, ""},
		{aio.FileID{}, aio.ErrClosed, ""},
	} {
		err := aio.CompareGround("x", was, test.is, test.err)
		if (err == nil) != (test.seen == "") || err != nil && !strings.Contains(err.Error(), test.seen) {
			t.Errorf("%v, %v: %v, want %q", test.is, test.err, err, test.seen)
		}
	}
}

// A closed disk has no ground to lose, and a reader without LOCK none but its directory.
func TestCheckPlaceWithoutLocks(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir, aio.DiskOptions{})
	if err := errors.Join(d.Close(), os.Remove(filepath.Join(dir, "LOCK")), d.CheckPlace()); err != nil {
		t.Error(err)
	}
	d = open(t, dir, aio.DiskOptions{ReadOnly: true, NoLock: true})
	defer d.Close()
	if err := d.CheckPlace(); err != nil {
		t.Error(err)
	}
}

// BenchmarkLinks is the cost of the look that the commit log takes with each group.
func BenchmarkLinks(b *testing.B) {
	d, err := aio.OpenDisk(b.TempDir(), aio.DiskOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	f, err := d.Create("f", aio.BlockBytes)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	b.ReportAllocs()
	for b.Loop() {
		if n, err := f.Links(); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkIdentify is the cost of the look at one name.
func BenchmarkIdentify(b *testing.B) {
	d, err := aio.OpenDisk(b.TempDir(), aio.DiskOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	if err := errors.Join(d.MkdirAll("topics/t/0"), d.WriteFile("topics/t/0/f", nil)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := d.Identify("topics/t/0/f"); err != nil {
			b.Fatal(err)
		}
	}
}
