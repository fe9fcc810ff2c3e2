package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"

	"penstock/engine/core"
	"penstock/engine/meta"
	"penstock/replicate"
	"penstock/segment"
)

// makeReplicas makes this node's part of a topic of the cluster: all partitions are known, those that it replicates get a log.
func (e *Engine) makeReplicas(snap *meta.Snapshot, mt *meta.Topic) (*Topic, error) {
	if e.isQuarantined(mt.ID) {
		return nil, fmt.Errorf("engine: there are logs of topic %s on this node whose %s cannot be read; restart the node", mt.Name, topicFile)
	}
	m := topicMetaOf(mt)
	t := newTopic(e, m)
	var local []*partition
	for n := range uint32(m.Partitions) {
		pt := e.newReplicaPartition(t, n)
		t.add(pt)
		row := snap.Partitions[pt.identity()]
		if row == nil || !slices.Contains(row.State.Replicas, e.cluster.self.ID) {
			continue
		}
		if err := e.openEmpty(pt); err != nil {
			t.abandon()
			return nil, err
		}
		local = append(local, pt)
	}
	if len(local) > 0 {
		if err := e.createTopicFiles(m); err != nil {
			t.abandon()
			return nil, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		t.abandon()
		return nil, ErrClosed
	}
	e.topics[t.name] = t
	e.addPartitions(local)
	return t, nil
}

// expandTopic makes the partitions that the cluster has added to a topic.
func (e *Engine) expandTopic(snap *meta.Snapshot, mt *meta.Topic, t *Topic) error {
	m := t.meta()
	m.Partitions = mt.Partitions
	if err := e.createTopicFiles(m); err != nil { // before anything is in them: recovery asks it how many there are
		return err
	}
	for n := uint32(t.Partitions()); n < uint32(mt.Partitions); n++ {
		pt := e.newReplicaPartition(t, n)
		row := snap.Partitions[pt.identity()]
		mine := row != nil && slices.Contains(row.State.Replicas, e.cluster.self.ID)
		if mine {
			if err := e.openEmpty(pt); err != nil {
				return err
			}
			e.mu.Lock()
			e.addPartitions([]*partition{pt})
			e.mu.Unlock()
		}
		t.add(pt)
		e.cluster.addToTable([]*partition{pt})
		if row != nil {
			pt.rep.learn(row)
		}
	}
	return nil
}

// newReplicaPartition is a partition without a copy on this node.
func (e *Engine) newReplicaPartition(t *Topic, n uint32) *partition {
	pt := &partition{e: e, t: t, number: n, fold: new(core.Cursors), machine: core.NewPartition(segment.State{}, e.sizes())}
	pt.rep = &replica{cn: e.cluster, pt: pt}
	pt.rep.pending.clear()
	pt.publishFold(0)
	return pt
}

// openEmpty gives pt an empty log.
func (e *Engine) openEmpty(pt *partition) error {
	log, err := segment.Open(e.disk, partitionDir(pt.t.uuid, pt.number), pt.identity(), segment.State{}, e.segmentOptions())
	if err != nil {
		return err
	}
	r := pt.rep
	r.mu.Lock() // frames of other nodes may ask for the replica already
	defer r.mu.Unlock()
	pt.log = log
	return r.open(0)
}

// openReplica begins to replicate a partition of a topic that this node knows: it is new here, or had left.
func (e *Engine) openReplica(pt *partition) error {
	if pt.rep.hasLog() {
		r := pt.rep
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ended {
			return ErrClosed
		}
		r.closed = false
		return r.open(0)
	}
	if err := e.createTopicFiles(pt.t.meta()); err != nil {
		return err
	}
	if err := e.openEmpty(pt); err != nil {
		return err
	}
	e.mu.Lock()
	e.addPartitions([]*partition{pt})
	e.mu.Unlock()
	return nil
}

// dropTopic deletes this node's part of a topic that the cluster deleted.
func (e *Engine) dropTopic(t *Topic) {
	e.noteTopicDeleted(t.name)
	var local []*partition
	for _, pt := range t.partitions() {
		pt.rep.end(ErrDeleted)
		if pt.log != nil {
			local = append(local, pt)
		}
	}
	if len(local) == 0 {
		e.mu.Lock()
		if e.topics[t.name] == t {
			delete(e.topics, t.name)
		}
		e.mu.Unlock()
		t.deleted.Store(true)
		t.closeChannels(ErrDeleted)
		if e.poisoned.Load() != nil {
			// The commit log may be full of it and could not be read. A start that reads it must find the files, for it writes there what the log
			// holds; it deletes the topic then.
			e.log.Warn("a deleted topic's files stay until this node starts with a commit log that can be read", "topic", t.name, "uuid", t.uuid)
			return
		}
		// The commit log says nothing of it, and yet it may have a directory: it was made, and the node started anew before anything was written.
		e.cluster.spawn(func() { e.trashTopic(t, nil, func() {}) })
		return
	}
	e.cluster.spawn(func() {
		if err := e.deleteParts(t, local); err != nil && !errors.Is(err, ErrClosed) {
			e.log.Error("a deleted topic could not be removed from this node; it is removed at the next start", "topic", t.name, "error", err)
		}
	})
}

// showTopic makes the topic that the cluster has the one of its name: Open may have found another one, too.
func (e *Engine) showTopic(t *Topic) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.topics[t.name] = t
	}
}

