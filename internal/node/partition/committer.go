package partition

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"penstock/clog"
	"penstock/internal/node/budget"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/driver"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/logread"
	"penstock/internal/node/machine"
	"penstock/internal/node/retain"
	"penstock/internal/node/seal"
	"penstock/replicate"
	"penstock/segment"
)

// committer is the source of the commit log (clog.Source). It seals the puts of inboxes into batches, and tells the
// replicas when a group is durable; the replicas commit and answer the puts.
//
// All methods but Push run as those of driver.Driver do: with clog.Log.mu held, on the one goroutine that works on the
// commit log at that time. So clog.Log.mu guards all fields except the atomics. sealInbox and the functions below it
// also hold the partition's Replica.mu. Puts that arrive while a group is on the disk become one batch per partition in
// the next group.
//
//	Push       called on a put's goroutine when its inbox is no longer empty
//	Gather     takes inboxes and seals each into batches of the group; the batches leave for the followers, if any
//	           ... clog writes the group ...
//	Durable    informs the replicas, which commit, make the batches visible and answer their puts
//
// After a crash before Durable, each batch of the group is in the log as a whole or not at all. None of its puts was
// answered.
type committer struct {
	store *Store

	driver.Driver[Partition]
	telling atomic.Int64 // since when Durable runs, platform.Mono() + 1; 0: it does not

	slots    []groupWork            // by clog.Group.Slot
	body     []byte                 // scratch: the body of a control batch
	deferred []fold.DeferredMessage // scratch: the delayed messages of the batch that is being sealed
	untold   []replicate.Batch      // scratch: batches of the partition being sealed, see tell
	nowNs    int64                  // the engine's time when the group began, or its last batch with delays

	untoldBytes int // sum of Bytes in untold

	full error // the value of Flusher.Full that the partition machines know
}

// groupWork lists what one group carries, for Durable. Its slices are reused from group to group.
type groupWork struct {
	batches    []batchWork
	tombstones []inbox.List
	cuts       []*logCut
	sealed     int // puts sealed into the group
}

// batchWork is a batch of a group. Durable tells its replica that the batch is durable.
type batchWork struct {
	part       *Partition
	slice      segment.Slice
	nextID     segment.MsgID
	generation uint64 // Replica.generation when the batch was appended
	bodyBytes  uint64 // estimate, see seal.Run.BodyBytes; 0 for a batch from another leader
}

// maxGroupPuts bounds the number of puts in one group. Sealing and answering a group must overlap with the producers'
// work on the next one. If one group took all outstanding puts of a producer (some ten thousand), nothing would
// overlap.
const maxGroupPuts = 4096

// Gather seals the inboxes that wait, partition by partition, until the group is full. clog calls it.
func (c *committer) Gather(g *clog.Group) {
	if !c.Begins() {
		return
	}
	w := &c.slots[g.Slot()]
	w.batches, w.tombstones, w.sealed = w.batches[:0], w.tombstones[:0], 0
	c.nowNs = c.store.now().UnixNano()
	c.learnSpace()
	c.Each(func(pt *Partition) bool { return c.sealInbox(pt, g, w) })
	c.Gathered(g.Records() > 0, w.sealed > 1)
}

// learnSpace tells the machines of all partitions when the flusher finds that the disk is full, or has room again. It
// takes Replica.mu of each.
func (c *committer) learnSpace() {
	if full := c.store.flusher.Full(); full != c.full {
		c.full = full
		for _, pt := range c.store.Partitions() {
			pt.replica.mu.Lock()
			pt.machine.SetFull(full)
			pt.replica.mu.Unlock()
		}
	}
}

