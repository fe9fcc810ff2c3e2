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
	restore func(d *door, behind *harness.Node, others []*harness.Node)
}{
	// The chapter about a lost quorum, with the node that lacks something, beside directories that are there.
	{"one survivor restored", func(d *door, behind *harness.Node, _ []*harness.Node) {
		d.restore(behind, d.backup(behind))
	}},
	// The chapter about lost nodes: all are backed up and named.
	{"all restored and named", func(d *door, behind *harness.Node, others []*harness.Node) {
		backups := []string{d.backup(behind), d.backup(others[0]), d.backup(others[1])}
		d.restore(behind, backups...)
		d.restore(others[0])
		d.restore(others[1])
	}},
	// The same, and two of them were not named.
	{"all restored and one named", func(d *door, behind *harness.Node, others []*harness.Node) {
		d.backup(others[0])
		d.backup(others[1])
		d.restore(behind, d.backup(behind))
		d.restore(others[0])
		d.restore(others[1])
	}},
}

// The metadata of a majority are gone. Whatever chapter the operator follows, whole copies are not cut without what is
// cut being kept.
func TestDoorLostQuorum(t *testing.T) {
	for _, what := range quorums {
		t.Run(what.name, func(t *testing.T) {
			d := openDoor(t, dataVolumes()[0])
			d.starts(3)
			d.create(nil)
			d.mustPublish(400)
			leader, others := d.roles()
			behind := others[0]
			d.kill(behind)
			d.mustPublish(300, leader, others[1])
			d.kill(leader, others[1])
			whole := []*harness.Node{leader, others[1]}
			for _, n := range whole {
				d.try(os.RemoveAll(filepath.Join(n.DataPath, "etcd")))
			}
			what.restore(d, behind, whole)
			for _, n := range d.c.Nodes {
				d.try(n.Start())
			}
			for _, n := range d.c.Nodes {
				_ = n.Ready(d.within(doorPatience))
				if !n.Running() {
					d.note("%s ended: %s", n.Name, lastLine(warnings(n, 1)))
				}
			}
			d.await(2*time.Second, d.led)
			d.judge()
		})
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
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