// hideTopic takes a topic that the cluster does not know out of sight. Its bytes stay.
func (e *Engine) hideTopic(t *Topic) {
	for _, pt := range t.partitions() {
		pt.rep.end(ErrNoLeader)
	}
	t.closeChannels(ErrDeleted)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.topics[t.name] == t {
		delete(e.topics, t.name)
	}
}

func (e *Engine) topicByID(id uuid.UUID) *Topic {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, t := range e.topics {
		if t.uuid == id {
			return t
		}
	}
	return nil
}

// createTopic makes a topic in the cluster, and returns when this node knows it and every partition has a leader.
func (cn *clusterNode) createTopic(ctx context.Context, name string, partitions int) (*Topic, error) {
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.opts.PublishTimeout)
	defer cancel()
	mt, err := cn.store.CreateTopic(ctx, meta.Topic{Name: name, Partitions: partitions, Replicas: cn.opts.Replicas, CreatedNs: cn.e.now().UnixNano()})
	if err != nil && !errors.Is(err, meta.ErrExists) {
		return nil, fmt.Errorf("engine: cannot create topic %s: %w", name, err)
	}
	for {
		if t, ok := cn.e.LookupTopic(name); ok && (mt == nil || t.uuid == mt.ID) {
			return t, nil
		}
		if err := cn.sleep(ctx, time.Millisecond); err != nil {
			return nil, fmt.Errorf("engine: topic %s was created, but this node has not heard of it yet: %w", name, err)
		}
	}
}

func (cn *clusterNode) sleep(ctx context.Context, d time.Duration) error {
	slept := cn.e.host.Pause(d, ctx.Done())
	switch {
	case cn.ctx.Err() != nil:
		return ErrClosed
	case slept:
		return nil
	}
	return ctx.Err()
}

// deleteTopic deletes a topic in the cluster, and returns when this node does not serve it any more.
func (cn *clusterNode) deleteTopic(ctx context.Context, name string) error {
	t, ok := cn.e.LookupTopic(name)
	if !ok {
		return cn.e.noTopic(name)
	}
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.opts.PublishTimeout)
	defer cancel()
	if err := cn.store.DeleteTopic(ctx, t.uuid); err != nil {
		if errors.Is(err, meta.ErrNotFound) { // it was there until a moment ago
			return &GoneError{0, ErrNoTopic}
		}
		return err
	}
	for {
		if now, ok := cn.e.LookupTopic(name); !ok || now != t {
			return nil
		}
		if err := cn.sleep(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("engine: topic %s is deleted, but this node has not removed it yet: %w", name, err)
		}
	}
}

// syncChannels makes the channels of t those of the partitions that this node serves now.
func (cn *clusterNode) syncChannels(t *Topic) {
	cn.spawn(func() {
		t.e.host.Lock(&t.changing)
		defer t.changing.Unlock()
		if cn.ctx.Err() != nil || t.deleted.Load() {
			return
		}
		t.revokePartitions()
		before := slices.Clone(t.assigned)
		missing, barren := t.assignPartitions()
		t.startChannels()
		t.closeLeftoverConsumers()
		if channels := t.Channels(); len(t.assigned) > 1 && !slices.Equal(before, t.assigned) {
			cn.spawn(func() {
				for _, c := range channels {
					c.reconcile(cn.ctx) // a change of its settings may have ended half way
				}
			})
		}
		if len(barren) > 0 {
			cn.spawn(func() { t.initPartitionsUntilDone(barren) })
		}
		for _, m := range missing {
			cn.spawn(func() { _ = t.createIn(cn.ctx, m.pt, m.ch) }) // if it fails, whoever wants the channel asks for it
		}
	})
}

