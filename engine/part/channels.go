package part

import (
	"slices"
	"sync/atomic"

	"penstock/engine/core"
	"penstock/engine/inbox"
	"penstock/replicate"
	"penstock/segment"
)

// Subscriber is told what happens to a partition's log. The channels of this node implement it. A partition knows
// nothing else of them.
//
// The committer calls the methods, a replica that commits, the flusher, and the readers of connections between nodes;
// they may hold any lock that comes before Channel.postMu. Only Resume waits.
type Subscriber interface {
	// Post queues an event. It borrows p.
	Post(p *core.Post)
	// Wake makes the subscriber look at its events, and at what it can deliver.
	Wake()
	// Committed is called after a commit has raised visible. It does something only if the subscriber waits for messages.
	Committed()
	// Resume says that bytes of the partition can be read again. It waits for the channel's lock: nothing is held.
	Resume(partition uint32)
}

// watching returns who gets the partition's events. The list is replaced, never changed.
func (pt *Partition) watching() []Subscriber {
	if ss := pt.watchers.Load(); ss != nil {
		return *ss
	}
	return nil
}

// watch adds s to those that get the partition's events, if it is not among them yet.
func (pt *Partition) watch(s Subscriber) {
	pt.changeWatchers(func(old []Subscriber) []Subscriber {
		if slices.Contains(old, s) {
			return old
		}
		return append([]Subscriber{s}, old...)
	})
}

// Unwatch ends what Follow and FollowUnlogged began: s gets no more events.
func (pt *Partition) Unwatch(s Subscriber) {
	pt.changeWatchers(func(old []Subscriber) []Subscriber {
		return slices.DeleteFunc(slices.Clone(old), func(other Subscriber) bool { return other == s })
	})
}

// changeWatchers replaces the list by what change makes of it. change does not modify the old list, and may run again.
func (pt *Partition) changeWatchers(change func(old []Subscriber) []Subscriber) {
	for {
		old := pt.watchers.Load()
		var ss []Subscriber
		if old != nil {
			ss = *old
		}
		ss = change(ss)
		if pt.watchers.CompareAndSwap(old, &ss) {
			return
		}
	}
}

// Follow gives a channel the partition: a snapshot of what the log says of the channel now, and all later events.
// Nothing may be committed between the two. So it runs on the committer, or with Replica.mu held, or before the
// committer started.
func (pt *Partition) Follow(s Subscriber, name string) {
	pt.watch(s)
	p := pt.snapshot(name)
	s.Post(&p)
}

// followFound is follow for a channel that was found in the log: it counts as created when all is committed that is in
// the log now. Replica.mu is held.
func (pt *Partition) followFound(s Subscriber, name string) {
	pt.watch(s)
	p := pt.snapshot(name)
	p.FoundEnd = pt.machine.State().Next
	s.Post(&p)
}

// FollowUnlogged is Follow for an ephemeral channel, which is in no log: it gets the messages that come, and those that
// wait because the topic has no channel or is paused.
func (pt *Partition) FollowUnlogged(s Subscriber, name string) {
	pt.watch(s)
	end := segment.MsgID(pt.visible.Load())
	start := min(end, segment.MsgID(pt.unclaimed.Load()), segment.MsgID(pt.pausedFrom.Load()))
	p := pt.begins(name, start, end)
	p.Epoch = pt.replica.serving()
	s.Post(&p)
}

// begins returns the event that gives a channel the partition: the channel reads from start, and messages below end are
// visible.
func (pt *Partition) begins(name string, start, end segment.MsgID) core.Post {
	return core.Post{Event: core.Event{
		Kind: core.EvAddPartition, Part: pt.number, End: end,
		Cursor: &core.Cursor{Name: name, Start: start, Confirmed: start},
	}}
}

// snapshot returns the event that gives a channel the partition with the state that the log has now. It needs what
// follow needs.
func (pt *Partition) snapshot(name string) core.Post {
	end := segment.MsgID(pt.visible.Load())
	p := pt.begins(name, pt.fold.StartFor(end), end)
	if r := pt.replica; r != nil && r.leader != nil {
		p.Epoch, p.Flag = r.leader.Epoch(), pt.machine.State().Next > r.committed()
	}
	for _, d := range pt.fold.Deferred {
		if d.ID < end {
			p.Deferred = append(p.Deferred, d)
		}
	}
	if cur := pt.fold.Channel(name); cur != nil {
		own := *cur // a deep copy: the fold keeps changing
		own.Ranges, own.Requeued, own.Dead = cur.Ranges.Clone(), slices.Clone(cur.Requeued), slices.Clone(cur.Dead)
		p.Cursor = &own
	}
	return p
}

