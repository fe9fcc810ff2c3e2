package flush

import (
	"errors"
	"sync/atomic"
	"time"

	"penstock/internal/node/retain"
	"penstock/segment"
)

// Part is the state that the flusher keeps for one partition. The partition contains the Part, calls Init before
// anything else, and passes its address to the methods of Flusher.
//
// Any goroutine may call the methods, unless a method says otherwise. bound and ages have their own locks. Flusher.mu
// guards limit. The fields of the last group belong to the flusher's goroutine. A crash loses a Part; recovery calls
// Recovered and NoteNeeded again.
type Part struct {
	owner  Owner
	topic  string // for log lines
	number uint32

	dirty    atomic.Bool           // the Part is in Flusher.queue
	flushErr atomic.Pointer[error] // why a segment could not be written; nil: no failure since ReopenInbox
	open     bool                  // the Part is in Flusher.open; the flusher's goroutine owns it
	reopens  atomic.Uint64         // how often ReopenInbox was called

	// Messages below this MsgID may be removed: every durable channel has confirmed them, or a control batch carries
	// those that a channel has not confirmed.
	needed atomic.Uint64
	bound  retain.Bound
	ages   retain.Ages
	seen   retain.Seen // for the topic's limit on age
	// for KeepAge
	seenToKeep retain.Seen
	limit      segment.Offset // recovery needs no segment that ends at or below this offset

	waiting   atomic.Pointer[Waiting] // the last look; nil: none yet
	forgotten atomic.Uint64           // how often ForgetWaiting was called
}

// Owner is the partition that a Part belongs to. The engine's partitions implement it. The flusher's goroutine calls
// the methods, and so does the caller of Flusher.Trim, without holding a lock, except that Log and TopicDeleted, which
// take no lock, may be called with Flusher.mu held.
type Owner interface {
	// Log is the partition's log. It stays the same as long as the partition is in Node.Parts.
	Log() *segment.Log
	// Limits are the limits of the topic; nil: they are not known yet.
	Limits() *Limits
	// TopicDeleted says whether the topic is being deleted or was deleted.
	TopicDeleted() bool
	// MayTrim says whether retention may examine the partition: its metadata is known, and so are the facts about
	// channels in its log.
	MayTrim() bool
	// EachPassed visits the ranges of messages at or above from that every channel has confirmed, in order. It returns
	// the log's end, and how many messages below from wait in control batches. It takes Replica.mu.
	EachPassed(from segment.MsgID, visit func(begin, end segment.MsgID)) (
		end segment.MsgID, endAt segment.Offset, carried int)
	// CommittedEnd is the offset up to which the log is committed.
	CommittedEnd() segment.Offset
	// LeaderStart is the position at which the leader's log begins; 0: unknown. This copy need not keep earlier
	// batches.
	LeaderStart() segment.Position

	Copy
	Inbox
	// Trimmed says that segments were removed. moved: the log begins later than before. lost: the log now begins behind
	// a message that some channel needs.
	Trimmed(moved, lost bool)
	// FindLost looks for messages that were still waiting in segments when these segments were removed. It does not
	// wait.
	FindLost()
	// Carry copies deferred messages out of the oldest segments. It only considers segments that end at or below limit
	// and that nothing else needs. It does not wait.
	Carry(limit segment.Offset)
}

// Copy is what the flusher asks about this node's copy of the partition.
type Copy interface {
	// Solo says whether there are no other copies, as on a single node.
	Solo() bool
	// GivenUp says whether the copy cannot be written any more, and need not be written.
	GivenUp() bool
	// NeedsNoFlush says whether the copy is given up and nobody needs its contents.
	NeedsNoFlush() bool
	// HoldsFiles says whether the commit log must keep its files for batches that the segments of the copy lack. A
	// partition that this node is about to remove holds none, because the tombstone, or the record of the removal, may be
	// waiting for the room of those files. If HoldsFiles returns false for a copy that is given up or being removed, the
	// next process can know that the copy lacks something. It may write to the disk.
	HoldsFiles() bool
}

// Inbox is what the flusher does to the puts of the partition. inbox.Inbox implements it.
type Inbox interface {
	RefuseMessages(err error)
	CloseAndRefuse(err error, tombstonesOK bool)
	Reopen()
}

// Init sets the owner of p, and the topic and partition for log lines. No other goroutine uses p yet.
func (p *Part) Init(owner Owner, topic string, number uint32) {
	p.owner, p.topic, p.number = owner, topic, number
}

// Recovered records what recovery found: the end of the log and its newest append time (ns since 1970). It is called
// before the flusher runs.
func (p *Part) Recovered(end segment.Offset, newest int64, now time.Duration) {
	p.ages.Found(end, newest, now)
}

// NoteNeeded records which messages the channels need, according to a log that ends at end. The owner of the fold calls
// it.
func (p *Part) NoteNeeded(needed retain.Needed, end segment.Offset) {
	p.needed.Store(uint64(needed.ID))
	p.bound.Note(needed, end)
}

// Needed is the first message that some channel needs where it was published, according to the last NoteNeeded.
func (p *Part) Needed() segment.MsgID { return segment.MsgID(p.needed.Load()) }

// Waiting returns what waited at the flusher's last look, or nil if that does not hold any more.
func (p *Part) Waiting() *Waiting {
	if w := p.waiting.Load(); w != nil && w.forgotten == p.forgotten.Load() {
		return w
	}
	return nil
}

// ForgetWaiting says that a channel may want messages again that all had confirmed. The owner of the fold calls it.
func (p *Part) ForgetWaiting() { p.forgotten.Add(1) }

// Unwritten says whether the segments cannot be written any more, although they may still be readable: a write or a
// sync has failed, or the file that takes the next batches is broken. Such a file is not repaired in place.
func (p *Part) Unwritten() bool {
	err := p.flushErr.Load()
	return err != nil && (errors.Is(*err, segment.ErrPoisoned) || p.LastBroken() != nil)
}

// LastBroken returns what is wrong with the last segment file if that file is gone, or has a header that reads and is
// wrong. Otherwise it returns nil.
func (p *Part) LastBroken() error {
	s := p.owner.Log().Segments()
	if len(s) == 0 || segment.DeviceFailed(s[len(s)-1].Err) {
		return nil
	}
	return s[len(s)-1].Err
}

// ReopenInbox opens an inbox that Flusher.failed closed because segments could not be written. It is called without a
// lock after the log was cut, replaced or repaired, because the failure concerned the old files. If the new files
// cannot be written either, the next flush closes the inbox again. An inbox that was closed because the engine closes,
// or because the commit log failed, stays closed.
func (p *Part) ReopenInbox() {
	// This comes first: a flush of the old files may have failed and be about to close the inbox. That flush compares
	// reopens after it has closed the inbox.
	p.reopens.Add(1)
	p.flushErr.Store(nil)
	p.owner.Reopen()
}

// Reopens returns the number of calls of ReopenInbox: how often the log was cut, replaced or repaired.
func (p *Part) Reopens() uint64 { return p.reopens.Load() }
