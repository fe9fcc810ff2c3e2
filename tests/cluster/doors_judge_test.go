//go:build cluster

package cluster

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/replicas"
)

// causes is how a sentence names what stops a partition or a node: a copy that lacks something, a directory or a file
// that is not what it was.
var causes = regexp.MustCompile(`(?i)shortened|\bis short\b|\bowed\b|\bforg[eo]t|` +
	`\bolder (state|than)|\bcopied\b|is (empty or )?(gone|missing)|(was|were) (removed|replaced|renamed|moved)|` +
	`log\.mark|no node\.json|without the data directory of node|\blives?\b.*\bunknown\b|\baside\b|does not know a topic`)

// judge is the end of every door: each message that was answered OK can be read, or was kept in aside/, or is in the
// directory of a node that refused to start, or its partition stands and the nodes name the cause. All nodes have been
// started.
func (d *door) judge() {
	d.Helper()
	var found map[int]bool
	var missing []int
	var healthy bool
	var readErr error
	whole := d.await(doorPatience, func() bool {
		found, readErr = d.read()
		missing = d.missing(found)
		d.listen()
		healthy = readErr == nil && d.rowsAreOK()
		return len(missing) == 0 || healthy
	})
	d.note("answered OK %d, readable %d", len(d.acked), len(d.acked)-len(missing))
	d.judgeDamaged()
	if len(missing) == 0 {
		d.judgeTools(0, 0)
		return
	}
	if d.whole {
		d.fails("%d of %d messages that were answered OK cannot be read (%v)", len(missing), len(d.acked), readErr)
		return
	}
	aside, refused := map[int]bool{}, map[int]bool{}
	for _, n := range d.c.Nodes {
		d.marksIn(filepath.Join(n.DataPath, "aside"), aside)
		if !n.Running() && d.saysNow(n) {
			d.marksIn(n.DataPath, refused)
		}
	}
	lost, inAside, inRefused := 0, 0, 0
	for _, k := range missing {
		switch {
		case aside[k]:
			inAside++
		case refused[k]:
			inRefused++
		default:
			lost++
		}
	}
	if inAside > 0 || inRefused > 0 {
		d.note("in aside/ %d, held by nodes that refuse to start %d", inAside, inRefused)
	}
	stands := lost > 0 && !whole && d.stands(readErr)
	d.judgeTools(lost, inAside)
	switch {
	case stands && slices.ContainsFunc(d.c.Nodes, d.saysNow):
		d.note("the partition stands, and a node says why")
	case stands:
		d.fails("the partition stands with %d messages in it (%v), and no node names the cause", lost, readErr)
	case lost > 0:
		d.fails("%d of %d messages that were answered OK are lost", lost, len(d.acked))
	}
}

// saysNow says whether a node names what stops it or the partition: in its health, or with its last words.
func (d *door) saysNow(n *harness.Node) bool {
	if n.Running() {
		return causes.MatchString(d.health(n).Health)
	}
	return causes.MatchString(lastWords(n))
}

// judgeTools says whether the nodes' words fit what became of the messages: so many are neither there nor kept.
func (d *door) judgeTools(lost, aside int) {
	d.Helper()
	if lost > 0 {
		for _, n := range d.c.Nodes {
			if v := d.health(n); v.Healthy {
				d.fails("%s says %q, and %d messages cannot be read", n.Name, v.Health, lost)
				break
			}
		}
	}
	if aside == 0 {
		return
	}
	shown := slices.ContainsFunc(d.c.Nodes, func(n *harness.Node) bool {
		return strings.Contains(d.health(n).Health, "aside") || strings.Contains(warnings(n, 1000), "aside")
	})
	if !shown {
		d.fails("no node speaks of aside/, and %d messages are in it only", aside)
	}
}

// judgeDamaged looks whether a copy is called damaged that has forgotten nothing.
func (d *door) judgeDamaged() {
	d.Helper()
	p, err := d.c.Partition(d.within(5*time.Second), d.topic, 0)
	if err != nil {
		return // a single node, or a partition that stands
	}
	for _, name := range p.Damaged {
		if !slices.ContainsFunc(d.forgetful, func(n *harness.Node) bool { return n.Name == name }) {
			d.fails("the copy of %s, which has forgotten nothing, is called damaged", name)
		}
	}
}

// missing are the messages that were answered OK and are not among those found.
func (d *door) missing(found map[int]bool) (all []int) {
	for k := range d.acked {
		if !found[k] {
			all = append(all, k)
		}
	}
	return all
}

// rowsAreOK says whether every node runs and every partition is led with all replicas in sync: what is missing then
// comes no more.
func (d *door) rowsAreOK() bool {
	for _, n := range d.c.Nodes {
		if !n.Running() {
			return false
		}
	}
	return d.c.Healthy(d.within(100*time.Millisecond)) == nil
}

// stands says whether nobody is told that messages are not there: the partition has no leader, or it cannot be read to
// its end.
func (d *door) stands(readErr error) bool {
	if readErr != nil {
		return true
	}
	return !d.leads(0)
}

// compare ends all nodes and compares what they hold: all copies are whole.
func (d *door) compare() {
	d.Helper()
	if err := d.c.Healthy(d.within(doorPatience)); err != nil {
		d.fails("not whole again: %v", err)
		return
	}
	d.kill(d.c.Nodes...)
	var nodes []*replicas.Node
	for _, n := range d.c.Nodes {
		read, err := replicas.Read(n.DataPath)
		if err != nil {
			d.fails("the directory of %s cannot be read: %v", n.Name, err)
			return
		}
		nodes = append(nodes, read)
	}
	for _, difference := range replicas.Compare(nodes, true).Differences {
		d.fails("%v", difference)
	}
}

// refusedOrWhole starts a single node that has forgotten something: it refuses with an exit code of its own and names a
// file, or all messages are there.
func (d *door) refusedOrWhole(n *harness.Node, file string) {
	d.Helper()
	if d.start(n) {
		d.note("started")
		d.judge()
		return
	}
	if n.Running() {
		d.fails("the node neither serves nor ends: %s", d.health(n).Health)
		return
	}
	code, err := n.Ended()
	d.try(err)
	last := lastWords(n)
	d.note("refused with exit code %d", code)
	if code <= 4 || code == 10 || code == 11 {
		d.fails("the exit code %d means other things, too", code)
	}
	if !strings.Contains(last, file) {
		d.fails("the last line does not name %s: %s", file, last)
	}
}
