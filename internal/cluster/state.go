package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// state is everything that the store has at one revision: the snapshot that the engine sees, and what is needed for
// changes, above all the revision of each row. A state and its maps are immutable once a builder has finished it.
type state struct {
	snap       *meta.Snapshot
	nodes      map[replicate.NodeID]nodeEntry
	topics     map[uuid.UUID]int64 // revisions
	parts      meta.Rows[partEntry]
	moves      map[meta.PartitionID]moveEntry
	creating   map[uuid.UUID]int64 // revisions
	deleted    map[uuid.UUID]int64 // revisions
	tombstones map[meta.TombstoneKey]int64
	forced     map[meta.PartitionID]int64 // revisions
	controller processRow
	// controllerRev is the fencing token: every transaction of the controller compares it.
	controllerRev int64
	lastID        replicate.NodeID
	lastIDRev     int64
	levelRev      int64
	rebalanceRev  int64
	proofs        []string // see proof.go
	proofRev      int64
	load          load              // of the partitions in snap
	raw           map[string]rawRow // rows with fields that this version does not know, by key
}

// nodeEntry has the rows of one node. A row that does not exist has revision 0.
type nodeEntry struct {
	row     *meta.Node // Live is not set in it
	rev     int64
	live    uuid.UUID // boot of the process whose lease lives
	liveRev int64
	down    uuid.UUID // boot of the process that was reported gone
	downRev int64
}

func (n *nodeEntry) alive() bool {
	return n.rev != 0 && n.liveRev != 0 && n.live == n.row.Boot && (n.downRev == 0 || n.down != n.row.Boot)
}

// partEntry is a partition's row, even if no topic shows the partition (yet, or any more).
type partEntry struct {
	meta.Partition
	rev int64
}

type moveEntry struct {
	moveRow
	rev int64
}

func newState() *state {
	return &state{snap: &meta.Snapshot{}}
}

// conds returns the conditions that nodes are the live processes of this state: a chosen node must not have died or
// restarted since. Every registration writes the live row, so this row stands for boot and disk as well.
func (s *state) conds(prefix string, nodes ...replicate.NodeID) []kv.Cond {
	conds := make([]kv.Cond, 0, len(nodes))
	for _, id := range nodes {
		conds = append(conds, kv.Cond{Key: prefix + nodeKey(liveDir, id), ModRevision: s.nodes[id].liveRev})
	}
	return conds
}

// builder makes the next state from events. It copies a map before its first change to it.
type builder struct {
	prefix string
	log    *slog.Logger
	old    *state
	next   *state
	snap   *meta.Snapshot // of next
	owned  map[string]bool
	nodes  map[replicate.NodeID]bool // changed by the events
	topics map[uuid.UUID]bool
	parts  map[meta.PartitionID]bool
	rows   *meta.RowsEditor[partEntry]      // of next.parts; nil: nothing was changed
	shown  *meta.RowsEditor[meta.Partition] // of snap.Partitions, likewise
}

func build(old *state, prefix string, log *slog.Logger) *builder {
	next, snap := *old, *old.snap
	next.snap = &snap
	return &builder{
		prefix: prefix, log: log, old: old, next: &next, snap: &snap, owned: map[string]bool{},
		nodes: map[replicate.NodeID]bool{}, topics: map[uuid.UUID]bool{}, parts: map[meta.PartitionID]bool{},
	}
}

// own returns a map that the builder may write to: a copy, made once per builder.
func own[K comparable, V any](b *builder, name string, m *map[K]V) map[K]V {
	if !b.owned[name] {
		b.owned[name] = true
		*m = maps.Clone(*m)
		if *m == nil {
			*m = map[K]V{}
		}
	}
	return *m
}

// setRev keeps the revision of a row of which only the existence matters here.
func setRev[K comparable](m map[K]int64, key K, e *kv.Event) {
	if e.Deleted {
		delete(m, key)
	} else {
		m[key] = e.ModRevision
	}
}

// apply takes an event. If a row cannot be read, its previous content stays: a row that a newer version wrote must not
// look like a deletion (P20).
func (b *builder) apply(e *kv.Event) {
	key, found := strings.CutPrefix(e.Key, b.prefix)
	if !found {
		return
	}
	dir, rest := splitKey(key)
	if err := b.applyRow(e, dir, rest); err != nil {
		b.log.Error("a row of the metadata store cannot be read and is ignored", "key", e.Key, "error", err)
		return
	}
	b.noteUnknown(key, e)
}

