package partition

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"penstock/batch"
	"penstock/clog"
	"penstock/internal/lock"
	"penstock/internal/node/clock"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/machine"
	"penstock/internal/node/retain"
	"penstock/replicate"
	"penstock/segment"
)

// committer is the source of the commit log (clog.Source). It seals the puts of inboxes into batches, and tells the
// replicas when a group is durable; the replicas commit and answer the puts.
//
// All methods except push, suitsBeside, large, leave, stepBeside, writeHere and writeGathered run with clog.Log.mu
// held, on the one goroutine that works on the commit log at that time. That is the log's own goroutine, a lone caller
// on an idle log (Log.StepOnSpot, Log.GatherOnSpot), stepBeside (Log.StepBeside), or the goroutine that writes the
// group that a lone caller gathered (Log.WriteOnSpot). So clog.Log.mu guards all fields except ready (readyMu),
// gathered, beside and the atomics. sealInbox and the functions below it also hold the partition's Replica.mu. Puts
// that arrive while a group is on the disk become one batch per partition in the next group.
//
//	push       called on a put's goroutine when its inbox is no longer empty
//	Gather     takes inboxes and seals each into batches of the group; the batches leave for the followers, if any
//	           ... clog writes the group ...
//	Durable    informs the replicas, which commit, make the batches visible and answer their puts
//
// After a crash before Durable, each batch of the group is in the log as a whole or not at all. None of its puts was
// answered.
type committer struct {
	store *Store

	readyMu lock.Mutex[lock.CommitterReady]
	ready   []*Partition // partitions whose inbox was empty and has puts now

	// gathered has one value while writeGathered has a group to write. Join sets the channel before any goroutine runs.
	// It is nil on a single node and on a simulated host: there the commit log's goroutine writes every group.
	gathered  chan struct{}
	lastWrite atomic.Int64 // how long the last call of writeHere took, in ns
	// beside has one value while stepBeside has something to look at. Accept sets the channel before any goroutine runs.
	// It is nil in a cluster and on a simulated host.
	beside chan struct{}
	waited atomic.Bool // several goroutines waited for the last group
	small  int         // consecutive calls of Gather at which suitsBeside was true

	work []*Partition // taken from ready; the inboxes of work[at:] are not sealed yet
	at   int

	leftover        atomic.Bool // the last group was full before all inboxes of work were sealed
	lastGroupShared atomic.Bool // the last group had several puts (groupWork.sealed)

	inFlight atomic.Int32 // groups on the disk
	telling  atomic.Int64 // since when Durable runs, platform.Mono() + 1; 0: it does not

	slots    []groupWork            // by clog.Group.Slot
	body     []byte                 // scratch: the body of a control batch
	deferred []fold.DeferredMessage // scratch: the delayed messages of the batch that is being sealed
	untold   []replicate.Batch      // scratch: batches of the partition being sealed, see tell
	nowNs    int64                  // the engine's time when the group began, or its last batch with delays

	untoldBytes int // sum of Bytes in untold

	full error // the value of Flusher.Full that the partition machines know
	room quotaRoom
}

// groupWork lists what one group carries, for Durable. Its slices are reused from group to group.
type groupWork struct {
	batches    []batchWork
	tombstones []inbox.List
	cuts       []*logCut
	sealed     int // puts sealed into the group, and what came from a leader: see appendIncoming
}

// batchWork is a batch of a group. Durable tells its replica that the batch is durable.
type batchWork struct {
	part       *Partition
	slice      segment.Slice
	nextID     segment.MsgID
	generation uint64 // Replica.generation when the batch was appended
	bodyBytes  uint64 // estimate, see run.bodyBytes; 0 for a batch from another leader
}

// maxGroupPuts bounds the number of puts in one group. Sealing and answering a group must overlap with the producers'
// work on the next one. If one group took all outstanding puts of a producer (some ten thousand), nothing would
// overlap.
const maxGroupPuts = 4096

// maxRefills bounds how often Gather takes inboxes that became ready while it worked. Without a bound Gather might
// never end: a producer whose put was refused may put again at once.
const maxRefills = 4