// sealList seals as many puts of l as the group has room for, and leaves the rest in l. Replica.mu is held.
func (c *committer) sealList(pt *Partition, g *clog.Group, w *groupWork, l *inbox.List) {
	for !l.Empty() && w.sealed < maxGroupPuts {
		r := c.nextRun(pt, g, w, l)
		if r.N == 0 {
			continue // nextRun has answered all that it took from l
		}
		first, dst := c.reserve(pt, g, &r)
		if dst == nil {
			l.Prepend(r.Puts)
			if first == machine.PurposeData || !c.sealInternal(pt, g, w, first, r.Bytes) {
				return
			}
			continue
		}
		w.sealed += r.N
		c.seal(pt, g, w, &r, dst)
		if !r.Puts.Empty() { // a tombstone: replicate has taken the puts of any other run
			w.tombstones = append(w.tombstones, r.Puts)
		}
	}
}

// nextRun takes the next run out of l. Consecutive messages share a batch as long as they fit. A put of any other kind
// is a run of its own. nextRun itself answers puts that must be refused and puts that store nothing: they are answered
// with Replica.mu held.
func (c *committer) nextRun(pt *Partition, g *clog.Group, w *groupWork, l *inbox.List) (r seal.Run) {
	free := min(g.Free(), segment.MaxBatchBytes, c.store.clog.MaxPayloadBytes())
	st := pt.machine.State()
	refused, room, overDisk := pt.machine.Admit(maxRunCount, false), pt.Room(st, pt.log, &pt.flush), pt.OverDisk()
	r.Bytes = segment.HeaderBytes
	for p := l.First(); p != nil; p = l.First() {
		if seal.OfProducer(p) && !c.judge(pt, l) {
			continue
		}
		err := c.refusal(pt, p, refused)
		if err == nil && overDisk != nil && !p.Kind.Internal() {
			err = overDisk
		}
		if err == nil {
			err = c.overQuota(pt, &room, &r, p)
		}
		if err == nil && p.DeferMs != 0 {
			err = pt.RefusesDelayOf(pt.fold, st.End, r.Delayed+len(p.Messages), time.Duration(p.DeferMs)*time.Millisecond)
		}
		if err != nil {
			inbox.Answer(l.Pop(), err)
			continue
		}
		if p.Kind == inbox.Inspection {
			l.Pop()
			p.Special.Inspect()
			inbox.Answer(p, nil)
			continue
		}
		if r.N > 0 && (p.Kind != inbox.Messages || r.Bytes+p.Bytes > free) || w.sealed+r.N == maxGroupPuts {
			return r
		}
		if more := r.Add(l.Pop()); !more {
			c.measureSpecial(pt, &r)
			return r
		}
	}
	return r
}

// overQuota returns an error if p, appended to the puts that r has already, would exceed the quota. Then it also asks
// the flusher to look up what is confirmed by now.
func (c *committer) overQuota(pt *Partition, room *budget.Room, r *seal.Run, p *inbox.Put) error {
	if p.Kind.Internal() {
		return nil
	}
	err := room.Refuses(int64(r.Count)+int64(p.Count()), r.Puts.Size()+int64(p.Bytes))
	if err != nil {
		c.store.flusher.AskQuotas()
		pt.NoteRefused(c.store.clock.Mono())
	}
	return err
}

// refusal returns why p must not be stored, or nil. refused is the present answer of the machine for messages.
func (c *committer) refusal(pt *Partition, p *inbox.Put, refused error) error {
	switch p.Kind {
	case inbox.Tombstone:
		return nil
	case inbox.Controls:
		if revoked := p.Special.Revoked; revoked != nil && revoked.Load() {
			return errs.ErrNoLeader
		}
		if err := c.refusesProducer(pt, p.Special.Controls); err != nil {
			return err
		}
	}
	switch {
	case p.DeadlineNs != 0 && c.nowNs > p.DeadlineNs:
		return errs.ErrDeadline
	case refused != nil && p.Kind.Internal():
		return pt.machine.Admit(maxRunCount, true)
	}
	return refused
}

// maxRunCount is larger than the number of messages that fit into a batch. The machine is asked for that many ids, so
// its answer holds for a whole run, and it refuses before the message ids run out.
const maxRunCount = segment.MaxBatchBytes

