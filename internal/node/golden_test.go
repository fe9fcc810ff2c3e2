package node_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// unpackGolden returns a copy of a golden directory and what should be in it.
func unpackGolden(t *testing.T, archive string) (dir string, want *goldenManifest) {
	t.Helper()
	dir = t.TempDir()
	if out, err := exec.Command("tar", "-xzf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	return dir, want
}

// checkGolden opens a directory, waits until its content is as the manifest says, and returns the kinds of control
// entries in its logs.
func checkGolden(t *testing.T, dir string, want *goldenManifest, level int) map[fold.ControlKind]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g, err := openGolden(ctx, dir, want.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	}()
	var got *goldenManifest
	names := slices.Sorted(maps.Keys(want.Topics))
	err = goldenUntil(ctx, "everything can be read", func() error {
		got, err = g.describe(ctx, names, "carry")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if w, g := want.Topics[name], got.Topics[name]; !reflect.DeepEqual(w, g) {
			wanted, _ := json.MarshalIndent(w, "", " ")
			have, _ := json.MarshalIndent(g, "", " ")
			t.Errorf("topic %s is\n%s\nwant\n%s", name, have, wanted)
		}
	}
	kinds := map[fold.ControlKind]bool{}
	for _, e := range g.engines {
		if e.Level() != level || e.DirectoryLevel() != level {
			t.Errorf("the level is %d, of the directory %d, want %d", e.Level(), e.DirectoryLevel(), level)
		}
		if err := e.Health(); err != nil {
			t.Error(err)
		}
		for _, name := range names {
			if err := node.ControlKinds(e, name, kinds); err != nil {
				t.Error(err)
			}
		}
	}
	return kinds
}

// Every version opens the directories of all earlier versions, with all messages, channels, confirmations and deferred
// messages, and every kind of control entry. A single node is then raised to the newest level, and has the same
// content.
func TestGoldenDirectories(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob("testdata/golden/*.tar.gz")
	if err != nil || len(archives) < 4 {
		t.Fatalf("there are %d golden directories: %v", len(archives), err)
	}
	for _, archive := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(archive), ".tar.gz"), func(t *testing.T) {
			t.Parallel()
			level := int(filepath.Base(archive)[len("level")] - '0')
			dir, want := unpackGolden(t, archive)
			kinds := checkGolden(t, dir, want, level)
			for k := fold.ChannelCreated; k.Level() > 0; k++ {
				if kinds[k] != (k.Level() <= level) {
					t.Errorf("kind %d is of level %d; that a log of level %d has an entry of it is %v", k, k.Level(), level, kinds[k])
				}
			}
			checkGolden(t, dir, want, level) // what the first opening left
			if want.Nodes > 1 {
				return
			}
			if _, _, err := node.Upgrade(dir); err != nil {
				t.Fatal(err)
			}
			checkGolden(t, dir, want, node.NewestLevel)
		})
	}
}
