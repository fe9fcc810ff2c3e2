//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

// LOCK was deleted, and a second process is started in the same directory.
func TestDoorLockDeleted(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{0, 2} {
		t.Run(fmt.Sprintf("%d nodes", max(nodes, 1)), func(t *testing.T) {
			d := openDoor(t, dataVolumes()[0])
			d.begins(nodes, nil, 300)
			n := d.c.Nodes[len(d.c.Nodes)-1] // of two nodes, the one without metadata
			twin, err := n.Twin(n.DataPath)
			d.try(err)
			d.try(os.Remove(filepath.Join(n.DataPath, "LOCK")))
			refused := d.refusesTwin(twin)
			first, second := d.publish(300, 4*time.Second, n), 0
			if !refused {
				second = d.publish(300, 4*time.Second, twin)
				d.kill(twin)
			}
			d.note("%d and %d of 300 answered OK by the first and the second process", first, second)
			d.kill(d.c.Nodes...)
			for _, n := range d.c.Nodes {
				d.try(n.Start())
			}
			for _, n := range d.c.Nodes {
				if n.Ready(d.within(doorPatience)) != nil {
					d.fails("%s does not start again: %s", n.Name, lastWords(n))
				}
			}
			d.judge()
		})
	}
}

// grounds are files of a running node that are removed, one kind at a time. names is how a sentence says which one.
var grounds = []struct {
	name, names string
	remove      func(dir, topicID string) error
	// mayRefuse: the node may refuse to start, as long as it names the file. Its directory is emptied then.
	mayRefuse bool
}{
	{"clog", "clog", func(dir, _ string) error { return removeTree(filepath.Join(dir, "clog")) }, false},
	{"current file of clog", "clog", func(dir, _ string) error { return removeCurrent(dir) }, false},
	{"node.json", "node.json", func(dir, _ string) error { return os.Remove(filepath.Join(dir, "node.json")) }, true},
	{"LOCK", "LOCK", func(dir, _ string) error { return os.Remove(filepath.Join(dir, "LOCK")) }, false},
	{"topic", "topics/", func(dir, id string) error { return removeTree(filepath.Join(dir, "topics", id)) }, false},
	{"current segment", ".seg", removeSegment, false},
	{"data directory", "directory", func(dir, _ string) error { return os.Rename(dir, dir+".away") }, false},
}

// removeSegment removes the newest segment of partition 0 of a topic.
func removeSegment(dir, topicID string) error {
	names, err := filepath.Glob(filepath.Join(dir, "topics", topicID, "0", "*.seg"))
	if err != nil || len(names) == 0 {
		return errors.Join(err, errors.New("the partition has no segment"))
	}
	return os.Remove(slices.Max(names))
}

// removeFirst removes the oldest segment of partition 0 of a topic, and its index.
func removeFirst(dir, topicID string) error {
	names, err := filepath.Glob(filepath.Join(dir, "topics", topicID, "0", "*.seg"))
	if err != nil || len(names) < 3 {
		return errors.Join(err, errors.New("the partition has too few segments"))
	}
	first := slices.Min(names)
	return errors.Join(os.Remove(first), os.Remove(strings.TrimSuffix(first, ".seg")+".idx"))
}

// startsNoted says whether a directory's log.mark says that the notes of where logs begin are right: a flag in the
// sixth byte of one of its two slots (clog/FORMAT.md).
func startsNoted(dir string) bool {
	p, err := os.ReadFile(filepath.Join(dir, "log.mark"))
	return err == nil && len(p) > 6 && (p[5]|p[len(p)/2+5])&1 != 0
}