// measureSpecial computes the size of a run that consists of one put without Messages.
func (c *committer) measureSpecial(pt *Partition, r *seal.Run) {
	switch own := r.Special; r.Kind {
	case inbox.Sealed:
		r.Count, r.Flags, r.Bytes = own.Header.Count, own.Header.Flags, len(own.Sealed)
	case inbox.Controls:
		c.body = c.encodeControls(pt, own.Controls, c.body[:0])
		r.Flags, r.Bytes = segment.FlagControl, segment.HeaderBytes+len(c.body)
	}
}

// encodeControls encodes control entries. First it fills in the values that depend on the entry's place in the log: the
// message id where a new channel starts, the id from which a paused topic holds messages back, a producer's id and
// epoch.
func (c *committer) encodeControls(pt *Partition, controls []fold.Control, dst []byte) []byte {
	st := pt.machine.State()
	for i := range controls {
		ct := &controls[i]
		mustBeOfLevel(ct, c.store.Feature())
		switch ct.Kind {
		case fold.ChannelCreated:
			if ct.ID = pt.fold.StartFor(st.NextID); ct.Start != nil {
				ct.ID = pt.fold.StartAt(*ct.Start, st.NextID)
			}
		case fold.TopicPaused, fold.TopicEmptied:
			ct.ID = st.NextID
			if ct.Kind == fold.TopicPaused && ct.Flag && pt.fold.TopicPaused {
				ct.ID = pt.fold.HeldFrom // the topic is paused already, and must not release what it holds back
			}
		case fold.ProducerOpened, fold.ProducerTaken:
			pt.fold.FillOpening(&ct.Producer, &st, c.stampNs(pt), c.secret())
		}
		dst = fold.AppendControl(dst, ct)
	}
	return dst
}

// reserve asks the machine for the placement of the run's batch, and reserves the batch's bytes in the group. If
// another batch must be sealed first, reserve returns the purpose of that batch. If the group has no room, it returns
// PurposeData and a nil slice.
func (c *committer) reserve(pt *Partition, g *clog.Group, r *seal.Run) (machine.Purpose, []byte) {
	if r.Kind == inbox.Tombstone {
		tombstone := clog.Placement{Type: clog.Tombstone, Topic: pt.topic.ID, Partition: pt.number}
		return machine.PurposeData, g.Reserve(tombstone, 0)
	}
	first, at := pt.machine.Place(machine.PurposeData, r.Bytes, 0)
	if first != machine.PurposeData {
		return first, nil
	}
	r.Placement = at
	return machine.PurposeData, g.Reserve(pt.clogPlacement(r.Placement.Segment, r.Placement.Offset), r.Bytes)
}

// clogPlacement returns the placement that the commit log records for the partition's next batch: its place in the
// segments and, from marksLevel on, how far the log is known to be committed. Replica.mu is held.
func (pt *Partition) clogPlacement(number uint32, at segment.Offset) clog.Placement {
	p := clog.Placement{Type: clog.Batch, Topic: pt.topic.ID, Partition: pt.number, Segment: number, Offset: at}
	if r := pt.replica; !r.solo() && pt.store.Feature() >= marksLevel {
		if left := pt.machine.State().Next - r.committed(); left < math.MaxUint16 {
			p.Uncommitted = uint16(left) + 1
		}
	}
	return p
}

