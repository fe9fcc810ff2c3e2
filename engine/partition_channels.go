package engine

import (
	"slices"
	"sync/atomic"

	"penstock/engine/core"
	"penstock/engine/inbox"
	"penstock/replicate"
	"penstock/segment"
)

// subscriber is told what happens to a partition's log. The channels of this node implement it. A partition knows
// nothing else of them.
//
// The committer calls the methods, a replica that commits, the flusher, and the readers of connections between nodes;
// they may hold any lock that comes before Channel.postMu. Only Resume waits.
type subscriber interface {
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
func (pt *partition) watching() []subscriber {
	if ss := pt.watchers.Load(); ss != nil {
		return *ss
	}
	return nil
}

// watch adds s to those that get the partition's events, if it is not among them yet.
func (pt *partition) watch(s subscriber) {
	pt.changeWatchers(func(old []subscriber) []subscriber {
		if slices.Contains(old, s) {
			return old
		}
		return append([]subscriber{s}, old...)
	})
}

func (pt *partition) unwatch(s subscriber) {
	pt.changeWatchers(func(old []subscriber) []subscriber {
		return slices.DeleteFunc(slices.Clone(old), func(other subscriber) bool { return other == s })
	})
}

// changeWatchers replaces the list by what change makes of it. change does not modify the old list, and may run again.
func (pt *partition) changeWatchers(change func(old []subscriber) []subscriber) {
	for {
		old := pt.watchers.Load()
		var ss []subscriber
		if old != nil {
			ss = *old
		}
		ss = change(ss)
		if pt.watchers.CompareAndSwap(old, &ss) {
			return
		}
	}
}

// follow gives a channel the partition: a snapshot of what the log says of the channel now, and all later events.
// Nothing may be committed between the two. So it runs on the committer, or with replica.mu held, or before the
// committer started.
func (pt *partition) follow(s subscriber, name string) {
	pt.watch(s)
	p := pt.snapshot(name)
	s.Post(&p)
}

// followFound is follow for a channel that was found in the log: it counts as created when all is committed that is in
// the log now. replica.mu is held.
func (pt *partition) followFound(s subscriber, name string) {
	pt.watch(s)
	p := pt.snapshot(name)
	p.FoundEnd = pt.machine.State().Next
	s.Post(&p)
}

// followUnlogged is follow for an ephemeral channel, which is in no log: it gets the messages that come, and those that
// wait because the topic has no channel or is paused.
func (pt *partition) followUnlogged(s subscriber, name string) {
	pt.watch(s)
	end := segment.MsgID(pt.visible.Load())
	start := min(end, segment.MsgID(pt.unclaimed.Load()), segment.MsgID(pt.pausedFrom.Load()))
	p := pt.begins(name, start, end)
	p.Epoch = pt.rep.serving()
	s.Post(&p)
}

// begins returns the event that gives a channel the partition: the channel reads from start, and messages below end are
// visible.
func (pt *partition) begins(name string, start, end segment.MsgID) core.Post {
	return core.Post{Event: core.Event{
		Kind: core.EvAddPartition, Part: pt.number, End: end,
		Cursor: &core.Cursor{Name: name, Start: start, Confirmed: start},
	}}
}

// snapshot returns the event that gives a channel the partition with the state that the log has now. It needs what
// follow needs.
func (pt *partition) snapshot(name string) core.Post {
	end := segment.MsgID(pt.visible.Load())
	p := pt.begins(name, pt.fold.StartFor(end), end)
	if r := pt.rep; r != nil && r.leader != nil {
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
func (pt *partition) wake() {
	for _, s := range pt.watching() {
		s.Committed()
	}
}

// post queues an event at each of the partition's channels, and wakes them. They share what p points to, and none
// changes it.
func (pt *partition) post(p *core.Post) {
	p.Part = pt.number
	for _, s := range pt.watching() {
		s.Post(p)
		s.Wake()
	}
}

// resumeReaders lets channels continue that had stopped at a damaged range. It waits for the lock of each.
func (pt *partition) resumeReaders() {
	for _, s := range pt.watching() {
		s.Resume(pt.number)
		s.Wake()
	}
}

// postDeferred tells the channels of committed deferred messages. It is called at the commit, before the messages are
// visible. ds is borrowed.
func (pt *partition) postDeferred(ds []core.DeferredMessage) {
	if len(pt.watching()) > 0 {
		pt.post(&core.Post{Event: core.Event{Kind: core.EvDeferredPublished, Deferred: slices.Clone(ds)}})
	}
}

// postDropped tells the channels that a paused topic dropped the messages r that it had held back, before the end of r
// becomes visible. Only the committer calls it.
func (pt *partition) postDropped(r core.IDRange) {
	pt.post(&core.Post{Event: core.Event{Kind: core.EvDropped, Msg: r.From, End: r.To}})
}

// What channels see of the partition, see channel.Partition.

// Number is the partition's number in its topic.
func (pt *partition) Number() uint32 { return pt.number }

// Topic is what all partitions of the topic share.
func (pt *partition) Topic() *partTopic { return pt.t }

// Replica is this node's replica of the partition.
func (pt *partition) Replica() *replica { return pt.rep }

// setTopic gives a partition of a topic whose metadata was found only now its topic. No goroutine runs yet.
func (pt *partition) setTopic(t *partTopic) {
	pt.t = t
	pt.flush.Init(pt, t.name, pt.number)
}

// Log is the partition's log.
func (pt *partition) Log() *segment.Log { return pt.log }

// Ends returns where the partition keeps the end, exclusive, of its committed messages, and of those that the topic's
// pause does not hold back.
func (pt *partition) Ends() (committed, unpaused *atomic.Uint64) { return &pt.visible, &pt.pausedFrom }

// CommittedMark is the end of what is committed.
func (pt *partition) CommittedMark() segment.Position { return pt.committedMark() }

// Leads says whether puts may enter the inbox.
func (pt *partition) Leads() bool { return pt.Leading.Load() }

// Target is the node that leads the partition, as far as this node knows; 0: it does not know.
func (pt *partition) Target() replicate.NodeID { return replicate.NodeID(pt.rep.target.Load()) }

// Box is the partition's inbox.
func (pt *partition) Box() *inbox.Inbox { return &pt.Inbox }

// serves says whether channels may deliver from this node: it leads, and has committed what came before.
func (pt *partition) serves() bool { return pt.rep.serves.Load() }

// servingEpoch is the epoch in which channels deliver from this node; 0: they do not, or this is a single node.
func (pt *partition) servingEpoch() segment.Epoch { return pt.rep.serving() }

// ServesIn says whether this node serves the partition in an epoch, and no leader of a later one asked for a fence.
func (pt *partition) ServesIn(epoch segment.Epoch) bool {
	return pt.rep.serving() == epoch && !pt.rep.fencedAbove(epoch)
}

// NoteFence notes that the leader of an epoch has asked for a fence.
func (pt *partition) NoteFence(epoch segment.Epoch) {
	for old := pt.rep.fenced.Load(); uint64(epoch) > old; old = pt.rep.fenced.Load() {
		if pt.rep.fenced.CompareAndSwap(old, uint64(epoch)) {
			break
		}
	}
}

// EndFence lets the ordered channels deliver: all nodes have answered the fence of this node's epoch.
func (pt *partition) EndFence(epoch segment.Epoch) {
	pt.rep.fenceCleared.Store(uint64(epoch))
	pt.post(&core.Post{Event: core.Event{Kind: core.EvUnfence}, Epoch: epoch})
}

// fenceEnded says whether all nodes have answered the fence of this epoch.
func (pt *partition) fenceEnded(epoch segment.Epoch) bool {
	return segment.Epoch(pt.rep.fenceCleared.Load()) == epoch
}
