package part

import (
	"context"
	"sync/atomic"

	"penstock/engine/core"
	"penstock/engine/flush"
	"penstock/engine/inbox"
	"penstock/replicate"
	"penstock/segment"
)

// Partition connects the state machine of one partition (core.Partition) to its inbox, its log and its channels. log
// has a lock of its own. After a crash the inbox is empty, and its puts were not answered; recovery rebuilds the rest
// from the commit log (recover.go).
type Partition struct {
	store   *Store
	topic   *Topic
	number  uint32
	log     *segment.Log
	replica *Replica

	inbox.Inbox
	logEnd
	retained
	flush flush.Part // what the flusher keeps

	// Atomics, which any goroutine reads.
	first    atomic.Pointer[firstBatch]   // the first batch of the log when readFirst was last called
	unread   atomic.Pointer[error]        // why the fold is unknown; nil: it is known. See WhyUnread
	watchers atomic.Pointer[[]Subscriber] // who gets the partition's events, see watching; the list is replaced
	visible  atomic.Uint64                // the committed messages are those below this MsgID
	// While the topic has no channel: messages from this MsgID on wait for the first one; else noMsgID.
	unclaimed atomic.Uint64
	// While the topic is paused: messages from this MsgID on are held back; else noMsgID.
	pausedFrom atomic.Uint64
	stateBytes atomic.Int64 // upper bound of the fold's size in a checkpoint
}

// newPartition returns a partition whose log ends as st says, with the fold of what is in it. The caller sets
// replica and log.
func newPartition(
	s *Store, t *Topic, number uint32, st segment.State, fold *core.Cursors,
) *Partition {
	pt := &Partition{store: s, topic: t, number: number}
	pt.Use(&s.inboxes)
	pt.flush.Init(pt, t.Name, number)
	pt.machine, pt.fold = core.NewPartition(st, s.sizes()), fold
	return pt
}

// logEnd is the end of the log, and what follows from its content. The committer owns it. It changes it with
// Replica.mu held, so that others may read it under that lock.
type logEnd struct {
	machine   *core.Partition
	fold      *core.Cursors
	epochs    replicate.EpochTable
	writer    core.WriterClock
	newest    int64            // append time of the newest batch, ns since 1970; the next batch's is not earlier
	recovered segment.Position // the log is committed up to here at least; found by recovery
}

// retained is about deferred messages whose segments are removed: see carry.go.
type retained struct {
	// Offset of the first control batch whose carried messages are still needed, or noOffset.
	carriedFrom   atomic.Int64
	carrying      atomic.Bool // Carry is at work on this partition
	searchingLost atomic.Bool // FindLost is at work
	mayHaveLost   atomic.Bool // unconfirmed messages were removed, and channels may still wait for them: see FindLost
}

// Identity names the partition.
func (pt *Partition) Identity() segment.Identity {
	return segment.Identity{Topic: pt.topic.ID, Partition: pt.number}
}

const noMsgID = ^uint64(0)

// Enqueue puts p into the inbox and tells the committer. In a cluster, the forwarder takes the puts of partitions that
// this node does not lead. Enqueue waits while the inbox is full, at most Options.AdmitTimeout. If it returns nil, p is
// answered, perhaps before Enqueue returns; if it returns an error, p is not answered. The caller holds no lock of the
// commit path (docs/concurrency.md): a put that is Alone may be written and answered on the caller's goroutine. The
// caller may hold Channel.mu if p is not Alone.
func (pt *Partition) Enqueue(ctx context.Context, p *inbox.Put) error {
	first, alone, err := pt.Enter(ctx, p)
	switch {
	case first:
		pt.store.committer.push(pt, alone, nil)
	case err == inbox.ErrElsewhere:
		return pt.replica.node.above.ForwardPut(pt, p)
	}
	return err
}

// ExpirePuts refuses the puts in the inbox whose deadline has passed. It says whether any put was waiting. The engine's
// watch goroutine calls it every 250 ms, without a lock.
func (pt *Partition) ExpirePuts(nowNs int64) bool {
	why := pt.replica.whyStalled()
	late, waiting := pt.Inbox.Expire(nowNs)
	late.Answer(why)
	return waiting
}
