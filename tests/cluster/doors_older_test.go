//go:build cluster

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"penstock/tests/cluster/harness"
)

// olderRoles are whose directory becomes older. The fourth node holds no metadata, so its directory has messages only.
var olderRoles = []struct {
	name  string
	holds func(p *harness.Partition) string // name of the node, if the partition suits
}{
	{"follower", func(p *harness.Partition) string { return at(p, 1, "n4") }},
	{"leader", func(p *harness.Partition) string { return at(p, 0, "n4") }},
	{"etcd member", func(p *harness.Partition) string { return at(p, 0, "n1") }},
}

// at returns a node's name if it holds the partition's replica of that place.
func at(p *harness.Partition, place int, name string) string {
	if len(p.Replicas) == 2 && p.Replicas[place] == name {
		return name
	}
	return ""
}

// four starts four nodes, of which three hold metadata, and makes topics with two replicas and min_isr 1 until one
// suits. It returns the node that suits and the one with the other replica.
func (d *door) four(suits func(*harness.Partition) string) (n, other *harness.Node) {
	d.Helper()
	d.starts(4)
	for k := range 12 {
		d.topic = fmt.Sprintf("door%d", k)
		d.create(map[string]any{"replicas": 2, "min_isr": 1})
		p, err := d.c.Partition(d.within(startTimeout), d.topic, 0)
		d.try(err)
		if name := suits(p); name != "" {
			d.try(d.c.Settled(d.within(startTimeout)))
			other := p.Replicas[1-slices.Index(p.Replicas, name)]
			return d.c.Node(name), d.c.Node(other)
		}
	}
	d.Fatal("no topic has the replicas that the test wants")
	return nil, nil
}

// A node comes back with an older state of its directory, while the node with the other replica is away. A single node
// cannot know that its directory is older.
func TestDoorOlderDirectory(t *testing.T) {
	t.Parallel()
	for _, data := range dataVolumes() {
		for _, role := range olderRoles {
			for _, moment := range moments {
				t.Run(fmt.Sprintf("%s/%s/%s", data.name, role.name, moment), func(t *testing.T) {
					d := openDoor(t, data)
					n, other := d.four(role.holds)
					d.forgetful = []*harness.Node{n}
					d.mustPublish(data.count / 2)
					old := filepath.Join(d.dir, "old")
					if moment == "stopped" {
						d.kill(n)
						d.copyDir(old, n.DataPath)
						d.try(n.Restart(d.within(startTimeout)))
						d.try(d.c.Settled(d.within(startTimeout)))
					} else {
						d.copyDir(old, n.DataPath)
					}
					d.mustPublish(data.count / 2)
					if moment == "running" {
						// The row of the node says that it stored more than the copy has.
						d.await(rowPatience, func() bool { d.mustPublish(5); return false })
					}
					epoch := d.epoch()
					d.kill(n, other)
					d.try(os.RemoveAll(n.DataPath))
					d.try(os.Rename(old, n.DataPath))
					d.firstWithout(n, nil, other, epoch)
					if !d.says(n, causes) {
						d.fails("%s never says that its directory is older than what it acknowledged", n.Name)
					}
				})
			}
		}
	}
}

// Two nodes of three come back with older messages and the newest metadata. The third one, which has everything, starts
// last.
func TestDoorTwoOlder(t *testing.T) {
	t.Parallel()
	for _, data := range dataVolumes() {
		t.Run(data.name, func(t *testing.T) {
			d := openDoor(t, data)
			d.begins(3, nil, data.count/2)
			leader, others := d.roles()
			d.forgetful = []*harness.Node{leader, others[0]}
			d.kill(d.forgetful...)
			for _, n := range d.forgetful {
				d.copyDir(n.DataPath+".old", n.DataPath, "etcd")
			}
			for _, n := range d.forgetful {
				d.try(n.Start())
			}
			d.try(d.c.Settled(d.within(startTimeout)))
			d.mustPublish(data.count / 2)
			epoch := d.epoch()
			d.kill(d.c.Nodes...)
			for _, n := range d.forgetful {
				old := n.DataPath + ".old"
				d.try(os.Rename(filepath.Join(n.DataPath, "etcd"), filepath.Join(old, "etcd")))
				d.try(os.RemoveAll(n.DataPath))
				d.try(os.Rename(old, n.DataPath))
			}
			d.firstWithout(leader, others[0], others[1], epoch)
		})
	}
}

