package partition

import (
	"slices"
	"sync/atomic"

	"penstock/internal/node/delivery"
	"penstock/internal/node/events"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/logread"
	"penstock/replicate"
	"penstock/segment"
)

// Unwatch removes s from the subscribers of the partition: s gets no more events.
func (pt *Partition) Unwatch(s events.Subscriber) {
	if pt.subscribers.Has(s) {
		pt.notePassed(min(pt.visible.Load(), pt.pausedFrom.Load()))
	}
	pt.subscribers.Remove(s)
}

// Follow gives a channel the partition: it subscribes s, and posts a snapshot of the channel's state in the log. s gets
// all later events. Nothing may be committed between the two steps. So Follow runs on the committer, or with Replica.mu
// held, or before the committer runs.
func (pt *Partition) Follow(s events.Subscriber, name string) {
	pt.subscribers.Add(s)
	p := pt.snapshot(name)
	s.Post(&p)
}

// followFound is Follow for a channel that was found in the log. The channel counts as created when everything that is
// in the log now is committed. Replica.mu is held.
func (pt *Partition) followFound(s events.Subscriber, name string) {
	pt.subscribers.Add(s)
	p := pt.snapshot(name)
	p.FoundEnd = pt.machine.State().Next
	s.Post(&p)
}

// notePassed raises passed to id.
func (pt *Partition) notePassed(id uint64) {
	for old := pt.passed.Load(); old < id && !pt.passed.CompareAndSwap(old, id); old = pt.passed.Load() {
	}
}

// FollowUnlogged is Follow for an ephemeral channel, which is in no log. The channel gets the messages that are
// committed from now on, and those that wait because the topic has no channel, not even an ephemeral one, or is paused.
// The caller holds topic.Local.changing.
func (pt *Partition) FollowUnlogged(s events.Subscriber, name string) {
	first := !pt.subscribers.Any()
	pt.subscribers.Add(s)
	end := segment.MsgID(pt.visible.Load())
	start := end
	if first {
		start = segment.MsgID(max(pt.unclaimed.Load(), pt.passed.Load()))
	}
	start = min(start, end, segment.MsgID(pt.pausedFrom.Load()))
	p := pt.begins(name, start, end)
	p.Epoch = pt.replica.serving()
	s.Post(&p)
}

// begins returns the event that gives a channel the partition: the channel reads from start, and messages below end are
// visible.
func (pt *Partition) begins(name string, start, end segment.MsgID) delivery.Post {
	return delivery.Post{Event: delivery.Event{
		Kind: delivery.EvAddPartition, Part: pt.number, End: end,
		Cursor: &fold.Cursor{Name: name, Start: start, Confirmed: start},
	}}
}

// snapshot returns the event that gives a channel the partition, with the channel's state as the log has it now. The
// caller meets the conditions of Follow.
func (pt *Partition) snapshot(name string) delivery.Post {
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
		p.Cursor = cur.Clone() // the fold keeps changing
	}
	if pt.fold.Carries() {
		p.Deferred = pt.fold.CarriedUnread(p.Deferred, p.Cursor, logread.Border(pt.log))
	}
	return p
}

// News returns a channel that is closed at the next news for readers: messages were committed, or this node began or
// stopped to serve the partition, or whoever called Tell had something to say. See platform.Notice for its use.
func (pt *Partition) News() <-chan struct{} { return pt.news.Next() }

// Tell makes all readers of the partition that wait for news look again. The caller may hold any lock.
func (pt *Partition) Tell() { pt.news.Raise() }

// wake wakes the channels and readers that wait for messages of the partition. It is called after a commit has raised
// visible.
func (pt *Partition) wake() {
	pt.news.Raise()
	pt.subscribers.Committed()
}

// Post queues an event at each subscriber of the partition, and wakes them. The subscribers share the memory that p
// points to, and none changes it.
func (pt *Partition) Post(p *delivery.Post) {
	p.Part = pt.number
	pt.subscribers.Post(p)
}

// ResumeReaders lets those channels continue that stopped at a damaged range. It waits for the lock of each channel, so
// the caller holds no lock.
func (pt *Partition) ResumeReaders() {
	pt.subscribers.Resume(pt.number)
}

