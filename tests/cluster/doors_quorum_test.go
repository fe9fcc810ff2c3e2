//go:build cluster

package cluster

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

// quorums are what operators do when the metadata of a majority are gone and all messages are there. One node, the
// behind one, lacks the newest messages.
var quorums = []struct {
	name    string
	early   bool // backups are made before the topic
	rebuild func(d *door, behind *harness.Node, others []*harness.Node)
}{
	// All directories are named, the one with fewer messages first. Nothing is copied, and nothing is lost.
	{"all named", false, func(d *door, behind *harness.Node, others []*harness.Node) {
		d.rebuild(behind, others...)
		d.whole = true
	}},
	// The disk of one of the others is gone for good. The other one has everything.
	{"two survivors", false, func(d *door, behind *harness.Node, others []*harness.Node) {
		d.try(os.RemoveAll(others[1].DataPath))
		d.rebuild(behind, others[0])
		d.whole = true
	}},
	// One survivor is named, beside directories that are there: their nodes keep what they have, and do not start. Then
	// all are named.
	{"one survivor named first", false, func(d *door, behind *harness.Node, others []*harness.Node) {
		d.rebuild(behind)
		d.startAll()
		d.judge()
		d.kill(d.c.Nodes...)
		d.rebuild(behind, others...)
		d.whole = true
	}},
	// All are backed up, and restored.
	{"all restored and named", false, func(d *door, behind *harness.Node, others []*harness.Node) {
		for _, n := range append([]*harness.Node{behind}, others...) {
			d.restore(n, d.backup(n))
		}
		d.rebuild(behind, others...)
		d.whole = true
	}},
	// A backup from before the topic was made, with directories that hold the topic: the metadata are older.
	{"metadata older than the topic", true, func(d *door, behind *harness.Node, others []*harness.Node) {
		d.restore(behind, d.backupOf(behind))
		d.rebuild(behind, others...)
	}},
}

// The metadata of a majority are gone. Whatever chapter the operator follows, whole copies are not cut without what is
// cut being kept.
func TestDoorLostQuorum(t *testing.T) {
	t.Parallel()
	for _, data := range dataVolumes() {
		for _, what := range quorums {
			t.Run(data.name+"/"+what.name, func(t *testing.T) {
				d := openDoor(t, data)
				d.starts(3)
				if what.early {
					for _, n := range d.c.Nodes {
						d.engine("backup", d.backupOf(n), "--http-address", n.HTTP)
					}
				}
				d.create(nil)
				d.mustPublish(data.count / 2)
				leader, others := d.roles()
				behind, whole := others[0], []*harness.Node{leader, others[1]}
				d.forgetful = []*harness.Node{behind}
				d.spread(behind)
				d.kill(behind)
				d.mustPublish(data.count/2, whole...)
				d.kill(whole...)
				for _, n := range whole {
					d.try(os.RemoveAll(filepath.Join(n.DataPath, "etcd")))
				}
				what.rebuild(d, behind, whole)
				d.startAll()
				d.judge()
			})
		}
	}
}

// startAll starts all nodes and waits until the partition is led, or nothing more is to be expected.
func (d *door) startAll() {
	d.Helper()
	for _, n := range d.c.Nodes {
		d.try(n.Start())
	}
	for _, n := range d.c.Nodes {
		_ = n.Ready(d.within(doorPatience))
		if !n.Running() {
			d.note("%s ended: %s", n.Name, lastWords(n))
		}
	}
	d.await(5*time.Second, func() bool { return d.leads(0) })
}

// spread makes one more topic and waits until a node knows it. The node's etcd then has on its disk that everything
// before is committed.
func (d *door) spread(n *harness.Node) {
	d.Helper()
	ctx := d.within(startTimeout)
	d.try(d.c.CreateTopic(ctx, "spacer"))
	d.try(d.c.Healthy(ctx))
	newest, err := d.c.Status(ctx)
	d.try(err)
	known := d.await(doorPatience, func() bool {
		var s harness.Status
		return harness.Get(ctx, n.HTTP, "/cluster/status", &s) == nil && s.Revision >= newest.Revision
	})
	if !known {
		d.Fatalf("%s does not know the newest metadata", n.Name)
	}
}

func (d *door) backupOf(n *harness.Node) string { return filepath.Join(n.DataPath+"-backups", "1") }

// backup copies the directory of a stopped node and returns where to.
func (d *door) backup(n *harness.Node) string {
	d.Helper()
	d.engine("backup", d.backupOf(n), "--from", n.DataPath)
	return d.backupOf(n)
}

// restore makes a node's directory of a backup, and keeps what it had before elsewhere.
func (d *door) restore(n *harness.Node, backup string) {
	d.Helper()
	d.try(os.Rename(n.DataPath, n.DataPath+".before"))
	d.engine("restore", backup, "--data-path", n.DataPath)
}

// rebuild rebuilds the metadata from the directories of these nodes.
func (d *door) rebuild(first *harness.Node, others ...*harness.Node) {
	d.Helper()
	args := []string{"rebuild-cluster", "--yes", first.DataPath}
	for _, n := range others {
		args = append(args, n.DataPath)
	}
	d.engine(args...)
}

// engine runs a command, again while the kernel still holds the lock of a killed process.
func (d *door) engine(args ...string) {
	d.Helper()
	binary, err := harness.Binary()
	d.try(err)
	var out []byte
	d.await(doorPatience, func() bool {
		out, err = exec.Command(binary, args...).CombinedOutput()
		return err == nil || !bytes.Contains(out, []byte("in use"))
	})
	if err != nil {
		d.Fatalf("engine %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