// Gather seals the inboxes that wait, partition by partition, until the group is full. clog calls it.
func (c *committer) Gather(g *clog.Group) {
	// Gather takes no inbox before it is certain that a group begins: puts that arrive until then join the group.
	if c.inFlight.Load() > 0 && !c.large() || c.leavesGroup() || !c.refillWork() {
		return
	}
	w := &c.slots[g.Slot()]
	w.batches, w.tombstones, w.sealed = w.batches[:0], w.tombstones[:0], 0
	c.nowNs = c.store.now().UnixNano()
	c.learnSpace()
	for range maxRefills {
		for c.at < len(c.work) && c.sealInbox(c.work[c.at], g, w) {
			c.work[c.at] = nil
			c.at++
		}
		if c.at < len(c.work) || !c.refillWork() {
			break
		}
	}
	if w.sealed == 1 && !c.store.host.DiskQueues() {
		g.SetSolo()
	}
	if g.Records() > 0 {
		c.inFlight.Add(1)
	}
	c.lastGroupShared.Store(w.sealed > 1)
	c.leftover.Store(c.at < len(c.work))
}

// refillWork takes the partitions of ready once all of work is sealed. It says whether an inbox waits at c.work[c.at].
func (c *committer) refillWork() bool {
	if c.at == len(c.work) {
		c.work, c.at = c.work[:0], 0
		c.readyMu.Lock()
		c.work, c.ready = c.ready, c.work
		c.readyMu.Unlock()
	}
	return len(c.work) > 0
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
		if r.n == 0 {
			continue // nextRun has answered all that it took from l
		}
		first, dst := c.reserve(pt, g, w, &r)
		if dst == nil {
			l.Prepend(r.puts)
			if first == machine.PurposeData || !c.sealInternal(pt, g, w, first, r.bytes) {
				return
			}
			continue
		}
		w.sealed += r.n
		c.seal(pt, g, w, &r, dst)
		if !r.puts.Empty() { // a tombstone: replicate has taken the puts of any other run
			w.tombstones = append(w.tombstones, r.puts)
		}
	}
}

// run is the content of the next batch of a partition: puts that followed each other in its inbox.
type run struct {
	puts      inbox.List
	kind      inbox.Kind // of each put
	n         int        // puts
	count     uint32
	bytes     int // of the whole batch, header included
	headers   int // bytes that headers add to the records
	delayed   int // messages with a delay
	placement machine.Placement
	flags     segment.Flags
	special   *inbox.Special // from the only put of the run; nil for inbox.Messages
	producer  bool           // the batch has a producer, which special names
}

// bodyBytes estimates the size of all message bodies of the run.
func (r *run) bodyBytes() uint64 {
	switch r.kind {
	case inbox.Messages, inbox.Numbered:
	case inbox.Sealed:
		return uint64(r.special.Bodies)
	default:
		return 0
	}
	return uint64(r.bytes - segment.HeaderBytes - r.headers - int(r.count)*batch.RecordSize(0, 0))
}

