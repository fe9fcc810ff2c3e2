package data

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster"
	"penstock/internal/node/offline"
	"penstock/segment"
)

// RebuildPlan says what each node contributes to a rebuild of the metadata. The JSON names are stable.
type RebuildPlan struct {
	Done       bool               `json:"done"` // false: nothing was changed
	Metadata   *rebuildMetadata   `json:"metadata,omitempty"`
	Nodes      []rebuildDirectory `json:"nodes"`      // as they were named
	Partitions []rebuildPartition `json:"partitions"` // by topic and number
	Missing    []string           `json:"missing"`    // nodes with replicas whose directories were not named
	Notes      []string           `json:"notes"`      // what is odd, one sentence each
	Kept       []string           `json:"kept"`       // where the old files of etcd are
	Elsewhere  []string           `json:"elsewhere"`  // what has to be run on other machines

	first  string
	rejoin bool
}

// rebuildMetadata are the metadata of one directory, or those that are taken.
type rebuildMetadata struct {
	Node       string    `json:"node"`
	From       string    `json:"from"`
	AsOf       time.Time `json:"as_of"`
	Generation uint64    `json:"generation"`
	Revision   int64     `json:"revision"`
}

type rebuildDirectory struct {
	Node     string           `json:"node"`
	Path     string           `json:"path"`
	Partial  bool             `json:"partial"` // the messages are elsewhere
	Copies   int              `json:"copies"`
	Metadata *rebuildMetadata `json:"metadata,omitempty"`
}

type rebuildPartition struct {
	Topic     string        `json:"topic"`
	Partition uint32        `json:"partition"`
	Copies    []rebuildCopy `json:"copies"`
	Missing   []string      `json:"missing"` // nodes with a replica, whose directories were not named
	Unknown   bool          `json:"unknown"` // the metadata do not know the partition
}

type rebuildCopy struct {
	Node      string `json:"node"`
	Looked    bool   `json:"looked_at"` // false: the messages are elsewhere
	Held      bool   `json:"held"`      // false: the node has no copy, although the metadata say so
	Next      uint64 `json:"ends_at"`   // number of batches
	Messages  uint64 `json:"messages"`  // that were ever stored in it
	Epoch     uint64 `json:"epoch"`
	Shortened bool   `json:"shortened"`
	Discarded bool   `json:"given_up"`
	Longest   bool   `json:"longest"`
}

// plan says what the directories have. newest is nil only with --rejoin.
func (r *rebuilder) plan(nodes []*rebuildNode, newest *cluster.Export) (*RebuildPlan, error) {
	p := &RebuildPlan{
		Nodes: []rebuildDirectory{}, Partitions: []rebuildPartition{}, Missing: []string{}, Notes: []string{},
		Kept: []string{}, Elsewhere: []string{}, first: nodes[0].NodeID, rejoin: r.rejoin,
	}
	for _, n := range nodes {
		d := rebuildDirectory{Node: n.NodeID, Path: n.Path, Partial: n.Partial, Copies: len(n.copies)}
		if n.export != nil {
			d.Metadata = describe(n)
			if n.export == newest {
				p.Metadata = d.Metadata
			}
		}
		p.Nodes = append(p.Nodes, d)
		if n.odd != "" {
			p.Notes = append(p.Notes, "node "+n.NodeID+": "+n.odd)
		}
		if n.noEtcd != "" {
			p.Notes = append(p.Notes, "node "+n.NodeID+" has no newer metadata: "+n.noEtcd)
		}
		if newest != nil && n.Seen.After(cluster.MarkOf(newest).Seen()) {
			p.Notes = append(p.Notes, fmt.Sprintf("node %s has seen newer metadata (revision %d of generation %d) than are "+
				"found: topics and settings that were changed since are not known", n.NodeID, n.Seen.Revision, n.Seen.Generation))
		}
		if n.Partial {
			p.Elsewhere = append(p.Elsewhere, fmt.Sprintf("on the machine of node %s: penstock rebuild-cluster --rejoin "+
				"ITS_DATA_PATH", n.NodeID))
		}
	}
	if r.rejoin {
		return p, nil
	}
	placed, err := newest.Placement()
	if err != nil {
		return nil, err
	}
	p.place(nodes, placed)
	return p, nil
}

func describe(n *rebuildNode) *rebuildMetadata {
	return &rebuildMetadata{
		Node: n.NodeID, From: n.source, AsOf: time.UnixMilli(n.export.TakenMs).UTC(), Generation: n.export.Generation,
		Revision: n.export.Revision,
	}
}

// place fills in the partitions: those of the metadata, and those that only a directory knows.
func (p *RebuildPlan) place(nodes []*rebuildNode, placed []cluster.PlacedPartition) {
	found := map[segment.Identity]map[string]*offline.Copy{}
	partial := map[string]bool{}
	for _, n := range nodes {
		partial[n.NodeID] = n.Partial
		for i := range n.copies {
			c := &n.copies[i]
			if found[c.ID] == nil {
				found[c.ID] = map[string]*offline.Copy{}
			}
			found[c.ID][n.NodeID] = c
		}
	}
	missing := map[string]bool{}
	for _, at := range placed {
		part := rebuildPartition{
			Topic: at.Topic, Partition: at.ID.Partition, Copies: []rebuildCopy{}, Missing: []string{},
		}
		copies := found[at.ID]
		for _, name := range at.Nodes {
			if part.add(name, copies[name], partial); copies[name] == nil && !named(nodes, name) {
				missing[name] = true
			}
			delete(copies, name)
		}
		for _, name := range slices.Sorted(maps.Keys(copies)) { // it was moved here, or away, since
			part.add(name, copies[name], partial)
		}
		delete(found, at.ID)
		part.findLongest()
		p.Partitions = append(p.Partitions, part)
	}
	p.Missing = append(p.Missing, slices.Sorted(maps.Keys(missing))...)
	p.unknown(found)
}