// The first segment of the leader's copy is removed with its index, and then all nodes restart so that this node is the
// first candidate for leader. The log does not look as if retention had removed the segment: fsck and the node say what
// is gone, and nothing is lost.
func TestDoorFirstSegmentRemoved(t *testing.T) {
	d := openDoor(t, volumeOfData{"small", groundLog, 2500, smallBody})
	d.begins(3, nil, d.data.count)
	leader, others := d.roles()
	d.forgetful = []*harness.Node{leader}
	epoch, id := d.epoch(), d.topicID()
	if !d.await(doorPatience, func() bool { return startsNoted(leader.DataPath) }) {
		d.fails("%s never says in log.mark that it notes where logs begin", leader.Name)
	}
	d.kill(d.c.Nodes...)
	d.try(removeFirst(leader.DataPath, id))
	if clean, says := d.fsck(leader.DataPath); clean {
		d.fails("fsck says of the directory whose first segment is gone: %s", says)
	}
	d.firstWithout(leader, others[0], others[1], epoch)
	missing := "0000000000.seg is corrupt at byte 0 (the file is missing)"
	if log := leader.LogTail(1 << 20); !strings.Contains(log, missing) {
		d.fails("%s never says that its first segment is gone", leader.Name)
	}
	d.compare()
}

// groundLog lets little data reach segments.
var groundLog = []string{
	"--max-batch-bytes", "512KiB", "--max-message-bytes", "256KiB", "--commit-file-bytes", "1MiB",
	"--commit-live-bytes", "2MiB", "--min-segment-bytes", "256KiB", "--max-segment-bytes", "512KiB",
}

// Files of a running node are removed. The others go on with its partitions within some seconds, the node says what is
// gone, nothing is lost, and after its restart it is whole again.
func TestDoorGroundRemoved(t *testing.T) {
	t.Parallel()
	for _, what := range grounds {
		t.Run(what.name, func(t *testing.T) {
			d := openDoor(t, volumeOfData{"small", groundLog, 2500, smallBody})
			d.begins(3, nil, d.data.count)
			n, _ := d.roles()
			d.forgetful = []*harness.Node{n}
			d.try(what.remove(n.DataPath, d.topicID()))
			removed := time.Now()
			moved, says := false, false
			d.await(doorPatience/2, func() bool {
				d.publish(20, time.Second)
				leader, err := d.c.Leader(d.within(time.Second), d.topic, 0)
				moved = moved || err == nil && leader != n
				says = says || !d.health(n).Ready
				return moved && says
			})
			d.note("looked for %v", time.Since(removed).Round(100*time.Millisecond))
			if !moved {
				d.fails("%s goes on leading", n.Name)
			}
			if !says {
				d.fails("%s is ready as if nothing were gone: %s", n.Name, d.health(n).Health)
			} else if health := d.health(n).Health; !strings.Contains(health, what.names) &&
				!strings.Contains(n.LogTail(1<<20), "was damaged while it was in use") { // its etcd ended it first, with a sentence
				d.fails("%s does not name what is gone: %s", n.Name, health)
			}
			if says && n.Ready(d.within(time.Second)) == nil {
				d.fails("/ping of %s is OK", n.Name)
			}
			if oks := d.publish(100, 10*time.Second); oks < 100 {
				d.fails("only %d of 100 were answered OK afterwards", oks)
			}
			d.kill(n)
			d.startAgain(n, what.mayRefuse)
			d.judge()
			d.compare()
		})
	}
}

// startAgain starts a node of whose files some are gone, and with an empty directory if it may refuse and does.
func (d *door) startAgain(n *harness.Node, mayRefuse bool) {
	d.Helper()
	if d.start(n) {
		return
	}
	if n.Running() {
		d.fails("%s runs and is not ready: %s", n.Name, d.health(n).Health)
		return
	}
	if _, err := n.Ended(); err != nil {
		d.Fatal(err)
	}
	d.note("%s refuses to start: %s", n.Name, lastWords(n))
	if !mayRefuse || !causes.MatchString(lastWords(n)) {
		d.fails("%s does not start again by itself", n.Name)
	}
	d.try(n.Wipe())
	d.try(n.Restart(d.within(startTimeout)))
}

// topicID is the directory's name of the door's topic.
func (d *door) topicID() string {
	d.Helper()
	all, err := d.c.Topics(d.within(startTimeout))
	d.try(err)
	i := slices.IndexFunc(all.Topics, func(t harness.Topic) bool { return t.Name == d.topic })
	if i < 0 {
		d.Fatalf("topic %s is not there", d.topic)
	}
	return all.Topics[i].ID
}