func (b *builder) applyRow(e *kv.Event, dir, rest string) error {
	n := b.next
	switch dir {
	case "":
		return b.applySingle(e, rest)
	case nodesDir, liveDir, downDir:
		return b.applyNode(e, dir, rest)
	case topicsDir:
		return b.applyTopic(e, rest)
	case partsDir:
		return b.applyPart(e, rest)
	case creatingDir:
		id, err := uuid.Parse(rest)
		if err == nil {
			setRev(own(b, "creating", &n.creating), id, e)
		}
		return err
	case deletedDir:
		id, err := uuid.Parse(rest)
		if err != nil {
			return err
		}
		setRev(own(b, "deleted", &n.deleted), id, e)
		d := own(b, "snap.deleted", &b.snap.Deleted)
		if e.Deleted {
			delete(d, id)
		} else {
			d[id] = true
		}
	case movesDir:
		return b.applyMove(e, rest)
	case tombstonesDir:
		return b.applyTombstone(e, rest)
	case forcedDir:
		id, err := parsePart(rest)
		if err == nil {
			setRev(own(b, "forced", &n.forced), id, e)
		}
		return err
	}
	return nil // names/ only repeats what other rows say; other keys are of a later version
}

// decode decodes the row of an event into row, which stays as it is if the event deletes the row.
func decode(e *kv.Event, row any) error {
	if e.Deleted {
		return nil
	}
	return json.Unmarshal(e.Value, row)
}

func (b *builder) applySingle(e *kv.Event, key string) (err error) {
	n, rev := b.next, e.ModRevision
	if e.Deleted {
		rev = 0
	}
	switch key {
	case clusterKey:
		return decode(e, &b.snap.Cluster)
	case lastIDKey:
		n.lastID, n.lastIDRev = 0, rev
		return decode(e, &n.lastID)
	case levelKey:
		var row levelRow
		err = decode(e, &row)
		n.levelRev, b.snap.Level, b.snap.WantedLevel = rev, row.Level, row.Wanted
	case proofKey:
		var row proofRow
		err = decode(e, &row)
		n.proofs, n.proofRev = row.Proofs, rev
	case restoredKey:
		var row restoredRow
		err = decode(e, &row)
		b.snap.Generation = row.Generation
	case rebalanceKey:
		n.rebalanceRev, b.snap.Rebalance = rev, meta.Rebalance{}
		return decode(e, &b.snap.Rebalance)
	case controllerKey:
		n.controller, n.controllerRev = processRow{}, rev
		err = decode(e, &n.controller)
		b.snap.Controller = n.controller.Node
	}
	return err
}

func (b *builder) applyNode(e *kv.Event, dir, rest string) error {
	id, err := parseNode(rest)
	if err != nil {
		return err
	}
	n := b.next.nodes[id]
	var row any
	var p processRow
	var registered meta.Node
	if row = &p; dir == nodesDir {
		row = &registered
	}
	rev := e.ModRevision
	if e.Deleted {
		rev = 0
	}
	if err := decode(e, row); err != nil {
		return err
	}
	switch dir {
	case nodesDir:
		if rev != 0 && registered.ID != id {
			return fmt.Errorf("it is of node %d", registered.ID)
		}
		n.row, n.rev = &registered, rev
	case liveDir:
		n.live, n.liveRev = p.Boot, rev
	case downDir:
		n.down, n.downRev = p.Boot, rev
	}
	nodes := own(b, "nodes", &b.next.nodes)
	if nodes[id] = n; n.rev == 0 && n.liveRev == 0 && n.downRev == 0 {
		delete(nodes, id)
	}
	b.nodes[id] = true
	return nil
}

func (b *builder) applyTopic(e *kv.Event, rest string) error {
	id, err := uuid.Parse(rest)
	if err != nil {
		return err
	}
	var t meta.Topic
	if err := decode(e, &t); err != nil {
		return err
	}
	if !e.Deleted && (t.ID != id || t.Partitions < 1 || t.Partitions > MaxPartitionCount) {
		return fmt.Errorf("it is of topic %v with %d partitions", t.ID, t.Partitions)
	}
	setRev(own(b, "topics", &b.next.topics), id, e)
	topics, names := own(b, "snap.topics", &b.snap.Topics), own(b, "snap.names", &b.snap.Names)
	if before := topics[id]; before != nil {
		delete(topics, id)
		if names[before.Name] == before { // one response may already have given the name to the next topic
			delete(names, before.Name)
		}
	}
	if !e.Deleted {
		topics[id], names[t.Name] = &t, &t
	}
	b.topics[id] = true
	return nil
}

func (b *builder) applyPart(e *kv.Event, rest string) error {
	id, err := parsePart(rest)
	if err != nil {
		return err
	}
	if id.Partition >= MaxPartitionCount {
		return errors.New("no topic has so many partitions")
	}
	var row *partEntry
	if !e.Deleted {
		p, err := decodePartition(id, e.Value)
		if err != nil {
			return err
		}
		row = &partEntry{Partition: *p, rev: e.ModRevision}
	}
	if b.rows == nil {
		b.rows = b.next.parts.Edit()
	}
	b.rows.Set(id, row)
	b.next.parts = b.rows.Rows()
	b.parts[id] = true
	return nil
}

