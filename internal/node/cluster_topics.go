package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/fanout"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// makeReplicas makes this node's part of a topic of the cluster, and lists it. The Topic gets all partitions; those
// that this node replicates also get a log. topic.json is written before anything is stored in the partitions. After an
// error, or a crash in between, files may be left; the worker tries again, or removes them if the topic was deleted.
func (e *Engine) makeReplicas(snap *meta.Snapshot, mt *meta.Topic) (*Topic, error) {
	if e.isQuarantined(mt.ID) {
		return nil, fmt.Errorf("engine: there are logs of topic %s on this node whose %s cannot be read; restart the node",
			mt.Name, datadir.TopicFile)
	}
	m := topicMetaOf(mt)
	t := newTopic(e, m)
	var local []*partition.Partition
	for n := range uint32(m.Partitions) {
		pt := e.store.NewPartition(&t.shared, n)
		t.add(pt)
		row := snap.Partitions.Get(pt.Identity())
		if row == nil || !slices.Contains(row.State.Replicas, e.cluster.Self.ID) {
			continue
		}
		if err := e.store.OpenEmpty(pt); err != nil {
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
	e.list(t)
	e.store.Add(local)
	return t, nil
}

// expandTopic makes this node's part of the partitions that were added to a topic of the cluster. After an error it can
// be repeated: it goes on with the first partition that is missing.
func (e *Engine) expandTopic(snap *meta.Snapshot, mt *meta.Topic, t *Topic) error {
	m := t.meta()
	m.Partitions = mt.Partitions
	// topic.json comes before anything is in the new partitions: recovery reads their number from it.
	if err := e.createTopicFiles(m); err != nil {
		return err
	}
	for n := uint32(t.Partitions()); n < uint32(mt.Partitions); n++ {
		pt := e.store.NewPartition(&t.shared, n)
		row := snap.Partitions.Get(pt.Identity())
		mine := row != nil && slices.Contains(row.State.Replicas, e.cluster.Self.ID)
		if mine {
			if err := e.openEmpty(pt); err != nil {
				return err
			}
		}
		t.add(pt)
		e.cluster.addToTable(t, []*partition.Partition{pt})
		if row != nil {
			pt.Replica().Learn(row)
		}
	}
	return nil
}

// openReplica begins to replicate a partition of a known topic, of which this node has never had a copy or has retired
// its copy. Only the worker calls it.
func (e *Engine) openReplica(t *Topic, pt *partition.Partition) error {
	if pt.Replica().HasLog() {
		return pt.Replica().OpenAgain()
	}
	if err := e.createTopicFiles(t.meta()); err != nil {
		return err
	}
	return e.openEmpty(pt)
}

// openEmpty gives a partition of a known topic an empty log, and lists the partition.
func (e *Engine) openEmpty(pt *partition.Partition) error {
	if err := e.store.OpenEmpty(pt); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.store.Add([]*partition.Partition{pt})
	return nil
}

// dropTopic deletes this node's part of a topic that was deleted in the cluster. The worker calls it; goroutines of its
// own wait for the disk. After a crash in between, the next process finishes the deletion.
func (e *Engine) dropTopic(t *Topic) {
	e.noteTopicDeleted(t.Name())
	t.shared.Deleted.Store(true) // before the replicas end, so that readers hear why
	var local []*partition.Partition
	for _, pt := range t.partitions() {
		pt.Replica().End(ErrDeleted)
		if pt.Log() != nil {
			local = append(local, pt)
		}
	}
	if len(local) == 0 {
		e.mu.Lock()
		e.unlist(t)
		e.mu.Unlock()
		t.closeChannels(ErrDeleted)
		if e.store.Failure() != nil {
			// The commit log could not be read and may contain batches of this topic. A later start that can read it
			// replays them into the topic's files, so the files must stay. That start then deletes the topic.
			e.log.Warn("a deleted topic's files stay until this node starts with a commit log that can be read",
				"topic", t.Name(), "uuid", t.shared.ID)
			return
		}
		// The commit log has nothing of the topic, but a directory may exist: the node may have restarted after it had
		// made the directory and before it wrote anything.
		e.cluster.Spawn(func() { e.trashTopic(t, nil, func() {}) })
		return
	}
	e.cluster.Spawn(func() {
		if err := e.deleteParts(t, local); err != nil && !errors.Is(err, ErrClosed) {
			e.log.Error("a deleted topic could not be removed from this node; it is removed at the next start",
				"topic", t.Name(), "error", err)
		}
	})
}

// showTopic lists a topic that the cluster has under its name. Open may have listed another topic of that name.
func (e *Engine) showTopic(t *Topic) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.list(t)
	}
}

