package main

import (
	"os"
	"path/filepath"
	"testing"
)

// What an earlier run has made is replaced. A directory with other files is left alone.
func TestEmptied(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dist")
	names := func(want int) {
		t.Helper()
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != want {
			t.Errorf("%v, %v, want %d", entries, err, want)
		}
	}
	if err := emptied(dir); err != nil {
		t.Fatal(err)
	}
	write := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(sumsName, "penstock_0.0.1-1_amd64.deb")
	if err := emptied(dir); err != nil {
		t.Error(err)
	}
	names(0)
	write(sumsName, "thesis.txt")
	if err := emptied(dir); err == nil {
		t.Error("somebody's files were taken for packages")
	}
	names(2)
	write("penstock.deb")
	if err := os.Remove(filepath.Join(dir, "thesis.txt")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "penstock"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := emptied(dir); err == nil {
		t.Error("a directory was taken for packages")
	}
	names(3)
}
