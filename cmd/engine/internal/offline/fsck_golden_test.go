package offline

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// The engine opens every golden directory whole (package engine's tests), so fsck calls every one of them clean.
func TestGoldenDirectoriesAreClean(t *testing.T) {
	archives, err := filepath.Glob("../../../../internal/node/testdata/golden/*.tar.gz")
	if err != nil || len(archives) < 8 {
		t.Fatalf("there are %d golden directories: %v", len(archives), err)
	}
	for _, archive := range archives {
		t.Run(filepath.Base(archive), func(t *testing.T) {
			dir := t.TempDir()
			if out, err := exec.Command("tar", "-xzf", archive, "-C", dir).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			nodes, err := filepath.Glob(filepath.Join(dir, "*", "node.json"))
			if one, _ := filepath.Glob(filepath.Join(dir, "node.json")); len(one) > 0 {
				nodes = one
			}
			if err != nil || len(nodes) == 0 {
				t.Fatalf("no data directory in the archive: %v", err)
			}
			for _, node := range nodes {
				if code, out, _ := fsck(t, filepath.Dir(node)); code != 0 {
					t.Errorf("%s: exit code %d: %s", node, code, out)
				}
			}
		})
	}
}
