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
	restore func(d *door, behind *harness.Node, others []*harness.Node)
}{
	// The chapter about a lost quorum, with the node that lacks something, beside directories that are there.
	{"one survivor restored", false, func(d *door, behind *harness.Node, _ []*harness.Node) {
		d.restore(behind, d.backup(behind))
	}},
	// The chapter about lost nodes: all are backed up and named.
	{"all restored and named", false, func(d *door, behind *harness.Node, others []*harness.Node) {
		backups := []string{d.backup(behind), d.backup(others[0]), d.backup(others[1])}
		d.restore(behind, backups...)
		d.restore(others[0])
		d.restore(others[1])
	}},
	// The same, and two of them were not named.
	{"all restored and one named", false, func(d *door, behind *harness.Node, others []*harness.Node) {
		d.backup(others[0])
		d.backup(others[1])
		d.restore(behind, d.backup(behind))
		d.restore(others[0])
		d.restore(others[1])
	}},
	// A backup from before the topic was made, with directories that hold the topic: the metadata are older.
	{"metadata older than the topic", true, func(d *door, behind *harness.Node, _ []*harness.Node) {
		d.restore(behind, d.backupOf(behind))
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
				what.restore(d, behind, whole)
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

func (d *door) backupOf(n *harness.Node) string { return filepath.Join(d.dir, "backup-"+n.Name) }

// backup copies the directory of a stopped node and returns where to.
func (d *door) backup(n *harness.Node) string {
	d.Helper()
	d.engine("backup", d.backupOf(n), "--from", n.DataPath)
	return d.backupOf(n)
}

// restore makes a node's directory of its backup, and keeps what it had before elsewhere. With backups, the node begins
// the cluster anew.
func (d *door) restore(n *harness.Node, backups ...string) {
	d.Helper()
	d.try(os.Rename(n.DataPath, n.DataPath+".before"))
	args := []string{"restore", d.backupOf(n), "--data-path", n.DataPath}
	if len(backups) > 0 {
		args = append(args, "--whole-cluster", strings.Join(backups, ","))
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