// seal encodes the run into dst, which g reserved for it, and passes the batch to the machine, the fold and the
// replica. Afterwards r.Puts is empty, except for a tombstone, which Durable answers. Replica.mu is held.
func (c *committer) seal(pt *Partition, g *clog.Group, w *groupWork, r *seal.Run, dst []byte) {
	// A put may have arrived after the group began. Its delay must not count from a time before its arrival.
	if r.Delayed > 0 {
		c.nowNs = c.store.now().UnixNano()
	}
	if r.Kind == inbox.Tombstone {
		r.Special.Release = c.store.flusher.PinFiles() // not earlier: the group might have had no room
		return
	}
	at, crc := &r.Placement, uint32(0)
	crc, c.deferred = r.Encode(pt.number, dst, c.body, c.nowNs, c.stampNs(pt), c.deferred[:0])
	c.noteAppended(pt, g, w, r, dst, crc, machine.PurposeData)
	switch r.Kind {
	case inbox.Controls:
		r.Special.Offset = at.Offset
		c.applyControls(pt, r.Special.Controls, at.Offset)
	case inbox.Sealed, inbox.Numbered:
		h := &r.Special.Header
		h.FirstID, h.Appended = at.FirstID, pt.newest
		pt.fold.PublishBatch(h)
	default:
		pt.fold.Publish(at.FirstID, r.Count)
	}
	if len(c.deferred) != 0 {
		pt.fold.PublishDeferred(c.deferred)
		pt.Grew(pt.fold, pt.machine.State().End, len(c.deferred))
	}
	c.replicate(pt, w, r, c.deferred)
}

// stampNs returns the append time of the partition's next batch, and records it. That is the present time, or the
// append time of the previous batch if that is later because the clock of another leader was ahead. Append times never
// decrease, so a binary search by time works.
func (c *committer) stampNs(pt *Partition) int64 {
	pt.newest = max(pt.newest, c.nowNs)
	return pt.newest
}

// noteAppended tells the machine of an appended batch, and adds the batch to the list of the group for Durable.
func (c *committer) noteAppended(
	pt *Partition, g *clog.Group, w *groupWork, r *seal.Run, batch []byte, crc uint32, purpose machine.Purpose,
) {
	pt.machine.Appended(purpose, len(batch), r.Count, crc)
	at := &r.Placement
	pt.epochs.Note(replicate.EpochStart{Epoch: at.Epoch, Position: at.Position, Offset: at.Offset})
	w.batches = append(w.batches, batchWork{
		part: pt, generation: pt.replica.generation, bodyBytes: r.BodyBytes(), nextID: at.FirstID + segment.MsgID(r.Count),
		slice: segment.Slice{
			Buf: g.Buf(), Data: batch, Position: at.Position, FirstID: at.FirstID, Count: r.Count, Offset: at.Offset,
			Segment: at.Segment, SegmentBase: at.SegmentBase, SegmentCapacity: at.SegmentCapacity,
			Control: r.Flags&segment.FlagControl != 0, Appended: pt.newest, FileSeq: g.FileSeq(),
		},
	})
}

// sealInternal appends a control batch of the engine itself that must precede the next batch: the start of a new epoch,
// or a checkpoint of the fold at the beginning of a segment. nextBytes is the size of the batch that follows. It
// returns false if the group has no room.
func (c *committer) sealInternal(
	pt *Partition, g *clog.Group, w *groupWork, purpose machine.Purpose, nextBytes int,
) bool {
	body, epoch := c.body[:0], pt.machine.State().Epoch
	if purpose == machine.PurposeEpochStart {
		epoch = pt.machine.NextEpoch()
		body = fold.AppendControl(body, &fold.Control{Kind: fold.EpochStart, Epoch: epoch})
	}
	foldMustBeOfLevel(pt.fold, c.store.Feature())
	// The checkpoint follows in both cases: an epoch start may also be the first batch of a segment.
	body = fold.AppendControl(body, &fold.Control{Kind: fold.Checkpoint, Cursors: pt.fold})
	if segment.HeaderBytes+len(body) > segment.MaxBatchBytes {
		// Because of confirmations, the fold has grown beyond the limit of a partition (package budget) and does not fit into
		// a batch. The checkpoint of the commit log still has it. Only a replica whose log is cut inside this segment, or
		// begins with it, misses the fold. That replica does not lead without it (replay.ErrNoFold).
		body = fold.AppendControl(body[:0], &fold.Control{Kind: fold.EpochStart, Epoch: epoch})
	}
	c.body = body
	r := seal.Run{Kind: inbox.Controls, Flags: segment.FlagControl, Bytes: segment.HeaderBytes + len(body)}
	_, r.Placement = pt.machine.Place(purpose, r.Bytes, nextBytes)
	dst := g.Reserve(pt.clogPlacement(r.Placement.Segment, r.Placement.Offset), r.Bytes)
	if dst == nil {
		return false
	}
	crc, _ := r.Encode(pt.number, dst, body, c.nowNs, c.stampNs(pt), nil)
	c.noteAppended(pt, g, w, &r, dst, crc, purpose)
	if purpose == machine.PurposeEpochStart {
		pt.replica.pending.EpochStart = r.Placement.Position
	}
	c.replicate(pt, w, &r, nil)
	return true
}

