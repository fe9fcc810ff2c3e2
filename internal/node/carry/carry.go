package carry

import (
	"errors"
	"log/slog"
	"sync/atomic"

	"penstock/internal/node/delivery"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/logread"
	"penstock/internal/node/platform"
	"penstock/segment"
)

// A deferred message that waits for days would keep its segment on disk, and all later segments too. So when nothing
// else needs the oldest segments, their deferred messages are copied, with their ids, into a control batch at the end
// of the log (fold.DeferredCarried). Then the segments are removed:
//
//	flusher                       committer, or under the replica's lock     channels
//	1 retention meets a segment
//	  that is not confirmed
//	                              2 look: only deferred messages hold it?
//	3 reads their records
//	                              4 the batch is sealed, and folded
//	                              5 it is committed                          6 they learn the new places
//	7 removes the segments
//
// Step 7 never precedes step 5 (retain.Bound), so after a crash or a cut the message is in at least one of the two
// places. A channel that reads the old place during step 7 gets the message again when its timeout expires.
//
// Retention by size, age or count removes segments even if messages wait in them. Those messages are lost. They count
// as confirmed in every channel, and each channel is told (FindLost, Channel.forgetGone). So lost messages hold back
// nothing else, and a lost deferred message does not stay listed until its time.

const (
	maxCarryBytes      = 256 << 10 // size of all records in one batch; a single larger record is carried alone
	maxCarryCandidates = 16        // how many segment borders toCarry tries at most
	noOffset           = 1<<63 - 1
)

// Partition is the carrier's view of its partition.
type Partition interface {
	Number() uint32
	Log() *segment.Log
	// Serves says whether channels may deliver from this node.
	Serves() bool
	// Fold returns the fold of the log to a caller that runs on the committer or holds Replica.mu. ReadFold calls f with
	// Replica.mu held. FoldChanged is called on the committer when the fold is judged anew.
	Fold() *fold.Cursors
	ReadFold(f func(*fold.Cursors))
	FoldChanged()
	// OnCommitter runs f on the committer and then calls done. It does not wait.
	OnCommitter(f func(), done func(error))
	// PostControls enqueues a control batch. Unless it returns an error, done is called with the batch's result.
	PostControls(own *inbox.Special, done func(error)) error
	// Post queues an event at each channel.
	Post(p *delivery.Post)
}

// Carrier has the deferred messages of a partition whose segments are removed. Any goroutine reads the atomics. A crash
// loses them, and recovery computes them again.
type Carrier struct {
	pt    Partition
	host  platform.Host
	log   *slog.Logger
	topic string

	// Offset of the first control batch whose carried messages are still needed, or noOffset if there is none.
	from        atomic.Int64
	carrying    atomic.Bool // Carry is at work
	searching   atomic.Bool // FindLost is at work
	mayHaveLost atomic.Bool // unconfirmed messages were removed, and channels may still wait for them: see FindLost
}

// Init is called before any other method, and again when the partition gets a topic.
func (c *Carrier) Init(pt Partition, host platform.Host, log *slog.Logger, topic string) {
	c.pt, c.host, c.log, c.topic = pt, host, log, topic
}

// Publish notes, for other goroutines, from where on the log carries messages. The caller owns the fold. It returns
// that offset, or the largest one if there is none.
func (c *Carrier) Publish(start segment.Offset) segment.Offset {
	from, carries := c.pt.Fold().CarriedFrom(start)
	if !carries {
		from = noOffset
	}
	c.from.Store(int64(from))
	return from
}

// Carries says whether the log has control batches whose carried messages are needed.
func (c *Carrier) Carries() bool { return c.from.Load() != noOffset }

// MayHaveLost makes the next FindLost search for lost messages.
func (c *Carrier) MayHaveLost() { c.mayHaveLost.Store(true) }

// LookForLost makes the next FindLost search if the fold has a message that is lost. The caller owns the fold.
func (c *Carrier) LookForLost() {
	c.mayHaveLost.Store(len(c.pt.Fold().Gone(nil, logread.Border(c.pt.Log()), 1)) > 0)
}

// Carry copies the deferred messages out of the oldest segments, if nothing else needs those segments. limit is the
// highest offset up to which segments may be removed. The flusher calls Carry without a lock. Carry does not wait for
// the copy.
func (c *Carrier) Carry(limit segment.Offset) {
	if !c.pt.Serves() || !c.carrying.CompareAndSwap(false, true) {
		return
	}
	var borders []fold.Border
	for i, s := range c.pt.Log().Segments() {
		if i > 0 && s.Start <= limit && s.Err == nil {
			borders = append(borders, fold.Border{At: s.Start, ID: s.FirstID})
		}
	}
	var sources []fold.CarrySource
	start := logread.Border(c.pt.Log())
	c.pt.OnCommitter(func() { sources = c.toCarry(start, borders) }, func(err error) {
		if err != nil || len(sources) == 0 {
			c.carrying.Store(false)
			return
		}
		c.host.Spawn(func() { c.carryFrom(sources) })
	})
}

