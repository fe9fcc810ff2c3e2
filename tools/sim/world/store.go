package world

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/replicate"
	"penstock/segment"
)

// store models the metadata store with its controller: linearizable, compare-and-swap only, with leases. It is what
// package cluster makes of etcd, in as few words as possible; the engines reach it through clients.
type store struct {
	w     *World
	snap  *meta.Snapshot // never changed
	lease map[replicate.NodeID]session
	last  replicate.NodeID
	out   int64 // it answers nobody until then

	granted map[epochKey]uuid.UUID
	moves   map[meta.PartitionID]move
	left    map[nodePart]bool // once
}

type session struct {
	boot  uuid.UUID
	until int64
}

type epochKey struct {
	id    meta.PartitionID
	epoch uint64
}

func newStore(w *World) *store {
	return &store{
		w: w, lease: map[replicate.NodeID]session{}, granted: map[epochKey]uuid.UUID{}, moves: map[meta.PartitionID]move{},
		left: map[nodePart]bool{},
		snap: &meta.Snapshot{
			Revision: 1, Cluster: w.newUUID(), Nodes: map[replicate.NodeID]*meta.Node{}, Topics: map[uuid.UUID]*meta.Topic{},
			Names: map[string]*meta.Topic{}, Deleted: map[uuid.UUID]bool{},
			Level: node.NewestLevel,
		},
	}
}

// raised writes a node's levels into its row.
func (s *store) raised(id replicate.NodeID, boot uuid.UUID, level, stored int) error {
	n := s.snap.Nodes[id]
	if n == nil || n.Boot != boot {
		return meta.ErrNotFound
	}
	next := s.edit()
	row := *n
	row.Level, row.StoreLevel = level, stored
	next.Nodes[id] = &row
	s.publish(next)
	return nil
}

// edit makes the next snapshot, whose maps may be changed.
func (s *store) edit() *meta.Snapshot {
	next := *s.snap
	next.Revision++
	next.Nodes, next.Topics, next.Names = maps.Clone(next.Nodes), maps.Clone(next.Topics), maps.Clone(next.Names)
	next.Deleted = maps.Clone(next.Deleted)
	return &next
}

// publish makes next what everybody hears of.
func (s *store) publish(next *meta.Snapshot) {
	old := s.snap
	s.snap = next
	s.w.watchSound(old)
	for _, n := range s.w.nodes {
		if n.client != nil && n.m != nil {
			n.client.watch()
		}
	}
	for _, n := range s.w.forget.twins {
		if n.client != nil && n.m != nil {
			n.client.watch()
		}
	}
}

func comparePartitions(a, b meta.PartitionID) int {
	return cmp.Or(bytes.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Partition, b.Partition))
}

func sortedNodes(s *meta.Snapshot) []replicate.NodeID { return slices.Sorted(maps.Keys(s.Nodes)) }

func sortedTopics(s *meta.Snapshot) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(s.Topics), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