// postDeferred tells the channels about deferred messages that are being committed. It is called before the messages
// become visible, with Replica.mu held. ds is borrowed.
func (pt *Partition) postDeferred(ds []fold.DeferredMessage) {
	if pt.subscribers.Any() {
		pt.Post(&delivery.Post{Event: delivery.Event{Kind: delivery.EvDeferredPublished, Deferred: slices.Clone(ds)}})
	}
}

// postDropped tells the channels that a paused topic has dropped the messages r that it had held back. It is called
// before the end of r becomes visible. Only the committer calls it.
func (pt *Partition) postDropped(r fold.IDRange) {
	pt.Post(&delivery.Post{Event: delivery.Event{Kind: delivery.EvDropped, Msg: r.From, End: r.To}})
}

// The following methods are what channels use of the partition. See channel.Partition.

// Number returns the partition's number in its topic.
func (pt *Partition) Number() uint32 { return pt.number }

// Topic returns what all partitions of the topic share.
func (pt *Partition) Topic() *Topic { return pt.topic }

// Replica returns this node's replica of the partition.
func (pt *Partition) Replica() *Replica { return pt.replica }

// SetTopic gives the partition its topic, when the topic's metadata was found only after the partition. No other
// goroutine runs yet.
func (pt *Partition) SetTopic(t *Topic) {
	pt.topic = t
	pt.begin() // the topic without metadata had no share
}

// Log returns the partition's log.
func (pt *Partition) Log() *segment.Log { return pt.log }

// Ends returns two atomics that the partition keeps up to date: the end, exclusive, of its committed messages, and the
// end of those that the topic's pause does not hold back.
func (pt *Partition) Ends() (committed, unpaused *atomic.Uint64) { return &pt.visible, &pt.pausedFrom }

// Published returns how many messages were ever published to the partition, as far as they are committed: ids have no
// gaps, and the log has them after a restart.
func (pt *Partition) Published() uint64 { return pt.visible.Load() }

// Leads says whether puts may enter the inbox.
func (pt *Partition) Leads() bool { return pt.Leading.Load() }

// Target returns the node that leads the partition, as far as this node knows, or 0 if it does not know.
func (pt *Partition) Target() replicate.NodeID { return replicate.NodeID(pt.replica.target.Load()) }

// Box returns the partition's inbox.
func (pt *Partition) Box() *inbox.Inbox { return &pt.Inbox }

// Serves says whether channels may deliver from this node: it leads, and has committed everything that was in its log
// when its epoch began.
func (pt *Partition) Serves() bool { return pt.replica.serves.Load() }

// ServingEpoch returns the epoch in which channels deliver from this node. It returns 0 if they do not, and on a single
// node.
func (pt *Partition) ServingEpoch() segment.Epoch { return pt.replica.serving() }

// ServesIn says whether this node serves the partition in this epoch, and no leader of a later epoch has asked for a
// fence.
func (pt *Partition) ServesIn(epoch segment.Epoch) bool {
	return pt.replica.serving() == epoch && !pt.replica.fencedAbove(epoch)
}

// NoteFence records that the leader of this epoch has asked for a fence. Any goroutine may call it.
func (pt *Partition) NoteFence(epoch segment.Epoch) {
	for old := pt.replica.fenced.Load(); uint64(epoch) > old; old = pt.replica.fenced.Load() {
		if pt.replica.fenced.CompareAndSwap(old, uint64(epoch)) {
			break
		}
	}
}

// EndFence lets the ordered channels deliver, because all nodes have answered the fence of this node's epoch.
func (pt *Partition) EndFence(epoch segment.Epoch) {
	pt.replica.fenceCleared.Store(uint64(epoch))
	pt.Post(&delivery.Post{Event: delivery.Event{Kind: delivery.EvUnfence}, Epoch: epoch})
}

// FenceEnded says whether all nodes have answered the fence of this epoch.
func (pt *Partition) FenceEnded(epoch segment.Epoch) bool {
	return segment.Epoch(pt.replica.fenceCleared.Load()) == epoch
}
