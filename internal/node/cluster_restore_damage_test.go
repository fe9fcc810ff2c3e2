package node_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/backup"
)

// The leader's node is restored from a backup in which messages do not read back, and starts before the others. It
// tells the store before it takes part, so it does not lead, although its log is as long as theirs. What it lacks is
// repaired from them.
func TestClusterRestoredWithDamageNeverLeads(t *testing.T) {
	t.Parallel()
	// Before the cluster, so that they are removed after it.
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()}
	tc := prepareTestCluster(t, 3, func(o *node.Options) { o.ScrubInterval = time.Hour })
	restored := filepath.Join(dirs[3], "restored")
	for i, m := range tc.nodes {
		m.disk, m.dir = nil, dirs[i]
	}
	tc.startAll()
	tc.create("t", 1)
	h := newAckLog()
	x := tc.leader("t", 0)
	tc.publishMany(h, x, "t", "m", 6000, 400)
	tc.awaitEqualCopies("t", 0)
	from, s := makeBackup(t, x.e)
	if s.State != node.BackupDone {
		t.Fatalf("%+v", s)
	}
	topic := node.TopicDir(x.e, "t")
	for _, m := range tc.running() {
		tc.stop(m)
	}
	names, err := filepath.Glob(filepath.Join(from, topic, "0", "*.seg"))
	if err != nil || len(names) < 3 {
		t.Fatal(names, err)
	}
	slices.Sort(names)
	unlink(t, from)
	flipByte(t, names[1], 20_000)
	x.dir = restored
	r, err := backup.Restore(from, x.dir, backup.RestoreOptions{AcceptLoss: true})
	if err != nil || len(r.Missing) != 1 || r.Shortened == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	tc.start(x)
	if row := x.row("t", 0); len(row.Damaged) != 1 || row.Damaged[0].Node != x.e.Node().ID {
		t.Errorf("the node has joined, and the row says %+v is damaged", row.Damaged)
	}
	for _, m := range tc.nodes {
		if m != x {
			tc.start(m)
		}
	}
	// It is repaired as soon as another node is there, and may lead then.
	if l := tc.leader("t", 0); l == x && x.e.Health() != nil {
		t.Error("the damaged copy leads")
	}
	tc.eventually("it is repaired", func() bool { return x.e.Health() == nil })
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}