// hideTopic makes a topic that the cluster does not know invisible, and ends its replicas. Its files stay.
func (e *Engine) hideTopic(t *Topic) {
	for _, pt := range t.partitions() {
		pt.Replica().End(ErrNoLeader)
	}
	t.closeChannels(ErrDeleted)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unlist(t)
}

// list makes t the topic of its name, in place of any other one. mu is held.
func (e *Engine) list(t *Topic) {
	if old := e.topics[t.Name()]; old != nil && old != t {
		old.listed.Store(false)
		old.recount()
	}
	e.topics[t.Name()] = t
	t.listed.Store(true)
	t.recount()
	if e.noted != nil {
		e.noted[t.shared.ID] = t.meta()
	}
	e.news.Raise()
}

// unlist removes t from the list of topics, unless its name refers to another topic by now. mu is held.
func (e *Engine) unlist(t *Topic) {
	if e.topics[t.Name()] == t {
		delete(e.topics, t.Name())
		e.news.Raise()
		t.listed.Store(false)
		t.recount()
	}
}

// topicByID returns the listed topic with this UUID; nil if there is none. It takes mu.
func (e *Engine) topicByID(id uuid.UUID) *Topic {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, t := range e.topics {
		if t.shared.ID == id {
			return t
		}
	}
	return nil
}

// createTopic creates a topic in the cluster, and returns when this node has it. It waits at most
// Options.PublishTimeout.
func (cn *clusterNode) createTopic(ctx context.Context, name string, o TopicOptions) (*Topic, error) {
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.opts.PublishTimeout)
	defer cancel()
	mt, err := cn.Rows.CreateTopic(ctx, meta.Topic{
		Name: name, Partitions: o.Partitions, Replicas: cmp.Or(o.Replicas, cn.opts.Replicas),
		CreatedNs: cn.e.now().UnixNano(), MadeBy: o.MadeBy, Settings: o.settings(),
	})
	if err != nil && !errors.Is(err, meta.ErrExists) {
		return nil, fmt.Errorf("engine: cannot create topic %s: %w", name, err)
	}
	var t *Topic
	err = cn.Await(ctx, func() (ok bool) {
		t, ok = cn.e.LookupTopic(name)
		return ok && (mt == nil || t.shared.ID == mt.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("engine: topic %s was created, but this node has not heard of it yet: %w", name, err)
	}
	return t, nil
}

// sleep waits for d. It returns ErrClosed if the engine closes meanwhile, and ctx's error if ctx ends.
func (cn *clusterNode) sleep(ctx context.Context, d time.Duration) error {
	slept := cn.e.host.Pause(d, ctx.Done())
	switch {
	case cn.Ctx.Err() != nil:
		return ErrClosed
	case slept:
		return nil
	}
	return ctx.Err()
}

// deleteTopic deletes a topic in the cluster, and returns when this node no longer lists it. It waits at most
// Options.PublishTimeout.
func (cn *clusterNode) deleteTopic(ctx context.Context, name string) error {
	t, ok := cn.e.LookupTopic(name)
	if !ok {
		return cn.e.noTopic(name)
	}
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.opts.PublishTimeout)
	defer cancel()
	if err := cn.Rows.DeleteTopic(ctx, t.shared.ID); err != nil {
		if errors.Is(err, meta.ErrNotFound) { // another request deleted it a moment ago
			return fanout.NewGoneError(0, ErrNoTopic)
		}
		return err
	}
	err := cn.Await(ctx, func() bool {
		now, ok := cn.e.LookupTopic(name)
		return !ok || now != t
	})
	if err != nil {
		return fmt.Errorf("engine: topic %s is deleted, but this node has not removed it yet: %w", name, err)
	}
	return nil
}