// twice is how a start is refused because the name is another process's.
var twice = regexp.MustCompile(`(?i)in use|another process|already|holds the name|is taken|answers`)

// refusesTwin starts a second process of a node's name or directory, and returns whether it was refused: it ended by
// itself with a sentence.
func (d *door) refusesTwin(twin *harness.Node) bool {
	d.Helper()
	d.Cleanup(func() {
		if twin.Running() {
			_ = twin.Kill()
		}
	})
	d.try(twin.Start())
	refused := twin.Ready(d.within(doorPatience/2)) != nil && !twin.Running()
	if !refused {
		d.fails("a second %s is not refused: %s", twin.Name, d.health(twin).Health)
		return false
	}
	code, err := twin.Ended()
	d.try(err)
	d.note("the second %s was refused with exit code %d", twin.Name, code)
	if last := warnings(twin, 3); code == 0 || !twice.MatchString(last) {
		d.fails("the refusal of the second %s does not say why: %s", twin.Name, last)
	}
	return true
}

// instead lets a node take the place of another one of its name among the door's.
func (d *door) instead(of, n *harness.Node) { d.c.Nodes[slices.Index(d.c.Nodes, of)] = n }

// anyOnFourth suits if the fourth node holds a replica.
func anyOnFourth(p *harness.Partition) string {
	if slices.Contains(p.Replicas, "n4") {
		return "n4"
	}
	return ""
}

// A node's directory was copied, and the copy is started under the same name on other ports: while the original lives
// it is refused. If it is not, both run for a while, and then the original comes back alone.
func TestDoorCopyBesideOriginal(t *testing.T) {
	t.Parallel()
	for _, data := range dataVolumes() {
		t.Run(data.name, func(t *testing.T) {
			d := openDoor(t, data)
			n, other := d.four(anyOnFourth)
			d.forgetful = []*harness.Node{n}
			d.mustPublish(data.count / 2)
			d.kill(n)
			d.copyDir(filepath.Join(d.dir, "copy"), n.DataPath)
			d.try(n.Restart(d.within(startTimeout)))
			d.try(d.c.Settled(d.within(startTimeout)))
			twin, err := n.Twin(filepath.Join(d.dir, "copy"))
			d.try(err)
			if d.refusesTwin(twin) {
				d.mustPublish(data.count / 2)
				d.judge()
				return
			}
			d.note("%d of %d answered OK beside each other", d.publish(data.count/2, startTimeout), data.count/2)
			epoch := d.epoch()
			d.kill(n, other, twin)
			d.firstWithout(n, nil, other, epoch)
		})
	}
}

// The copy is started while the original is dead: it is the node now. Then it ends, and the original comes back alone.
func TestDoorCopyThenOriginal(t *testing.T) {
	t.Parallel()
	for _, data := range dataVolumes() {
		for _, turns := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d turns", data.name, turns), func(t *testing.T) {
				d := openDoor(t, data)
				n, other := d.four(anyOnFourth)
				d.mustPublish(data.count / 4)
				d.copyThenOriginal(n, other, turns)
			})
		}
	}
}

// copyThenOriginal runs a copy of a node's directory and the original in turn, and at last the original alone.
func (d *door) copyThenOriginal(n, other *harness.Node, turns int) {
	d.Helper()
	twin, err := n.Twin(filepath.Join(d.dir, "copy"))
	d.try(err)
	d.forgetful = []*harness.Node{n}
	d.Cleanup(func() {
		if twin.Running() {
			_ = twin.Kill()
		}
	})
	d.kill(n)
	d.copyDir(twin.DataPath, n.DataPath)
	for turn := range turns {
		if turn > 0 {
			d.kill(twin)
			d.takesOver(twin, n)
			d.kill(n)
		}
		d.takesOver(n, twin)
	}
	epoch := d.epoch()
	d.kill(twin, other)
	d.instead(twin, n)
	d.firstWithout(n, nil, other, epoch)
	if !d.says(n, causes) {
		d.fails("%s never says that its name went on elsewhere", n.Name)
	}
}

// takesOver starts a node in the place of a dead one of its name, and publishes while both replicas are in sync.
func (d *door) takesOver(from, to *harness.Node) {
	d.Helper()
	d.instead(from, to)
	if !d.start(to) {
		d.Fatalf("%s cannot take over from its dead original: %s", to.DataPath, warnings(to, 3))
	}
	d.try(d.c.Healthy(d.within(startTimeout)))
	d.mustPublish(d.data.count / 4)
}