func (b *builder) applyMove(e *kv.Event, rest string) error {
	id, err := parsePart(rest)
	if err != nil {
		return err
	}
	m := moveEntry{rev: e.ModRevision}
	if e.Deleted {
		delete(own(b, "moves", &b.next.moves), id)
		delete(own(b, "snap.moves", &b.snap.Moves), id)
		return nil
	}
	if err := json.Unmarshal(e.Value, &m.moveRow); err != nil {
		return err
	}
	own(b, "moves", &b.next.moves)[id] = m
	own(b, "snap.moves", &b.snap.Moves)[id] = meta.Move(m.moveRow)
	return nil
}

func (b *builder) applyTombstone(e *kv.Event, rest string) error {
	key, err := parseTombstone(rest)
	if err != nil {
		return err
	}
	var row tombstoneRow
	if err := decode(e, &row); err != nil {
		return err
	}
	setRev(own(b, "tombstones", &b.next.tombstones), key, e)
	if m := own(b, "snap.tombstones", &b.snap.Tombstones); e.Deleted {
		delete(m, key)
	} else {
		m[key] = time.Unix(0, row.UntilNs)
	}
	return nil
}

// finish returns the new state, and the changes in it for the engine.
func (b *builder) finish(revision int64) (*state, *meta.Change) {
	change := &meta.Change{Snapshot: b.snap}
	b.snap.Revision = revision
	for id := range b.nodes {
		nodes := own(b, "snap.nodes", &b.snap.Nodes)
		if n := b.next.nodes[id]; n.rev == 0 {
			delete(nodes, id)
		} else {
			row := *n.row
			row.Live = n.alive()
			nodes[id] = &row
		}
		change.Nodes = append(change.Nodes, id)
	}
	for id := range b.topics {
		b.touchParts(id)
		change.Topics = append(change.Topics, id)
	}
	for id := range b.parts {
		if b.show(id) {
			change.Partitions = append(change.Partitions, id)
		}
	}
	sortChange(change)
	return b.next, change
}

// sortChange gives a change a fixed order, so that the same history makes the same run.
func sortChange(c *meta.Change) {
	slices.Sort(c.Nodes)
	slices.SortFunc(c.Topics, func(a, b uuid.UUID) int { return strings.Compare(string(a[:]), string(b[:])) })
	slices.SortFunc(c.Partitions, comparePartitions)
}

// between returns the differences between two states, for a watch that has lost the events between them.
func between(old, next *state) *meta.Change {
	c := &meta.Change{Snapshot: next.snap}
	c.Nodes = differing(old.snap.Nodes, next.snap.Nodes, func(a, b *meta.Node) bool { return *a == *b })
	c.Topics = differing(old.snap.Topics, next.snap.Topics, func(a, b *meta.Topic) bool { return *a == *b })
	c.Partitions = differing(maps.Collect(old.snap.Partitions.All()), maps.Collect(next.snap.Partitions.All()),
		func(a, b *meta.Partition) bool { return old.parts.Get(a.ID).rev == next.parts.Get(b.ID).rev })
	sortChange(c)
	return c
}

func differing[K comparable, V any](old, next map[K]V, same func(a, b V) bool) []K {
	var keys []K
	for k, v := range next {
		if before, found := old[k]; !found || !same(before, v) {
			keys = append(keys, k)
		}
	}
	for k := range old {
		if _, found := next[k]; !found {
			keys = append(keys, k)
		}
	}
	return keys
}

// touchParts marks the partitions that the change of a topic's row shows or hides.
func (b *builder) touchParts(topic uuid.UUID) {
	count := 0
	if t := b.old.snap.Topics[topic]; t != nil {
		count = t.Partitions
	}
	if t := b.snap.Topics[topic]; t != nil {
		count = max(count, t.Partitions)
	}
	for n := range count {
		b.parts[meta.PartitionID{Topic: topic, Partition: uint32(n)}] = true
	}
}

// show puts a partition into the snapshot or removes it, and says whether that changed the snapshot.
func (b *builder) show(id meta.PartitionID) bool {
	var after *meta.Partition
	if row := b.next.parts.Get(id); row != nil && b.next.visible(id) {
		after = &row.Partition
	}
	before := b.snap.Partitions.Get(id)
	if before == after {
		return false
	}
	if b.shown == nil {
		b.shown = b.snap.Partitions.Edit()
	}
	b.shown.Set(id, after)
	b.snap.Partitions = b.shown.Rows()
	l := load{replicas: own(b, "load.replicas", &b.next.load.replicas), leads: own(b, "load.leads", &b.next.load.leads)}
	if before != nil {
		l.count(&before.State, -1)
	}
	if after != nil {
		l.count(&after.State, 1)
	}
	return true
}

// visible says whether the partition belongs to a topic. Partitions of a topic that is being created, or whose deletion
// is not complete, do not.
func (s *state) visible(id meta.PartitionID) bool {
	t := s.snap.Topics[id.Topic]
	return t != nil && int(id.Partition) < t.Partitions
}

func comparePartitions(a, b meta.PartitionID) int {
	if c := bytes.Compare(a.Topic[:], b.Topic[:]); c != 0 {
		return c
	}
	return cmp.Compare(a.Partition, b.Partition)
}
