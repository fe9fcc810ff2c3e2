package node_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
)

// traces returns all files below dir with their bytes, modes and times.
func traces(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data := ""
		if d.Type().IsRegular() {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			data = string(b)
		}
		all[name] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime().UnixNano()) + data
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A version that does not know the directory's level says so and changes nothing: no byte, no time.
func TestNewerDirectoryIsNotTouched(t *testing.T) {
	dir := prepared(t)
	editNode(t, dir, `"format": 7`, `"format": 8`)
	old := time.Now().Add(-time.Hour)
	touch := func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(name, old, old))
	}
	if err := filepath.WalkDir(dir, touch); err != nil {
		t.Fatal(err)
	}
	before := traces(t, dir)
	if _, err := node.Open(context.Background(), inDir(dir)); !errors.Is(err, meta.ErrNewerLevel) ||
		!strings.Contains(err.Error(), "feature level 7") {
		t.Fatalf("it was answered %v", err)
	}
	if err := node.CheckDirectory(dir); !errors.Is(err, meta.ErrNewerLevel) {
		t.Fatalf("it was answered %v", err)
	}
	if _, _, err := node.Upgrade(dir); !errors.Is(err, meta.ErrNewerLevel) {
		t.Fatalf("it was answered %v", err)
	}
	after := traces(t, dir)
	for name := range before {
		if before[name] != after[name] {
			t.Errorf("%s was touched", name)
		}
	}
	if len(before) != len(after) {
		t.Errorf("there were %d files, there are %d", len(before), len(after))
	}
}

// A single node's directory keeps its level until it is raised, and has its messages at every level.
func TestUpgradeDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(max, level int) {
		t.Helper()
		o := inDir(dir)
		o.MaxLevel = max
		e := openWith(t, o)
		top := topicOf(t, e, "t")
		if _, err := top.PublishMessage(context.Background(), node.Outgoing{Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if e.Level() != level || e.DirectoryLevel() != level || e.Info().Level != level {
			t.Errorf("level %d, of the directory %d, want %d", e.Level(), e.DirectoryLevel(), level)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	at(1, 1) // as the version before levels would
	at(2, 1)
	at(3, 1)
	at(4, 1)
	at(5, 1)
	at(6, 1)
	at(1, 1)
	for range 2 {
		if _, to, err := node.Upgrade(dir); err != nil || to != node.NewestLevel {
			t.Fatalf("it was raised to %d: %v", to, err)
		}
	}
	at(6, 6)
	o := inDir(dir)
	o.MaxLevel = 5
	if _, err := node.Open(context.Background(), o); !errors.Is(err, meta.ErrNewerLevel) {
		t.Fatalf("an older version was answered %v", err)
	}
	e := openWith(t, inDir(dir))
	all, err := topicOf(t, e, "t").Peek(context.Background(), 0, 0, 10)
	if err != nil || len(all) != 8 {
		t.Errorf("%d messages are left: %v", len(all), err)
	}
}
