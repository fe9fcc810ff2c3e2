package node_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/backup"
)

// A backup that meets damage is marked, and lets the node repair it from another replica. The segment that it has
// linked keeps what it has: the repair of the original goes to a copy. A backup after the repair is whole.
func TestClusterRepairLeavesTheBackupAlone(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()} // before the cluster, so that they are removed after it
	tc := prepareTestCluster(t, 3, func(o *node.Options) { o.ScrubInterval = time.Hour })
	for i, m := range tc.nodes {
		m.disk, m.dir = nil, dirs[i]
	}
	tc.startAll()
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 6000, 400)
	tc.awaitEqualCopies("t", 0)
	f := tc.others(l)[0]
	names, err := filepath.Glob(filepath.Join(f.dir, node.TopicDir(f.e, "t"), "0", "*.seg"))
	if err != nil || len(names) < 3 {
		t.Fatal(names, err)
	}
	slices.Sort(names)
	data, err := os.ReadFile(names[1])
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(names[1], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := int64(len(data) / 2)
	if _, err = file.WriteAt([]byte{data[at] ^ 0x40}, at); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	from, s := makeBackup(t, f.e)
	if s.State != node.BackupDamaged || s.LinkedBytes == 0 || len(s.Missing) != 1 {
		t.Fatalf("%+v", s)
	}
	tc.eventually("it is repaired", func() bool { return f.e.Health() == nil })
	r, err := backup.Restore(from, filepath.Join(t.TempDir(), "restored"), backup.RestoreOptions{AcceptLoss: true})
	if err != nil || len(r.Differ) != 0 || !slices.Equal(r.Missing, s.Missing) {
		t.Errorf("the backup lacks %+v, and a restore of it %+v, %v", s.Missing, r, err)
	}
	from, s = makeBackup(t, f.e)
	if s.State != node.BackupDone || s.Missing != nil {
		t.Errorf("after the repair: %+v", s)
	}
	restore(t, from)
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}