// syncChannels makes the channels of t have exactly the partitions that this node serves now. It returns at once: a new
// goroutine does so, with Topic.changing held. It is called whenever this node begins or ceases to serve a partition of
// t (partition.Topic.ServingChanged).
func (cn *clusterNode) syncChannels(t *Topic) {
	cn.Spawn(func() {
		t.e.host.Lock(&t.changing)
		defer t.changing.Unlock()
		if cn.Ctx.Err() != nil || t.shared.Deleted.Load() {
			return
		}
		t.revokePartitions()
		before := t.adoption.Epochs()
		missing, barren := t.assignPartitions()
		t.startChannels()
		t.closeLeftoverConsumers()
		cn.e.news.Raise()
		if !slices.Equal(before, t.adoption.Epochs()) {
			t.reconcileLater(0, t.Channels()...) // some leaders may have missed a change of a channel's settings
		}
		if len(barren) > 0 {
			cn.Spawn(func() { t.initPartitionsUntilDone(barren) })
		}
		for _, m := range missing {
			cn.Spawn(func() { t.createLater(m) })
		}
	})
}

// revokePartitions takes the partitions that this node no longer serves, or serves in a newer epoch, out of the
// channels. The consumers concerned (channel.Channel.Revoke) are closed with ErrMoved, and connect to the new leaders.
// A channel that keeps no partition is shut and removed; its next consumer makes it again. Only syncChannels calls it,
// with Topic.changing held.
func (t *Topic) revokePartitions() {
	serving := t.servingEpochs()
	stays, any := t.adoption.Revoke(serving, func(i int) bool { return t.hasOtherEpoch(i, serving[i]) })
	if !any {
		return
	}
	kept := map[string]*Channel{}
	for _, c := range t.Channels() {
		if c.local.Revoke(stays) {
			kept[c.name] = c
			continue
		}
		c.local.Shut(ErrMoved)
	}
	t.mu.Lock()
	maps.DeleteFunc(t.channels, func(name string, c *Channel) bool { return kept[name] != c })
	t.mu.Unlock()
}

// servingEpochs returns, by partition, the epoch in which this node serves the partition now; 0: it does not serve it.
func (t *Topic) servingEpochs() []segment.Epoch {
	parts := t.partitions()
	epochs := make([]segment.Epoch, len(parts))
	for i, pt := range parts {
		epochs[i] = pt.ServingEpoch()
	}
	return epochs
}

// hasOtherEpoch says whether a channel has partition i from another epoch than epoch. That happens if the channel was
// made while a leadership began and ended, before adoption recorded it.
func (t *Topic) hasOtherEpoch(i int, epoch segment.Epoch) bool {
	return slices.ContainsFunc(t.Channels(), func(c *Channel) bool { return c.local.HasOtherEpoch(i, epoch) })
}

// missingChannel is a channel of this node that the log of pt lacks.
type missingChannel struct {
	pt *partition.Partition
	ch *Channel
}

// assignPartitions gives the channels the partitions that this node has begun to serve since the last call. missing are
// the channels that the logs of these partitions lack. barren are those of these partitions that may still need all of
// the topic's channels, because the partition is new (mayLackChannels). Topic.changing is held.
func (t *Topic) assignPartitions() (missing []missingChannel, barren []*partition.Partition) {
	var fresh []assignedPartition
	parts := t.partitions()
	for _, i := range t.adoption.Adopt(t.servingEpochs()) {
		pt := parts[i]
		t.begun(pt)
		names, paused, neverHad := pt.Adopt(func(name string) partition.Subscriber {
			c, ok := t.LookupChannel(name)
			if !ok {
				c = newChannel(t, name)
				t.mu.Lock()
				t.channels[name] = c
				t.mu.Unlock()
			}
			return c.local
		})
		if neverHad && t.mayLackChannels(pt) {
			barren = append(barren, pt)
			continue
		}
		t.paused.Store(paused)
		fresh = append(fresh, assignedPartition{pt, names})
	}
	if len(fresh) == 0 {
		return nil, barren
	}
	for _, c := range t.Channels() {
		if !c.ephemeral && !c.local.HasAny() {
			t.removeChannel(c)
			continue
		}
		for _, f := range fresh {
			if !c.ephemeral && !slices.Contains(f.names, c.name) {
				missing = append(missing, missingChannel{f.pt, c})
			}
		}
		c.local.ApplyPosts()
		c.local.Wake()
	}
	return missing, barren
}

// assignedPartition is a partition that this node has begun to serve, and the channels in its log.
type assignedPartition struct {
	pt    *partition.Partition
	names []string
}