// applyControls applies control entries to the fold. The entries were just appended, in the batch at offset at.
func (c *committer) applyControls(pt *Partition, controls []fold.Control, at segment.Offset) {
	end := pt.machine.State().NextID
	for i := range controls {
		held := pt.fold.HeldFrom
		if err := pt.fold.ApplyAt(&controls[i], end, at); err != nil {
			panic("BUG: the engine appended a control entry that does not apply: " + err.Error())
		}
		if controls[i].Kind == fold.TopicEmptied && pt.fold.TopicPaused && held < pt.fold.HeldFrom {
			pt.postDropped(fold.IDRange{From: held, To: pt.fold.HeldFrom})
		}
	}
	pt.publishFold(end)
}

// publishFold copies values of the fold into atomics that other goroutines read. end is the id that the next message
// will get. The caller owns the fold: the committer, recovery, or the goroutine that makes the partition.
func (pt *Partition) publishFold(end segment.MsgID) {
	pt.Measure(pt.fold, pt.machine.State().End)
	if n := pt.fold.Rewinds(); n != pt.rewinds {
		pt.rewinds = n
		pt.flush.ForgetWaiting()
	}
	pt.producerCount.Store(int32(pt.fold.ProducerCount()))
	var start fold.Border
	if pt.log != nil {
		start = logread.Border(pt.log)
	}
	from := pt.Carrier.Publish(start.At)
	needed := pt.fold.Needed(start.ID, end)
	pt.flush.NoteNeeded(retain.Needed{ID: needed, At: from}, pt.machine.State().End)
	if pt.fold.Len() == 0 {
		pt.unclaimed.Store(uint64(pt.fold.Unclaimed))
	} else {
		pt.unclaimed.Store(noMsgID)
	}
	if pt.fold.TopicPaused {
		pt.pausedFrom.Store(uint64(pt.fold.HeldFrom))
	} else {
		pt.pausedFrom.Store(noMsgID)
	}
}

// CheckpointBytes implements clog.Source. It returns an upper bound for the size of a checkpoint. It also measures the
// state of the node anew. It runs on the committer.
func (c *committer) CheckpointBytes() int64 {
	// epochBytes is the size of one entry of replicate's epoch table. The table's header is smaller.
	const epochBytes = 24
	n := int64(4)
	c.store.Recount(func(yield func(*budget.Account) bool) {
		for _, pt := range c.store.Partitions() {
			n += pt.Recount(pt.fold, pt.machine.State().End) + checkpoint.FixedBytes +
				epochBytes*int64(1+len(pt.epochs.Entries()))
			if !yield(&pt.Account) {
				return
			}
		}
	})
	return n
}

// mustBeOfLevel panics if a control entry must not be written at this feature level. A node with an older version that
// is still allowed to run could not fold the entry, and its copy of the partition would stop for good.
func mustBeOfLevel(ct *fold.Control, level int) {
	if need := ct.Level(); need < 1 || need > level {
		panic(fmt.Sprintf("BUG: a control entry of kind %d, of feature level %d, is written at level %d",
			ct.Kind, need, level))
	}
}

// foldMustBeOfLevel is mustBeOfLevel for a fold that is written at the start of a segment.
func foldMustBeOfLevel(fold *fold.Cursors, level int) {
	if need := fold.Level(); need > level {
		panic(fmt.Sprintf("BUG: a fold of feature level %d is written at level %d", need, level))
	}
}