// revokePartitions takes the partitions that this node does not serve any more out of the channels. Their consumers are told,
// and connect to the new leaders. A channel that keeps no partition ends, and is made anew for its next consumer.
// syncChannels calls it; Topic.changing is held.
func (t *Topic) revokePartitions() {
	for len(t.assigned) < len(t.partitions()) {
		t.assigned = append(t.assigned, 0)
	}
	gone := false
	stays := make([]bool, len(t.assigned))
	for i, pt := range t.partitions()[:len(t.assigned)] {
		epoch := pt.rep.serving()
		over := t.assigned[i] != 0 && t.assigned[i] != epoch || t.hasOtherEpoch(i, epoch)
		stays[i] = epoch != 0 && !over
		gone = gone || over
	}
	if !gone {
		return
	}
	kept := map[string]*Channel{}
	for _, c := range t.Channels() {
		if c.revoke(stays) {
			kept[c.name] = c
			continue
		}
		c.shut(ErrMoved)
	}
	t.mu.Lock()
	maps.DeleteFunc(t.channels, func(name string, c *Channel) bool { return kept[name] != c })
	t.mu.Unlock()
	clear(t.assigned)
}

// hasOtherEpoch says whether a channel has the partition as it was served in another epoch: it was made while the leadership came and went, before
// that could be noted in served.
func (t *Topic) hasOtherEpoch(i int, epoch segment.Epoch) bool {
	return slices.ContainsFunc(t.Channels(), func(c *Channel) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.applyPostsLocked()
		return i < len(c.cursors) && c.cursors[i].assigned && c.cursors[i].epoch != epoch
	})
}

type missingChannel struct {
	pt *partition
	ch *Channel
}

// assignPartitions gives the channels the partitions that this node serves since a moment ago. It returns the channels that one of them does not know,
// and the partitions that know none.
func (t *Topic) assignPartitions() (missing []missingChannel, barren []*partition) {
	var fresh []assignedPartition
	for i, pt := range t.partitions()[:len(t.assigned)] {
		epoch := pt.rep.serving()
		if t.assigned[i] != 0 || epoch == 0 {
			continue
		}
		t.assigned[i] = epoch
		pt.rep.mu.Lock()
		var names []string
		pt.fold.Each(func(cur *core.Cursor) { names = append(names, cur.Name) })
		for _, name := range names {
			c, ok := t.LookupChannel(name)
			if !ok {
				c = newChannel(t, name)
				t.mu.Lock()
				t.channels[name] = c
				t.mu.Unlock()
			}
			pt.watch(c)
			p := pt.snapshot(name)
			p.foundEnd = pt.machine.State().Next
			c.post(&p)
		}
		isNew := pt.isUninitialized()
		if !isNew {
			t.paused.Store(pt.fold.TopicPaused)
		}
		pt.rep.mu.Unlock()
		if isNew {
			barren = append(barren, pt)
			continue
		}
		fresh = append(fresh, assignedPartition{pt, names})
	}
	if len(fresh) == 0 {
		return nil, barren
	}
	for _, c := range t.Channels() {
		if !c.ephemeral && !c.hasAssigned() {
			t.removeChannel(c)
			continue
		}
		for _, f := range fresh {
			if !c.ephemeral && !slices.Contains(f.names, c.name) {
				missing = append(missing, missingChannel{f.pt, c})
			}
		}
		c.applyPosts()
		c.wake()
	}
	return missing, barren
}

// assignedPartition is a partition that this node serves since a moment ago, and the channels in its log.
type assignedPartition struct {
	pt    *partition
	names []string
}

// hasAssigned says whether the channel has any partition that this node serves.
func (c *Channel) hasAssigned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyPostsLocked()
	return slices.ContainsFunc(c.cursors, func(cur cursor) bool { return cur.assigned })
}