// createLater creates a channel that the log lacks because its creation has not reached all partitions. The request to
// create it may still be on its way to this partition, and only that request says where the channel begins. So
// createLater first waits for PublishTimeout, which bounds such requests. If the log still lacks the channel then, it
// begins where channels begin by default. syncChannels runs it on a goroutine of its own; no lock is held. A crash ends
// the wait, and the next leader begins it anew.
func (t *Topic) createLater(m missingChannel) {
	cn := t.e.cluster
	if !t.e.host.Pause(t.e.opts.PublishTimeout, cn.Ctx.Done()) {
		return
	}
	if c, ok := t.LookupChannel(m.ch.name); ok && !c.local.CommittedIn(int(m.pt.Number())) {
		_ = t.createIn(cn.Ctx, m.pt, c, origin{}) // after an error its next user creates it
	}
}

// removeChannel drops a channel that this node knew while it led no partition, and that is in none of the logs that it
// leads now: the channel was deleted meanwhile at its leaders. Its consumers are closed with ErrMoved and subscribe
// again.
func (t *Topic) removeChannel(c *Channel) {
	t.mu.Lock()
	if t.channels[c.name] == c {
		delete(t.channels, c.name)
	}
	t.mu.Unlock()
	c.local.Shut(ErrMoved)
}

// createIn writes channel c into the log of one more partition, and returns when that is committed. It does not hold
// changing while it waits, so leaderships may begin and end meanwhile, and syncChannels may have replaced c by a new
// channel. The new channel has the partition only if the entry was in the log when the channel was made, so createIn
// then calls reassign. So it does if the commit takes too long: nobody waits for it any more, and the entry is in the
// log. It returns ErrDeleted, and writes nothing, if there is no channel of this name any more. It takes changing.
func (t *Topic) createIn(ctx context.Context, pt *partition.Partition, c *Channel, o origin) error {
	w, err := t.appendCreation(ctx, pt, c, o)
	if err == nil {
		err = w.Result(t.e.host)
	}
	c.local.ApplyPosts()
	c.local.Wake()
	if now, _ := t.LookupChannel(c.name); err == nil && now != c || errors.Is(err, ErrUnknown) {
		t.reassign(int(pt.Number()))
	}
	return err
}

// appendCreation puts the creation of channel c into the inbox of one more partition. It holds changing, so a deletion
// of the channel, which holds it too, is either known here or comes behind the creation in every log.
func (t *Topic) appendCreation(
	ctx context.Context, pt *partition.Partition, c *Channel, o origin,
) (*inbox.Waiter, error) {
	entries, err := c.creation(pt, o)
	if err != nil {
		return nil, err
	}
	t.e.host.Lock(&t.changing)
	defer t.changing.Unlock()
	if _, ok := t.LookupChannel(c.name); !ok {
		return nil, ErrDeleted
	}
	return pt.AppendControls(ctx, &inbox.Special{
		Controls: entries,
		OnCommit: func() { pt.Follow(c.local, c.name) },
	})
}

// reassign makes syncChannels give partition i once more to the channels that are in its log. It takes changing.
func (t *Topic) reassign(i int) {
	t.e.host.Lock(&t.changing)
	t.adoption.Again(i)
	t.changing.Unlock()
	t.e.cluster.syncChannels(t)
}

// hasChannel says whether channelNames has the name.
func (t *Topic) hasChannel(name string) bool { return slices.Contains(t.channelNames(), name) }

// channelNames returns the sorted names of the channels in the logs of this node's copies, and of this node's own
// channels. Of the latter it omits those that may be out of date, because this node serves no partition; ephemeral
// channels are in no log and are always included.
func (t *Topic) channelNames() []string {
	seen := map[string]bool{}
	serves := t.servesAny()
	for _, c := range t.Channels() {
		if serves || c.ephemeral { // otherwise the channel here may only have served clients of other leaders
			seen[c.name] = true
		}
	}
	for _, pt := range t.partitions() {
		if !pt.Replica().HasLog() {
			continue
		}
		pt.ReadChannels(func(cur *fold.Cursor) { seen[cur.Name] = true })
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// ChannelNames returns the sorted names of the topic's channels, as far as this node knows them from its copies of
// partitions. They may lag behind the leaders. The slice belongs to the caller.
func (t *Topic) ChannelNames() []string { return t.channelNames() }

// ReadChannelNames is ChannelNames if this node has a copy of any partition. Otherwise it asks the leader of partition
// 0, which does not name ephemeral channels, and returns ErrNoLeader if that leader does not answer within
// Options.PublishTimeout.
func (t *Topic) ReadChannelNames(ctx context.Context) ([]string, error) {
	hasCopy := func(pt *partition.Partition) bool { return pt.Replica().HasLog() }
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