// between says what changed from one snapshot to another.
func between(old, now *meta.Snapshot) *meta.Change {
	c := &meta.Change{Snapshot: now}
	all := now.Partitions.IDs()
	topics := maps.Clone(now.Topics)
	nodes := maps.Clone(now.Nodes)
	if old != nil {
		all = append(all, old.Partitions.IDs()...)
		slices.SortFunc(all, comparePartitions)
		all = slices.Compact(all)
		maps.Copy(topics, old.Topics)
		maps.Copy(nodes, old.Nodes)
	}
	for _, id := range all {
		if old == nil || old.Partitions.Get(id) != now.Partitions.Get(id) {
			c.Partitions = append(c.Partitions, id)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(topics), func(a, b uuid.UUID) int {
		return bytes.Compare(a[:], b[:])
	}) {
		if old == nil || old.Topics[id] != now.Topics[id] {
			c.Topics = append(c.Topics, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		if old == nil || old.Nodes[id] != now.Nodes[id] {
			c.Nodes = append(c.Nodes, id)
		}
	}
	return c
}

func cloneRow(p *meta.Partition) *meta.Partition {
	next := *p
	next.State.ISR, next.State.Replicas, next.Damaged = slices.Clone(p.State.ISR), slices.Clone(p.State.Replicas),
		slices.Clone(p.Damaged)
	next.State.Short, next.Contested = slices.Clone(p.State.Short), slices.Clone(p.Contested)
	return &next
}

func (s *store) live(id replicate.NodeID) bool {
	return s.snap.Nodes[id] != nil && s.snap.Nodes[id].Live
}

// setLive writes or removes a node's live row.
func (s *store) setLive(id replicate.NodeID, live bool) {
	if s.live(id) == live || s.snap.Nodes[id] == nil {
		return
	}
	next := s.edit()
	n := *next.Nodes[id]
	n.Live = live
	next.Nodes[id] = &n
	s.w.tracef("store: node %d live %v", id, live)
	s.publish(next)
}

// control is the controller: it ends leases, elects, and removes disks that are gone.
func (s *store) control() {
	if s.w.now < s.out {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(s.lease)) {
		if s.lease[id].until <= s.w.now {
			s.setLive(id, false)
		}
	}
	for _, id := range s.snap.Partitions.IDs() {
		p := s.snap.Partitions.Get(id)
		if !s.led(p) {
			s.elect(p)
			continue
		}
		s.clean(p)
	}
	s.tendLevel()
	s.stepMoves()
	if s.w.has(FeatureTopics) {
		s.fill()
	}
}

func (s *store) inSync(p *meta.Partition, id replicate.NodeID) bool {
	n := s.snap.Nodes[id]
	if n == nil || !n.Live {
		return false
	}
	m := replicate.Member{Node: id, Store: n.Store}
	return slices.Contains(p.State.ISR, m) && !slices.Contains(p.Damaged, m) && !slices.Contains(p.State.Short, m)
}

func (s *store) led(p *meta.Partition) bool {
	return s.inSync(p, p.State.Leader) && s.snap.Nodes[p.State.Leader].Boot == p.State.Boot
}

func (s *store) electable(p *meta.Partition) (nodes []replicate.NodeID) {
	for _, id := range p.State.Replicas {
		if s.inSync(p, id) || s.w.cfg.Break == MutantUnclean && s.live(id) {
			nodes = append(nodes, id)
		}
	}
	return nodes
}

func (s *store) elect(p *meta.Partition) {
	nodes := s.electable(p)
	if len(nodes) == 0 {
		return
	}
	if good := slices.DeleteFunc(slices.Clone(nodes), func(id replicate.NodeID) bool {
		return s.snap.Nodes[id].Rank() > 0
	}); len(good) > 0 {
		nodes = good
	}
	s.lead(p, nodes[s.w.rng.IntN(len(nodes))])
}

func (s *store) lead(p *meta.Partition, to replicate.NodeID) {
	next := s.edit()
	row := cloneRow(p)
	st := &row.State
	boot := s.snap.Nodes[to].Boot
	if s.w.cfg.Break != MutantEpochs || st.Leader != to {
		st.Epoch++
	}
	st.Version++
	st.Leader, st.Boot = to, boot
	if m := (replicate.Member{Node: to, Store: s.snap.Nodes[to].Store}); !slices.Contains(st.ISR, m) {
		st.ISR = []replicate.Member{m} // only a mutant comes here
	}
	key := epochKey{p.ID, uint64(st.Epoch)}
	if old, ok := s.granted[key]; ok && s.w.cfg.Break == MutantNone {
		s.w.fail("BUG of the simulation: epoch %d was granted to %v before", st.Epoch, old)
	}
	s.granted[key] = boot
	next.Partitions = next.Partitions.With(p.ID, row)
	s.w.Stats.Elections++
	s.w.tracef("store: node %d leads %s, epoch %d, isr %v", to, s.w.partName(p.ID), st.Epoch, members(st.ISR))
	s.publish(next)
}

func members(isr []replicate.Member) (ids []replicate.NodeID) {
	for _, m := range isr {
		ids = append(ids, m.Node)
	}
	return ids
}

// clean removes members whose disk is not there any more, where enough others remain.
func (s *store) clean(p *meta.Partition) {
	gone := func(m replicate.Member) bool {
		return s.snap.Nodes[m.Node] == nil || s.snap.Nodes[m.Node].Store != m.Store
	}
	if !slices.ContainsFunc(p.State.ISR, gone) && !slices.ContainsFunc(p.Damaged, gone) {
		return
	}
	row := cloneRow(p)
	row.State.ISR = slices.DeleteFunc(row.State.ISR, gone)
	row.Damaged = slices.DeleteFunc(row.Damaged, gone)
	if len(row.State.ISR) < row.State.MinISR {
		return
	}
	row.State.Version++
	next := s.edit()
	next.Partitions = next.Partitions.With(p.ID, row)
	s.w.tracef("store: %s forgets disks, isr %v", s.w.partName(p.ID), members(row.State.ISR))
	s.publish(next)
}

// The requests. Each happens at one moment.

// bootOf is the process that has registered last under a name; the nil UUID: none has.
func (s *store) bootOf(name string) uuid.UUID {
	if n := s.rowOf(name); n != nil {
		return n.Boot
	}
	return uuid.Nil
}

// rowOf returns the row of a node; nil: there is none.
func (s *store) rowOf(name string) *meta.Node {
	for _, n := range s.snap.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

func (s *store) register(n meta.Node, damaged []meta.PartitionID, all bool) meta.Node {
	n.ID = 0
	for _, o := range s.snap.Nodes {
		if o.Name == n.Name {
			n.ID = o.ID
		}
	}
	if n.ID == 0 {
		s.last++
		n.ID = s.last
	}
	if all {
		damaged = s.snap.Partitions.IDs()
	}
	for _, id := range damaged {
		if p := s.snap.Partitions.Get(id); p != nil && !slices.Contains(p.State.Replicas, n.ID) {
			continue
		}
		_ = s.reportCopy(id, replicate.Member{Node: n.ID, Store: n.Store}, meta.CopyDamaged) // the partition may be gone
	}
	n.Live = true
	if old := s.snap.Nodes[n.ID]; old != nil {
		n.Draining = old.Draining
	}
	if old := s.snap.Nodes[n.ID]; old != nil && s.w.cfg.Break == MutantDisks {
		s.adoptDisk(n, old.Store)
	}
	s.lease[n.ID] = session{n.Boot, s.w.now + s.w.opt.leaseTTL}
	next := s.edit()
	next.Nodes[n.ID] = &n
	for _, o := range s.w.nodes {
		o.wiped = o.wiped && o.name != n.Name
	}
	s.w.tracef("store: %s registers as node %d", n.Name, n.ID)
	s.publish(next)
	return n
}

// adoptDisk is MutantDisks: the new disk takes the place of the old one in every ISR.
func (s *store) adoptDisk(n meta.Node, old uuid.UUID) {
	next := s.edit()
	for _, id := range next.Partitions.IDs() {
		row := cloneRow(next.Partitions.Get(id))
		for i, m := range row.State.ISR {
			if m.Node == n.ID && m.Store == old {
				row.State.ISR[i].Store = n.Store
			}
		}
		next.Partitions = next.Partitions.With(id, row)
	}
	s.publish(next)
}

// keepAlive extends a lease; false: it is gone, or another process's.
func (s *store) keepAlive(id replicate.NodeID, boot uuid.UUID) bool {
	ss, ok := s.lease[id]
	if !ok || ss.boot != boot || ss.until <= s.w.now || !s.live(id) {
		return false
	}
	s.lease[id] = session{boot, s.w.now + s.w.opt.leaseTTL}
	return true
}

// revive makes a node live again; it returns the revision that must have been heard before it serves.
func (s *store) revive(id replicate.NodeID, boot uuid.UUID) (int64, bool) {
	n := s.snap.Nodes[id]
	if n == nil || n.Boot != boot {
		return 0, false
	}
	s.lease[id] = session{boot, s.w.now + s.w.opt.leaseTTL}
	s.setLive(id, true)
	return s.snap.Revision, true
}

func (s *store) leave(id replicate.NodeID, boot uuid.UUID) {
	if s.lease[id].boot == boot {
		delete(s.lease, id)
		s.setLive(id, false)
	}
}

func (s *store) reportDown(id replicate.NodeID, boot uuid.UUID) {
	s.w.tracef("store: node %d is reported gone", id)
	s.leave(id, boot)
	s.control()
}

func (s *store) createTopic(t meta.Topic) (*meta.Topic, error) {
	if old := s.snap.Names[t.Name]; old != nil {
		return old, meta.ErrExists
	}
	live := s.liveNodes()
	if len(live) < t.Replicas || len(live) < t.MinISR {
		return nil, meta.ErrTooFewNodes
	}
	t.ID = s.w.newUUID()
	if was := s.w.topicNamed(t.Name); s.w.cfg.Break == MutantSameTopic && was.gone {
		t.ID = was.id
	}
	s.w.made(&t)
	if m := s.w.models[t.ID]; m.of == nil {
		s.w.keepFirst(&t)
		m.want(&t.Settings)
		s.w.lie(&t.Settings)
	}
	next := s.edit()
	next.Topics[t.ID], next.Names[t.Name] = &t, &t
	for n := range t.Partitions {
		s.addPartition(next, &t, n, live)
	}
	s.w.tracef("store: topic %s is made", t.Name)
	s.publish(next)
	return &t, nil
}

func (s *store) liveNodes() (live []replicate.NodeID) {
	for _, id := range slices.Sorted(maps.Keys(s.snap.Nodes)) {
		if s.live(id) {
			live = append(live, id)
		}
	}
	return live
}

func (s *store) addPartition(next *meta.Snapshot, t *meta.Topic, n int, live []replicate.NodeID) {
	id := meta.PartitionID{Topic: t.ID, Partition: uint32(n)}
	row := &meta.Partition{ID: id}
	first := s.w.rng.IntN(len(live))
	for i := range min(t.Replicas, len(live)) {
		node := live[(first+i)%len(live)]
		row.State.Replicas = append(row.State.Replicas, node)
		row.State.ISR = append(row.State.ISR, replicate.Member{Node: node, Store: next.Nodes[node].Store})
	}
	row.State.Leader, row.State.Boot = row.State.Replicas[0], next.Nodes[row.State.Replicas[0]].Boot
	row.State.Epoch, row.State.Version, row.State.MinISR = 1, 1, t.MinISR
	if s.w.cfg.Break == MutantSameTopic {
		row.State.Epoch = segment.Epoch(1000 * next.Revision)
	}
	s.granted[epochKey{id, uint64(row.State.Epoch)}] = row.State.Boot
	next.Partitions = next.Partitions.With(id, row)
}

func (s *store) expandTopic(id uuid.UUID, partitions int) error {
	t := s.snap.Topics[id]
	if t == nil {
		return meta.ErrNotFound
	}
	next := s.edit()
	grown := *t
	grown.Partitions = max(t.Partitions, partitions)
	if s.w.cfg.Break != MutantSilentGrowth {
		grown.Settings = t.Expanded()
	}
	next.Topics[id], next.Names[t.Name] = &grown, &grown
	if err := s.grow(next, t, &grown); err != nil {
		return err
	}
	s.publish(next)
	return nil
}

func (s *store) deleteTopic(id uuid.UUID) error {
	t := s.snap.Topics[id]
	if t == nil {
		return meta.ErrNotFound
	}
	next := s.edit()
	delete(next.Topics, id)
	delete(next.Names, t.Name)
	next.Deleted[id] = true
	for _, p := range next.Partitions.IDs() {
		if p.Topic == id {
			next.Partitions = next.Partitions.With(p, nil)
		}
	}
	s.w.tracef("store: topic %s is deleted", t.Name)
	s.w.deleted(id)
	s.publish(next)
	return nil
}

func sameLeadership(row, want *replicate.State) bool {
	return row.Epoch == want.Epoch && row.Version == want.Version && row.Leader == want.Leader && row.Boot == want.Boot
}

func (s *store) readPartition(id meta.PartitionID) (*meta.Partition, error) {
	p := s.snap.Partitions.Get(id)
	if p == nil {
		return nil, meta.ErrNotFound
	}
	return cloneRow(p), nil
}

func (s *store) changeISR(id meta.PartitionID, want *replicate.State) (replicate.State, error) {
	p := s.snap.Partitions.Get(id)
	if p == nil {
		return replicate.State{}, meta.ErrNotFound
	}
	st := &p.State
	if !sameLeadership(st, want) {
		accepted := *want
		accepted.Version++
		if sameLeadership(st, &accepted) && slices.Equal(st.ISR, want.ISR) {
			return cloneRow(p).State, nil
		}
		return cloneRow(p).State, meta.ErrConflict
	}
	leads := false
	for _, m := range want.ISR {
		known := slices.Contains(st.ISR, m)
		leads = leads || known && m.Node == st.Leader
		if !slices.Contains(st.Replicas, m.Node) || !known &&
			(s.snap.Nodes[m.Node] == nil || s.snap.Nodes[m.Node].Store != m.Store) {
			return cloneRow(p).State, meta.ErrConflict
		}
	}
	if !leads || len(want.ISR) < min(len(st.ISR), st.MinISR) {
		return cloneRow(p).State, meta.ErrUnsafe
	}
	row := cloneRow(p)
	row.State.ISR, row.State.Short = slices.Clone(want.ISR), slices.Clone(want.Short)
	row.State.Version++
	next := s.edit()
	next.Partitions = next.Partitions.With(id, row)
	s.w.Stats.ISRChanges++
	s.w.tracef("store: %s version %d isr %v", s.w.partName(id), row.State.Version, members(row.State.ISR))
	s.publish(next)
	return cloneRow(row).State, nil
}

func (s *store) handOver(id meta.PartitionID, from *replicate.State, to replicate.NodeID) error {
	p := s.snap.Partitions.Get(id)
	switch {
	case p == nil:
		return meta.ErrNotFound
	case !sameLeadership(&p.State, from):
		return meta.ErrConflict
	}
	heirs := s.heirs(p)
	switch {
	case to == 0 && len(heirs) == 0:
		return meta.ErrTooFewNodes
	case to == 0:
		to = heirs[s.w.rng.IntN(len(heirs))]
	case !s.mayBeNamed(p, to):
		disk := "gone" // the node may have been removed meanwhile
		if n := s.snap.Nodes[to]; n != nil {
			disk = n.Disk.String()
		}
		s.w.tracef("store: %s is not handed over to node %d: in sync %v, short %v, damaged %v, its disk %v", s.w.partName(id),
			to, members(p.State.ISR), members(p.State.Short), members(p.Damaged), disk)
		return meta.ErrUnsafe
	}
	s.lead(p, to)
	return nil
}

func (s *store) reportCopy(id meta.PartitionID, m replicate.Member, state meta.CopyState) error {
	p := s.snap.Partitions.Get(id)
	if p == nil {
		return meta.ErrNotFound
	}
	if p.CopyOf(m) == state {
		return nil
	}
	row := cloneRow(p)
	row.SetCopy(m, state)
	row.State.Version++
	next := s.edit()
	next.Partitions = next.Partitions.With(id, row)
	s.w.tracef("store: %s on node %d copy %d", s.w.partName(id), m.Node, state)
	s.publish(next)
	return nil
}
