package engine_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"penstock/engine"
)

// A backup that links a segment keeps what it has: the repair of the original goes to a copy. So the backup verifies
// after the repair.
func TestClusterRepairLeavesTheBackupAlone(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()} // before the cluster, so that they are removed after it
	every := time.Hour
	tc := prepareTestCluster(t, 3, func(o *engine.Options) { o.ScrubInterval = every })
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
	names, err := filepath.Glob(filepath.Join(f.dir, engine.TopicDir(f.e, "t"), "0", "*.seg"))
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
	if s.State != engine.BackupDone || s.LinkedBytes == 0 {
		t.Fatalf("%+v", s)
	}
	tc.stop(f)
	every = 100 * time.Millisecond
	tc.start(f)
	tc.eventually("the scrub finds it", func() bool { return f.e.Storage().ScrubDamaged > 0 })
	tc.eventually("it is repaired", func() bool { return f.e.Health() == nil })
	restore(t, from)
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}