// removeChannel drops a channel that this node knew when it led nothing and that is in none of the logs that it leads now: somebody has deleted it, and here nobody was told.
// Who subscribed to it does so again.
func (t *Topic) removeChannel(c *Channel) {
	t.mu.Lock()
	if t.channels[c.name] == c {
		delete(t.channels, c.name)
	}
	t.mu.Unlock()
	c.shut(ErrMoved)
}

// createIn writes a channel into the log of one more partition. Leaderships may come and go meanwhile: then the topic's channels were put together anew, c is none
// of them, and what is in their place has the partition only if the entry was in the log when it was made.
func (t *Topic) createIn(ctx context.Context, pt *partition, c *Channel) error {
	err := pt.writeControls(ctx, [][]core.Control{{{Kind: core.ChannelCreated, Channel: c.name}}}, func() { c.follow(pt) })
	c.applyPosts()
	c.wake()
	if now, _ := t.LookupChannel(c.name); err == nil && now != c {
		t.reassign(int(pt.number))
	}
	return err
}

// reassign has the channels that are in the log of a partition get it, if they do not have it.
func (t *Topic) reassign(i int) {
	t.e.host.Lock(&t.changing)
	if i < len(t.assigned) {
		t.assigned[i] = 0
	}
	t.changing.Unlock()
	t.e.cluster.syncChannels(t)
}

// hasChannel says whether any partition that this node has a copy of knows the channel.
func (t *Topic) hasChannel(name string) bool { return slices.Contains(t.channelNames(), name) }

func (t *Topic) channelNames() []string {
	seen := map[string]bool{}
	serves := t.servesAny()
	for _, c := range t.Channels() {
		if serves || c.ephemeral { // else it is what this node once fetched messages for, or made for others
			seen[c.name] = true
		}
	}
	for _, pt := range t.partitions() {
		if pt.rep == nil || !pt.rep.hasLog() {
			continue
		}
		pt.rep.mu.Lock()
		pt.fold.Each(func(cur *core.Cursor) { seen[cur.Name] = true })
		pt.rep.mu.Unlock()
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// ChannelNames are the names of the topic's channels, sorted, as far as this node knows them: those of partitions of which it has a copy.
func (t *Topic) ChannelNames() []string { return t.channelNames() }

// ReadChannelNames is ChannelNames wherever this node has a copy; else it asks the leader of partition 0.
func (t *Topic) ReadChannelNames(ctx context.Context) ([]string, error) {
	hasCopy := func(pt *partition) bool { return pt.rep == nil || pt.rep.hasLog() }
	if slices.ContainsFunc(t.partitions(), hasCopy) {
		return t.channelNames(), nil
	}
	s, err := t.fetchState(ctx, false)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(s.Channels))
	for i := range s.Channels {
		names = append(names, s.Channels[i].Name)
	}
	return names, nil
}

// trim removes segments below to, as far as recovery and the cluster allow, and tells the replica.
func (f *flusher) trim(pt *partition, to segment.Offset) {
	f.mu.Lock()
	limit := f.limits[pt]
	f.mu.Unlock()
	start, before, _ := pt.log.Start()
	if to = min(to, limit); to > start {
		to = min(to, pt.committedEnd())
	}
	if to <= start {
		return
	}
	wanted := pt.bound.current()
	n, err := pt.log.Trim(to)
	if left := pt.startBorder(); wanted.id < left.ID || wanted.at < left.At {
		pt.mayHaveLost.Store(true)
	}
	f.e.counters.TrimmedBytes.Add(uint64(n))
	if err != nil && !errors.Is(err, segment.ErrClosed) && !errors.Is(err, fs.ErrNotExist) {
		f.e.log.Warn("retention could not remove a segment; it tries again", "topic", pt.t.name, "partition", pt.number, "error", err)
	}
	if _, after, _ := pt.log.Start(); after == before || pt.rep == nil {
		return
	}
	pt.rep.run(func() {
		start, err := pt.startState()
		if err == nil && !pt.rep.closed {
			pt.rep.step(&replicate.Event{Kind: replicate.EvTrimmed, Log: start})
		}
	})
}

// committedEnd is the offset up to which the cluster has agreed; on a single node everything.
func (pt *partition) committedEnd() segment.Offset {
	end, _, _ := pt.log.End()
	if pt.rep == nil {
		return end
	}
	at, err := pt.log.SeekPosition(pt.committedMark())
	switch {
	case err == nil:
		return at
	case errors.Is(err, segment.ErrAtEnd):
		return end
	}
	return 0
}
