//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"penstock/clog"
	"penstock/segment/aio"
	"penstock/tests/cluster/harness"
)

// forgotten are ways in which a commit log loses what it had.
var forgotten = []struct {
	name   string
	remove func(dir string) error
}{
	{"clog", func(dir string) error { return removeTree(filepath.Join(dir, "clog")) }},
	{"current file", removeCurrent},
	{"clog and mark", func(dir string) error {
		return firstError(removeTree(filepath.Join(dir, "clog")), os.RemoveAll(filepath.Join(dir, "log.mark")))
	}},
}

func firstError(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// removeCurrent removes the newest file of a commit log that has groups in it, and those that were begun after it.
func removeCurrent(dir string) error {
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, NoLock: true})
	if err != nil {
		return err
	}
	defer disk.Close()
	var files []string // with groups
	err = clog.Scan(disk, func(f clog.FileInfo, g clog.GroupInfo, _ []clog.RecordInfo) error {
		if g.Err == nil && !slices.Contains(files, f.Name) {
			files = append(files, f.Name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("the commit log in %s has no groups", dir)
	}
	names, err := filepath.Glob(filepath.Join(dir, "clog", "*.clog"))
	if err != nil {
		return err
	}
	current := filepath.Join(dir, slices.Max(files))
	for _, name := range names {
		if name >= current {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

// moments are when it happens.
var moments = []string{"stopped", "running"}

// The commit log of one node of three is removed, and then all nodes restart so that this one is the first candidate
// for leader. With two replicas it is the only one at first: the third node has no copy.
func TestDoorForgottenLog(t *testing.T) {
	t.Parallel()
	for _, data := range dataVolumes() {
		for _, what := range forgotten {
			for _, moment := range moments {
				for _, replicas := range []int{2, 3} {
					if replicas == 3 && what.name != "clog" {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%d", data.name, what.name, moment, replicas), func(t *testing.T) {
						d := openDoor(t, data)
						d.begins(3, map[string]any{"replicas": replicas}, data.count)
						d.forgetAndLead(what.remove, moment == "running")
					})
				}
			}
		}
	}
}

// forgetAndLead removes something of the leader's log, kills all nodes, and starts the leader and one other node first,
// one without a copy if there is such a one.
func (d *door) forgetAndLead(remove func(string) error, running bool) {
	d.Helper()
	leader, others := d.roles()
	d.forgetful = []*harness.Node{leader}
	epoch := d.epoch()
	for _, n := range d.c.Nodes {
		if n != leader && !slices.Contains(others, n) {
			others = slices.Insert(others, 0, n)
		}
	}
	if running {
		d.try(remove(leader.DataPath))
		d.note("%d of 100 answered OK after the removal", d.publish(100, 3*time.Second))
	}
	d.kill(d.c.Nodes...)
	if !running {
		d.try(remove(leader.DataPath))
	}
	if clean, says := d.fsck(leader.DataPath); clean {
		d.fails("fsck says of the directory that forgot: %s", says)
	}
	d.firstWithout(leader, others[0], others[1], epoch)
	if !d.says(leader, causes) {
		d.fails("%s never says that its log has forgotten something", leader.Name)
	}
}

// firstWithout starts a node that has forgotten something and, unless it is nil, one more, waits until one of them
// leads after an epoch, publishes, starts the last node, and judges.
func (d *door) firstWithout(n, more, last *harness.Node, epoch uint64) {
	d.Helper()
	d.try(n.Start())
	if more != nil {
		d.try(more.Start())
		if more.Ready(d.within(doorPatience/2)) != nil { // without n, the metadata may have no majority
			d.note("%s is not ready without %s", more.Name, last.Name)
		}
	}
	if n.Ready(d.within(doorPatience/2)) != nil {
		d.note("%s is not ready without %s", n.Name, last.Name)
	}
	d.await(electionPatience, func() bool { d.listen(); return d.leads(epoch, last) })
	d.note("%s leads before %s is there", d.leaderName(), last.Name)
	d.note("%d of 100 answered OK without %s", d.publish(100, 3*time.Second), last.Name)
	d.start(last)
	d.judge()
}

// roles are the leader of the door's partition and the other nodes that hold a replica of it.
func (d *door) roles() (leader *harness.Node, others []*harness.Node) {
	d.Helper()
	d.try(d.c.Settled(d.within(startTimeout)))
	ctx := d.within(startTimeout)
	leader, err := d.c.Leader(ctx, d.topic, 0)
	d.try(err)
	others, err = d.c.Followers(ctx, d.topic, 0)
	d.try(err)
	return leader, others
}

// Two nodes of three lose their commit logs and start first.
func TestDoorTwoForgotten(t *testing.T) {
	t.Parallel()
	for _, data := range dataVolumes() {
		t.Run(data.name, func(t *testing.T) {
			d := openDoor(t, data)
			d.begins(3, nil, data.count)
			leader, others := d.roles()
			d.forgetful = []*harness.Node{leader, others[0]}
			epoch := d.epoch()
			d.kill(d.c.Nodes...)
			for _, n := range d.forgetful {
				d.try(os.RemoveAll(filepath.Join(n.DataPath, "clog")))
			}
			d.firstWithout(leader, others[0], others[1], epoch)
		})
	}
}

// The same on a single node: it refuses to start, or all messages are there.
func TestDoorForgottenLogOfOne(t *testing.T) {
	t.Parallel()
	for _, data := range dataVolumes() {
		for _, what := range forgotten {
			for _, moment := range moments {
				t.Run(fmt.Sprintf("%s/%s/%s", data.name, what.name, moment), func(t *testing.T) {
					d := openDoor(t, data)
					d.begins(0, nil, data.count)
					n := d.c.Nodes[0]
					if moment == "running" {
						d.try(what.remove(n.DataPath))
						if oks := d.publish(100, 3*time.Second); oks > 0 {
							d.fails("%d of 100 are answered OK by a log whose files are gone", oks)
						}
					}
					d.kill(n)
					if moment == "stopped" {
						d.try(what.remove(n.DataPath))
					}
					if clean, says := d.fsck(n.DataPath); clean {
						d.fails("fsck says of the directory that forgot: %s", says)
					}
					d.refusedOrWhole(n, "clog")
				})
			}
		}
	}
}
