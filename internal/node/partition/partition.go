package partition

import (
	"context"
	"sync/atomic"

	"penstock/internal/node/budget"
	"penstock/internal/node/carry"
	"penstock/internal/node/errs"
	"penstock/internal/node/events"
	"penstock/internal/node/flush"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/logread"
	"penstock/internal/node/machine"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/segment"
)

// Partition connects the state machine of one partition (machine.Partition) to its inbox, its log and its channels. log
// has its own lock. After a crash the inbox is empty; its puts were not answered. Recovery rebuilds the rest from the
// commit log (recover.go).
type Partition struct {
	store   *Store
	topic   *Topic
	number  uint32
	log     *segment.Log
	replica *Replica

	inbox.Inbox
	budget.Account
	logEnd
	carry.Carrier
	flush flush.Part // the flusher's state of this partition

	// Atomics that any goroutine reads.
	start       logread.Start         // the first batch of the log
	unread      atomic.Pointer[error] // why the fold is not known; nil: it is known. See WhyUnread
	subscribers events.Subscribers
	visible     atomic.Uint64   // messages below this MsgID are committed
	news        platform.Notice // see News
	// While the topic has no channel, the messages from this MsgID on wait for the first channel. Otherwise noMsgID.
	unclaimed atomic.Uint64
	// The messages below this MsgID went to channels of which some were ephemeral: they do not wait for another ephemeral
	// channel. The log knows nothing of it, so it is forgotten with the process.
	passed atomic.Uint64
	// While the topic is paused, the messages from this MsgID on are held back. Otherwise noMsgID.
	pausedFrom    atomic.Uint64
	producerCount atomic.Int32 // producers that the fold knows
	readOnly      atomic.Bool  // see ReadOnly
}

// newPartition returns a partition whose log ends as st says, and whose log content folds to fold. The caller sets
// replica and log.
func newPartition(
	s *Store, t *Topic, number uint32, st segment.State, fold *fold.Cursors,
) *Partition {
	pt := &Partition{store: s, topic: t, number: number}
	pt.Use(&s.inboxes)
	pt.begin()
	pt.machine, pt.fold = machine.NewPartition(st, s.sizes()), fold
	return pt
}

// begin tells the parts of the partition whose they are. It is called again when the partition gets another topic.
func (pt *Partition) begin() {
	s, t := pt.store, pt.topic
	pt.Open(&s.Budget, &t.Topic)
	pt.flush.Init(pt, t.Name, pt.number)
	pt.Carrier.Init(pt, s.host, s.log, t.Name)
}

// logEnd describes the end of the log and what is derived from the log's content. Once recovery is done, only the
// committer changes it, with Replica.mu held. So the committer may read it without Replica.mu, and any other goroutine
// must hold Replica.mu.
type logEnd struct {
	machine   *machine.Partition
	fold      *fold.Cursors
	epochs    replicate.EpochTable
	writer    fold.WriterClock
	rewinds   uint64           // of fold when Part.ForgetWaiting was called last
	newest    int64            // append time of the newest batch, ns since 1970; no later batch gets an earlier one
	recovered segment.Position // recovery found that the log is committed at least up to here
}

// Identity returns the topic and the number that identify the partition.
func (pt *Partition) Identity() segment.Identity {
	return segment.Identity{Topic: pt.topic.ID, Partition: pt.number}
}

const noMsgID = ^uint64(0)

// Enqueue puts p into the inbox and tells the committer. In a cluster, the forwarder takes the puts of partitions that
// this node does not lead; for a put that is Forwarded already, Enqueue returns ErrNoLeader instead. If the inbox is
// full, Enqueue waits for room for at most Options.AdmitTimeout. If Enqueue returns nil, p gets an answer, perhaps
// before Enqueue returns. If Enqueue returns an error, p gets no answer. The caller holds no lock of the commit path
// (docs/contribute/concurrency.md), because a put that is Alone may be written and answered on the caller's goroutine.
// The caller may hold Channel.mu if p is not Alone.
func (pt *Partition) Enqueue(ctx context.Context, p *inbox.Put) error {
	first, alone, err := pt.Enter(ctx, p)
	switch {
	case first:
		pt.store.committer.Push(pt, alone)
	case err == inbox.ErrElsewhere && p.Forwarded:
		return errs.ErrNoLeader
	case err == inbox.ErrElsewhere:
		return pt.replica.node.above.ForwardPut(pt, p)
	}
	return err
}

// ExpirePuts refuses the puts in the inbox whose deadline has passed. It returns whether any put was waiting. The
// engine's watch goroutine calls it every 250 ms, without a lock. It takes Replica.mu and Inbox.mu, one after the
// other.
func (pt *Partition) ExpirePuts(nowNs int64) bool {
	why := pt.replica.whyStalled()
	late, waiting := pt.Inbox.Expire(nowNs)
	late.Answer(why)
	return waiting
}