// nextRun takes the next run out of l. Consecutive messages share a batch as long as they fit. A put of any other kind
// is a run of its own. nextRun itself answers puts that must be refused and puts that store nothing: they are answered
// with Replica.mu held.
func (c *committer) nextRun(pt *Partition, g *clog.Group, w *groupWork, l *inbox.List) (r run) {
	free := min(g.Free(), segment.MaxBatchBytes, c.store.clog.MaxPayloadBytes())
	refused, room, overDisk := pt.machine.Admit(maxRunCount, false), c.quotaRoom(pt), pt.exceedsDisk()
	r.bytes = segment.HeaderBytes
	for p := l.First(); p != nil; p = l.First() {
		if ofProducer(p) && !c.judge(pt, l) {
			continue
		}
		err := c.refusal(pt, p, refused)
		if err == nil && overDisk != nil && !p.Kind.Internal() {
			err = overDisk
		}
		if err == nil {
			err = c.overQuota(pt, room, &r, p)
		}
		if err == nil && p.DeferMs != 0 {
			err = pt.refusesDelay(r.delayed+len(p.Messages), time.Duration(p.DeferMs)*time.Millisecond)
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
		if r.n > 0 && (p.Kind != inbox.Messages || r.bytes+p.Bytes > free) || w.sealed+r.n == maxGroupPuts {
			return r
		}
		r.puts.Push(l.Pop())
		r.n++
		if r.kind = p.Kind; r.kind != inbox.Messages {
			r.special, r.producer = p.Special, ofProducer(p)
		}
		if r.kind == inbox.Sealed || r.kind.Internal() {
			c.measureSpecial(pt, &r)
			return r
		}
		r.count += uint32(len(p.Messages))
		r.bytes += p.Bytes
		if p.DeferMs != 0 {
			r.flags |= segment.FlagDefer
			r.delayed += len(p.Messages)
		}
		if p.Headered {
			r.flags |= segment.FlagHeaders
			r.headers += int(p.HeaderBytes)
		}
		if r.kind == inbox.Numbered {
			return r
		}
	}
	return r
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
func (c *committer) measureSpecial(pt *Partition, r *run) {
	switch own := r.special; r.kind {
	case inbox.Sealed:
		r.count, r.flags, r.bytes = own.Header.Count, own.Header.Flags, len(own.Sealed)
	case inbox.Controls:
		c.body = c.encodeControls(pt, own.Controls, c.body[:0])
		r.flags, r.bytes = segment.FlagControl, segment.HeaderBytes+len(c.body)
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
func (c *committer) reserve(pt *Partition, g *clog.Group, w *groupWork, r *run) (machine.Purpose, []byte) {
	if r.kind == inbox.Tombstone {
		tombstone := clog.Placement{Type: clog.Tombstone, Topic: pt.topic.ID, Partition: pt.number}
		return machine.PurposeData, g.Reserve(tombstone, 0)
	}
	first, at := pt.machine.Place(machine.PurposeData, r.bytes, 0)
	if first != machine.PurposeData {
		return first, nil
	}
	r.placement = at
	return machine.PurposeData, g.Reserve(pt.clogPlacement(r.placement.Segment, r.placement.Offset), r.bytes)
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
// replica. Afterwards r.puts is empty, except for a tombstone, which Durable answers. Replica.mu is held.
func (c *committer) seal(pt *Partition, g *clog.Group, w *groupWork, r *run, dst []byte) {
	// A put may have arrived after the group began. Its delay must not count from a time before its arrival.
	if r.delayed > 0 {
		c.nowNs = c.store.now().UnixNano()
	}
	at, crc := &r.placement, uint32(0)
	c.deferred = c.deferred[:0]
	switch r.kind {
	case inbox.Messages, inbox.Numbered:
		c.encodeRecords(pt.number, r, dst)
		crc = c.stamp(pt, r, dst)
	case inbox.Sealed:
		copy(dst, r.special.Sealed)
		r.puts.First().First = batch.MakeID(pt.number, at.FirstID)
		crc = batch.Stamp(dst, at.Position, at.FirstID, at.Epoch, c.stampNs(pt), at.PrevCRC)
	case inbox.Controls:
		copy(dst[segment.HeaderBytes:], c.body)
		crc = c.stamp(pt, r, dst)
	case inbox.Tombstone:
		r.special.Release = c.store.flusher.PinFiles() // not earlier: the group might have had no room
		return
	}
	c.noteAppended(pt, g, w, r, dst, crc, machine.PurposeData)
	switch r.kind {
	case inbox.Controls:
		r.special.Offset = at.Offset
		c.applyControls(pt, r.special.Controls, at.Offset)
	case inbox.Sealed, inbox.Numbered:
		h := &r.special.Header
		h.FirstID, h.Appended = at.FirstID, pt.newest
		pt.fold.PublishBatch(h)
	default:
		pt.fold.Publish(at.FirstID, r.count)
	}
	if len(c.deferred) != 0 {
		pt.fold.PublishDeferred(c.deferred)
		pt.stateGrew(len(c.deferred))
	}
	c.replicate(pt, w, r, c.deferred)
}

// stamp writes the header of a batch whose body is already in dst, and returns the header's checksum.
func (c *committer) stamp(pt *Partition, r *run, dst []byte) uint32 {
	at, body := &r.placement, dst[segment.HeaderBytes:]
	h := segment.Header{Flags: r.flags, Count: r.count, Created: c.nowNs}
	if r.producer {
		own := &r.special.Header
		h.ProducerID, h.ProducerEpoch, h.BaseSequence = own.ProducerID, own.ProducerEpoch, own.BaseSequence
	}
	h.BodyBytes, h.BodyCRC = uint32(len(body)), batch.Checksum(body)
	if r.producer {
		r.special.Header.BodyCRC = h.BodyCRC
	}
	h.Position, h.FirstID, h.Epoch, h.Appended, h.PrevCRC = at.Position, at.FirstID, at.Epoch, c.stampNs(pt), at.PrevCRC
	h.Encode(dst)
	return h.CRC
}

// stampNs returns the append time of the partition's next batch, and records it. That is the present time, or the
// append time of the previous batch if that is later because the clock of another leader was ahead. Append times never
// decrease, so a binary search by time works.
func (c *committer) stampNs(pt *Partition) int64 {
	pt.newest = max(pt.newest, c.nowNs)
	return pt.newest
}

// encodeRecords writes the messages of a run into dst, and sets each put's First to the id of its first message. It
// adds those with a delay to c.deferred.
func (c *committer) encodeRecords(partition uint32, r *run, dst []byte) {
	out := dst[segment.HeaderBytes:segment.HeaderBytes]
	id := r.placement.FirstID
	nowMs := clock.CeilMs(c.nowNs) // rounded up: nothing is due early
	var rec segment.Record
	for p := r.puts.First(); p != nil; p = r.puts.After(p) {
		p.First = batch.MakeID(partition, id)
		rec.Defer = p.DeferMs
		for i, m := range p.Messages {
			rec.Body = m
			if p.Headered {
				rec.Headers = p.Headers[i]
			}
			out = batch.AppendRecord(out, &rec)
			if p.DeferMs != 0 {
				due := nowMs + int64(p.DeferMs)
				c.deferred = append(c.deferred, fold.DeferredMessage{
					ID: id + segment.MsgID(i), DueMs: due, At: r.placement.Offset,
				})
			}
		}
		rec.Headers = nil
		id += segment.MsgID(len(p.Messages))
	}
	if len(out)+segment.HeaderBytes != len(dst) {
		panic("BUG: the records of a batch do not fill what was reserved for them")
	}
}

// noteAppended tells the machine of an appended batch, and adds the batch to the list of the group for Durable.
func (c *committer) noteAppended(
	pt *Partition, g *clog.Group, w *groupWork, r *run, batch []byte, crc uint32, purpose machine.Purpose,
) {
	pt.machine.Appended(purpose, len(batch), r.count, crc)
	at := &r.placement
	pt.epochs.Note(replicate.EpochStart{Epoch: at.Epoch, Position: at.Position, Offset: at.Offset})
	w.batches = append(w.batches, batchWork{
		part: pt, generation: pt.replica.generation, bodyBytes: r.bodyBytes(), nextID: at.FirstID + segment.MsgID(r.count),
		slice: segment.Slice{
			Buf: g.Buf(), Data: batch, Position: at.Position, FirstID: at.FirstID, Count: r.count, Offset: at.Offset,
			Segment: at.Segment, SegmentBase: at.SegmentBase, SegmentCapacity: at.SegmentCapacity,
			Control: r.flags&segment.FlagControl != 0, Appended: pt.newest, FileSeq: g.FileSeq(),
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
		// Because of confirmations, the fold has grown beyond maxPartitionStateBytes and does not fit into a batch. The
		// checkpoint of the commit log still has it. Only a replica whose log is cut inside this segment, or begins with
		// it, misses the fold. That replica does not lead without it (replay.ErrNoFold).
		body = fold.AppendControl(body[:0], &fold.Control{Kind: fold.EpochStart, Epoch: epoch})
	}
	c.body = body
	r := run{kind: inbox.Controls, flags: segment.FlagControl, bytes: segment.HeaderBytes + len(body)}
	_, r.placement = pt.machine.Place(purpose, r.bytes, nextBytes)
	dst := g.Reserve(pt.clogPlacement(r.placement.Segment, r.placement.Offset), r.bytes)
	if dst == nil {
		return false
	}
	copy(dst[segment.HeaderBytes:], body)
	crc := c.stamp(pt, &r, dst)
	c.noteAppended(pt, g, w, &r, dst, crc, purpose)
	if purpose == machine.PurposeEpochStart {
		pt.replica.pending.epochStart = r.placement.Position
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
	pt.measureState()
	if n := pt.fold.Rewinds(); n != pt.rewinds {
		pt.rewinds = n
		pt.flush.ForgetWaiting()
	}
	pt.producerCount.Store(int32(pt.fold.ProducerCount()))
	var start fold.Border
	if pt.log != nil {
		start = pt.startBorder()
	}
	from, carries := pt.fold.CarriedFrom(start.At)
	if !carries {
		from = noOffset
	}
	needed := pt.fold.Needed(start.ID, end)
	pt.carriedFrom.Store(int64(from))
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