// toCarry decides which messages to carry. It tries the highest border first, and then lower ones. It runs on the
// committer, which owns the fold.
func (c *Carrier) toCarry(start fold.Border, borders []fold.Border) []fold.CarrySource {
	for n := 0; len(borders) > 0 && n < maxCarryCandidates; n++ {
		b := borders[len(borders)-1]
		sources, ok := c.pt.Fold().ToCarry(nil, start, b, fold.MaxCarriedCount)
		if ok {
			return sources
		}
		borders = borders[:len(borders)/2]
	}
	return nil
}

// carryFrom reads the messages and hands the batch that carries them to the committer. It runs on a goroutine of its
// own, because it may wait for the device.
func (c *Carrier) carryFrom(sources []fold.CarrySource) {
	var ms []fold.CarriedMessage
	bytes := 0
	for _, s := range sources {
		m, err := logread.Record(c.pt.Log(), s.ID, s.At)
		if errors.Is(err, segment.ErrBelowStart) {
			continue // retention has just removed the message; FindLost will report it
		}
		if err != nil {
			c.log.Warn("a deferred message cannot be carried out of its old segment, which therefore stays",
				"topic", c.topic, "partition", c.pt.Number(), "error", err)
			break
		}
		if bytes += len(m.Record); bytes > maxCarryBytes && len(ms) > 0 {
			break
		}
		ms = append(ms, m)
	}
	if len(ms) == 0 {
		c.carrying.Store(false)
		return
	}
	own := &inbox.Special{Controls: []fold.Control{{Kind: fold.DeferredCarried, Carried: ms}}}
	own.OnCommit = func() { c.postCarried(ms, own.Offset) }
	if err := c.pt.PostControls(own, func(error) { c.carrying.Store(false) }); err != nil {
		c.carrying.Store(false)
	}
}

// postCarried tells the channels the new places of carried messages. Of a message that waits it tells the due time of
// the fold, which correctDelays may have changed since the message was published. Replica.mu is held.
func (c *Carrier) postCarried(ms []fold.CarriedMessage, at segment.Offset) {
	ds := make([]fold.DeferredMessage, len(ms))
	for i := range ms {
		ds[i] = fold.DeferredMessage{ID: ms[i].ID, DueMs: c.pt.Fold().DueOr(ms[i].ID, ms[i].DueMs), At: at}
	}
	c.pt.Post(&delivery.Post{Event: delivery.Event{Kind: delivery.EvCarried, Deferred: ds}})
}

// FindLost looks for deferred messages that were removed with their segments, and tells the channels. It does so only
// after retention has removed messages that were not confirmed. The flusher calls it without a lock.
func (c *Carrier) FindLost() {
	if !c.mayHaveLost.Load() || !c.pt.Serves() || !c.searching.CompareAndSwap(false, true) {
		return
	}
	c.mayHaveLost.Store(false)
	start := logread.Border(c.pt.Log())
	var gone []segment.MsgID
	c.pt.OnCommitter(func() {
		gone = c.pt.Fold().Gone(nil, start, fold.MaxCarriedCount)
		c.pt.FoldChanged()
	}, func(err error) {
		if err != nil || len(gone) > 0 {
			c.mayHaveLost.Store(true) // look again, until none is found
		}
		if err == nil && len(gone) > 0 {
			c.pt.Post(&delivery.Post{Event: delivery.Event{Kind: delivery.EvTrimmed, Start: start.ID}, Gone: gone})
		}
		c.searching.Store(false)
	})
}

// OnlyCarried lists at most count messages with ids from the id from on, whose bytes are only in control batches that
// carry them. It also returns the first id of the log: messages from that id on still have their bytes where they were
// published.
//
// OnlyCarried takes Replica.mu to read the fold. It does not read it on the committer (OnCommitter), because without
// a quorum the committer takes nothing from the inbox.
func (c *Carrier) OnlyCarried(from segment.MsgID, count int) (list []fold.CarrySource, first segment.MsgID) {
	if start := logread.Border(c.pt.Log()); !c.Carries() {
		return nil, start.ID
	}
	c.pt.ReadFold(func(now *fold.Cursors) {
		start := logread.Border(c.pt.Log())
		list, first = now.CarriedBelow(nil, from, start, count), start.ID
	})
	return list, first
}