// wake wakes the channels that wait for messages of the partition. It is called after a commit has raised visible.
func (pt *Partition) wake() {
	for _, s := range pt.watching() {
		s.Committed()
	}
}

// post queues an event at each of the partition's channels, and wakes them. They share what p points to, and none
// changes it.
func (pt *Partition) post(p *core.Post) {
	p.Part = pt.number
	for _, s := range pt.watching() {
		s.Post(p)
		s.Wake()
	}
}

// ResumeReaders lets channels continue that had stopped at a damaged range. It waits for the lock of each.
func (pt *Partition) ResumeReaders() {
	for _, s := range pt.watching() {
		s.Resume(pt.number)
		s.Wake()
	}
}

// postDeferred tells the channels of committed deferred messages. It is called at the commit, before the messages are
// visible. ds is borrowed.
func (pt *Partition) postDeferred(ds []core.DeferredMessage) {
	if len(pt.watching()) > 0 {
		pt.post(&core.Post{Event: core.Event{Kind: core.EvDeferredPublished, Deferred: slices.Clone(ds)}})
	}
}

// postDropped tells the channels that a paused topic dropped the messages r that it had held back, before the end of r
// becomes visible. Only the committer calls it.
func (pt *Partition) postDropped(r core.IDRange) {
	pt.post(&core.Post{Event: core.Event{Kind: core.EvDropped, Msg: r.From, End: r.To}})
}

// What channels see of the partition, see channel.Partition.

// Number is the partition's number in its topic.
func (pt *Partition) Number() uint32 { return pt.number }

// Topic is what all partitions of the topic share.
func (pt *Partition) Topic() *Topic { return pt.topic }

// Replica is this node's replica of the partition.
func (pt *Partition) Replica() *Replica { return pt.replica }

// SetTopic gives a partition of a topic whose metadata was found only now its topic. No goroutine runs yet.
func (pt *Partition) SetTopic(t *Topic) {
	pt.topic = t
	pt.flush.Init(pt, t.Name, pt.number)
}

// Log is the partition's log.
func (pt *Partition) Log() *segment.Log { return pt.log }

// Ends returns where the partition keeps the end, exclusive, of its committed messages, and of those that the topic's
// pause does not hold back.
func (pt *Partition) Ends() (committed, unpaused *atomic.Uint64) { return &pt.visible, &pt.pausedFrom }

// CommittedMark is the end of what is committed.
func (pt *Partition) CommittedMark() segment.Position { return pt.committedMark() }

// Leads says whether puts may enter the inbox.
func (pt *Partition) Leads() bool { return pt.Leading.Load() }

// Target is the node that leads the partition, as far as this node knows; 0: it does not know.
func (pt *Partition) Target() replicate.NodeID { return replicate.NodeID(pt.replica.target.Load()) }

// Box is the partition's inbox.
func (pt *Partition) Box() *inbox.Inbox { return &pt.Inbox }

// Serves says whether channels may deliver from this node: it leads, and has committed what came before.
func (pt *Partition) Serves() bool { return pt.replica.serves.Load() }

// ServingEpoch is the epoch in which channels deliver from this node; 0: they do not, or this is a single node.
func (pt *Partition) ServingEpoch() segment.Epoch { return pt.replica.serving() }

// ServesIn says whether this node serves the partition in an epoch, and no leader of a later one asked for a fence.
func (pt *Partition) ServesIn(epoch segment.Epoch) bool {
	return pt.replica.serving() == epoch && !pt.replica.fencedAbove(epoch)
}

// NoteFence notes that the leader of an epoch has asked for a fence.
func (pt *Partition) NoteFence(epoch segment.Epoch) {
	for old := pt.replica.fenced.Load(); uint64(epoch) > old; old = pt.replica.fenced.Load() {
		if pt.replica.fenced.CompareAndSwap(old, uint64(epoch)) {
			break
		}
	}
}

// EndFence lets the ordered channels deliver: all nodes have answered the fence of this node's epoch.
func (pt *Partition) EndFence(epoch segment.Epoch) {
	pt.replica.fenceCleared.Store(uint64(epoch))
	pt.post(&core.Post{Event: core.Event{Kind: core.EvUnfence}, Epoch: epoch})
}

// FenceEnded says whether all nodes have answered the fence of this epoch.
func (pt *Partition) FenceEnded(epoch segment.Epoch) bool {
	return segment.Epoch(pt.replica.fenceCleared.Load()) == epoch
}