// unknown adds the partitions that the metadata do not know.
func (p *RebuildPlan) unknown(found map[segment.Identity]map[string]*offline.Copy) {
	known := len(p.Partitions)
	for id, copies := range found {
		part := rebuildPartition{Topic: id.Topic.String(), Partition: id.Partition, Missing: []string{}, Unknown: true}
		for _, name := range slices.Sorted(maps.Keys(copies)) {
			part.Topic = cmp.Or(copies[name].Topic, part.Topic)
			part.add(name, copies[name], nil)
		}
		part.findLongest()
		p.Partitions = append(p.Partitions, part)
	}
	slices.SortFunc(p.Partitions[known:], func(a, b rebuildPartition) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
}

func named(nodes []*rebuildNode, name string) bool {
	return slices.ContainsFunc(nodes, func(n *rebuildNode) bool { return n.NodeID == name })
}

// add adds the copy of a node. c is nil if no named directory holds it.
func (p *rebuildPartition) add(name string, c *offline.Copy, partial map[string]bool) {
	isPartial, isNamed := partial[name]
	switch {
	case c != nil:
		p.Copies = append(p.Copies, rebuildCopy{
			Node: name, Looked: true, Held: true, Next: uint64(c.Next), Messages: uint64(c.NextID), Epoch: uint64(c.Epoch),
			Shortened: c.Shortened, Discarded: c.Discarded,
		})
	case isNamed:
		p.Copies = append(p.Copies, rebuildCopy{Node: name, Looked: !isPartial})
	default:
		p.Missing = append(p.Missing, name)
	}
}

// findLongest marks the copies that end last: those of the newest leader's epoch that go furthest. A copy that was
// given up is none of them.
func (p *rebuildPartition) findLongest() {
	order := func(a, b *rebuildCopy) int { return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Next, b.Next)) }
	var best *rebuildCopy
	for i := range p.Copies {
		if c := &p.Copies[i]; c.Held && !c.Discarded && (best == nil || order(c, best) > 0) {
			best = c
		}
	}
	for i := range p.Copies {
		c := &p.Copies[i]
		c.Longest = best != nil && c.Held && !c.Discarded && order(c, best) == 0
	}
}

// states says in words what a copy is.
func (c *rebuildCopy) states() string {
	var all []string
	for _, s := range []struct {
		holds bool
		word  string
	}{
		{!c.Looked, "not looked at"},
		{c.Looked && !c.Held, "has no copy"},
		{c.Longest, "longest"},
		{c.Shortened, "shortened"},
		{c.Discarded, "given up"},
	} {
		if s.holds {
			all = append(all, s.word)
		}
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

// print says what each node contributes.
func (p *RebuildPlan) print(w io.Writer) error {
	t := cli.Table(w)
	fmt.Fprintln(t, "NODE\tDATA PATH\tCOPIES\tMETADATA")
	for _, d := range p.Nodes {
		copies, metadata := fmt.Sprint(d.Copies), "none"
		if d.Partial {
			copies = "not looked at"
		}
		if m := d.Metadata; m != nil {
			metadata = m.words()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", d.Node, d.Path, copies, metadata)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(p.Partitions) > 0 {
		fmt.Fprintln(t, "\nTOPIC\tPARTITION\tNODE\tENDS AT\tMESSAGES\tEPOCH\tSTATE")
	}
	for i := range p.Partitions {
		p.Partitions[i].print(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range p.Notes {
		fmt.Fprintln(w, note)
	}
	if len(p.Missing) > 0 {
		fmt.Fprintf(w, "not named: %s, where replicas are; if anything is left of the data directory of one of them, name "+
			"it, too\n", strings.Join(p.Missing, ", "))
	}
	if m := p.Metadata; m != nil {
		fmt.Fprintf(w, "the metadata are taken from node %s, %s\n", m.Node, m.words())
	}
	return nil
}

func (m *rebuildMetadata) words() string {
	return fmt.Sprintf("of %s, as of %s, revision %d of generation "+
		"%d", m.From, cli.Stamp(m.AsOf), m.Revision, m.Generation)
}

func (p *rebuildPartition) print(w io.Writer) {
	for _, c := range p.Copies {
		ends := "-\t-\t-"
		if c.Held {
			ends = fmt.Sprintf("%d\t%d\t%d", c.Next, c.Messages, c.Epoch)
		}
		state := c.states()
		if p.Unknown {
			state += "; the metadata do not know it"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", p.Topic, p.Partition, c.Node, ends, state)
	}
	for _, name := range p.Missing {
		fmt.Fprintf(w, "%s\t%d\t%s\t-\t-\t-\tnot named\n", p.Topic, p.Partition, name)
	}
}

// printEnd says what was done, and what is to be done.
func (p *RebuildPlan) printEnd(w io.Writer) error {
	if !p.Done {
		_, err := fmt.Fprintln(w, "nothing was changed")
		return err
	}
	for _, kept := range p.Kept {
		fmt.Fprintf(w, "the old files of etcd are kept in %s\n", kept)
	}
	if p.rejoin {
		_, err := fmt.Fprintf(w, "node %s enters the cluster anew when it starts\n", p.first)
		return err
	}
	for _, run := range p.Elsewhere {
		fmt.Fprintln(w, run)
	}
	_, err := fmt.Fprintf(w, "start all nodes: node %s begins the cluster anew, and each partition is led when all named "+
		"nodes with a replica of it have answered\n", p.first)
	return err
}
