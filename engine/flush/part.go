package flush

import (
	"errors"
	"sync/atomic"
	"time"

	"penstock/engine/retain"
	"penstock/segment"
)

// Part is what the flusher keeps for one partition. The partition contains it, calls Init before anything else, and
// hands its address to the methods of Flusher.
//
// Any goroutine may call its methods, unless they say otherwise. bound and ages have locks of their own, Flusher.mu
// guards limit, and the fields of the last group belong to the flusher's goroutine. A crash loses all of it; recovery
// calls Recovered and NoteNeeded again.
type Part struct {
	owner  Owner
	topic  string // for lines of the log
	number uint32

	dirty    atomic.Bool           // it is in Flusher.queue
	flushErr atomic.Pointer[error] // why a segment could not be written; nil: none since ReopenInbox
	reopens  atomic.Uint64         // how often ReopenInbox was called

	// Messages below this MsgID may go: every durable channel has confirmed them, or a control batch carries those that
	// one has not.
	needed atomic.Uint64
	bound  retain.Bound
	ages   retain.Ages
	limit  segment.Offset // recovery needs no segment that ends below

	countedFrom atomic.Uint64 // offset of the oldest batch that counts for a quota
	lookedUp    segment.MsgID // the message for which countedFrom was found
	atEnd       bool          // that message does not exist yet: countedFrom was the log's end
}

// Owner is the partition that a Part belongs to; the engine's partitions implement it. The flusher's goroutine calls
// the methods, and whoever calls Flusher.Trim. It holds no lock, but for Log and TopicDeleted, which take none.
type Owner interface {
	// Log is the partition's log. It stays the same while the partition is in Node.Parts.
	Log() *segment.Log
	// Limits are those of the topic; nil: they are not known yet.
	Limits() *Limits
	// TopicDeleted says whether the topic is being deleted, or was.
	TopicDeleted() bool
	// MayTrim says whether retention may look at the partition: its metadata and what its log says of the channels are
	// known.
	MayTrim() bool
	// CommittedEnd is the offset up to which the log is committed.
	CommittedEnd() segment.Offset
	// LeaderStart is the position at which the leader's log begins; 0: not known. This copy need not have more.
	LeaderStart() segment.Position

	Copy
	Inbox
	// Trimmed says that segments were removed. moved: the log begins later than before. lost: it begins behind a message
	// that some channel needs.
	Trimmed(moved, lost bool)
	// FindLost looks for messages that waited in segments when these were removed. It does not wait.
	FindLost()
	// Carry copies messages that wait for their time out of the oldest segments, of those that end at limit or below, if
	// nothing else needs these. It does not wait.
	Carry(limit segment.Offset)
}

// Copy is what the flusher asks of this node's copy of the partition.
type Copy interface {
	// Solo says whether there are no other copies, as on a single node.
	Solo() bool
	// GivenUp says whether the copy cannot be written any more, and need not be.
	GivenUp() bool
	// NeedsNoFlush says whether the copy is given up, and nobody needs what it has.
	NeedsNoFlush() bool
	// IsGoingAway says whether this node is about to remove the partition's bytes. Such a partition keeps no commit log
	// file for batches that its segments cannot take: the tombstone, or the record of the removal, may be waiting for
	// that room.
	IsGoingAway() bool
	// HoldsFiles says whether a copy that is given up or being removed still needs what its segments lack. If it says
	// false, the next process knows that the copy lacks something. It may write to the disk.
	HoldsFiles() bool
}

// Inbox is what the flusher does to the puts of the partition. inbox.Inbox has these methods.
type Inbox interface {
	RefuseMessages(err error)
	CloseAndRefuse(err error, tombstonesOK bool)
	Reopen()
}

// Init says whose state p is, and how lines of the log name it. No goroutine uses p yet.
func (p *Part) Init(owner Owner, topic string, number uint32) {
	p.owner, p.topic, p.number = owner, topic, number
}

// Recovered says what recovery found: the end of the log, and its newest append time (ns since 1970). It is called
// before the flusher runs.
func (p *Part) Recovered(end segment.Offset, newest int64, now time.Duration) {
	p.ages.Found(end, newest, now)
}

// NoteNeeded says what the channels need, by a log that ends at end. The owner of the fold calls it.
func (p *Part) NoteNeeded(needed retain.Needed, end segment.Offset) {
	p.needed.Store(uint64(needed.ID))
	p.bound.Note(needed, end)
}

// Needed is the first message that some channel needs where it was published, as NoteNeeded said last.
func (p *Part) Needed() segment.MsgID { return segment.MsgID(p.needed.Load()) }

// CountedFrom is the offset of the oldest batch that counts for a quota on bytes, as far as the flusher has looked.
func (p *Part) CountedFrom() segment.Offset { return segment.Offset(p.countedFrom.Load()) }

// Unwritten says whether the segments cannot be written any more, although they can be read.
func (p *Part) Unwritten() bool {
	err := p.flushErr.Load()
	return err != nil && errors.Is(*err, segment.ErrPoisoned)
}

// ReopenInbox opens an inbox that was closed because segments could not be written (Flusher.failed). It is called
// without a lock, after the log was cut, replaced or repaired: the failure concerned the old files. If the new files
// cannot be written either, the next flush closes the inbox again. An inbox that was closed because the engine closes,
// or because the commit log failed, stays closed.
func (p *Part) ReopenInbox() {
	// This comes first: a flush of the old files may have failed, and be about to close the inbox. It compares reopens
	// before it does.
	p.reopens.Add(1)
	p.flushErr.Store(nil)
	p.owner.Reopen()
}

// Reopens is how often the log was cut, replaced or repaired: how often ReopenInbox was called.
func (p *Part) Reopens() uint64 { return p.reopens.Load() }
