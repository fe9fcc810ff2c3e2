package backup

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
)

// space is what a file takes on the disk.
func space(t *testing.T, name string) int64 {
	t.Helper()
	st, err := os.Stat(name)
	must(t, err)
	return st.Sys().(*syscall.Stat_t).Blocks * 512
}

// The first segment of a small topic is a file with a large hole. It stays one in the backup and after the restore,
// with the same content. Files that a node writes on without asking for space have it after the restore.
func TestHolesStayHoles(t *testing.T) {
	old := filepath.Join(t.TempDir(), "old")
	data := make([]byte, 3*chunkBytes+100)
	copy(data[5000:], "near the beginning")
	copy(data[2*chunkBytes-4:], "over the edge of a chunk")
	must(t, os.WriteFile(old, data, 0o600))
	from := filepath.Join(t.TempDir(), "backup")
	w, err := NewWriter(from, quick())
	must(t, err)
	id := uuid.UUID{1}
	node := datadir.Node{Format: datadir.FormatOf(datadir.FirstLevel), NodeID: "n", StoreID: uuid.UUID{9}}
	must(t, w.WriteTwice(datadir.NodePath, &node))
	first, second := datadir.PartitionPath(id, 0)+"/0000000000.seg", datadir.PartitionPath(id, 0)+"/0000000001.seg"
	must(t, w.Copy(first, old, -1))
	must(t, w.Copy(second, old, -1))
	must(t, w.Commit(&Manifest{NodeID: "n"}))
	to := filepath.Join(t.TempDir(), "data")
	_, err = Restore(from, to, RestoreOptions{})
	must(t, err)
	for _, name := range []string{filepath.Join(from, first), filepath.Join(from, second), filepath.Join(to, first)} {
		if n := space(t, name); n > 64<<10 {
			t.Errorf("%s takes %d bytes", name, n)
		}
	}
	if n := space(t, filepath.Join(to, second)); n < int64(len(data)) {
		t.Errorf("the second segment has only %d bytes of space", n)
	}
	for _, name := range []string{filepath.Join(to, first), filepath.Join(to, second)} {
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s has another content (%v)", name, err)
		}
	}
}
