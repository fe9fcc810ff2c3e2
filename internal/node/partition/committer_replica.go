package partition

import (
	"errors"

	"penstock/clog"
	"penstock/internal/failpoint"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/machine"
	"penstock/internal/node/replay"
	"penstock/internal/node/seal"
	"penstock/replicate"
	"penstock/segment"
)

// sealInbox does the committer's work for one partition. First it appends the batches that the leader sent, if this
// node follows. Then it writes the record of a cut, if one is ready. Then, if this node leads, it seals the inbox. It
// returns false when g has no room for the rest; the puts that are left are back in the inbox. It holds Replica.mu
// throughout.
func (c *committer) sealInbox(pt *Partition, g *clog.Group, w *groupWork) bool {
	r := pt.replica
	r.mu.Lock()
	defer r.unlock()
	for {
		// Drain first: a put that arrives from here on calls push again.
		l := pt.Drain()
		if !r.solo() && !(c.appendIncoming(pt, g, w) && c.writeCut(pt, g, w) && c.beginEpoch(pt, g, w)) {
			pt.PrependAndStayReady(l)
			return false
		}
		if l.Empty() {
			return true
		}
		// A tombstone concerns only the files of this node. It is written no matter which node leads.
		if !r.solo() && l.First().Kind != inbox.Tombstone {
			if !r.admits() {
				pt.Stall(l, false)
				return true
			}
			if r.pending.Len() > 0 && l.Size() < inbox.SecondGroupBytes {
				// A small batch costs the followers as much as a large one. So while a batch is on its way to them,
				// puts wait until they are SecondGroupBytes together, or until that batch is committed.
				r.stalled = errPipelined
				pt.Stall(l, true)
				return true
			}
		}
		c.sealList(pt, g, w, &l)
		if c.tell(r); !l.Empty() {
			pt.Prepend(l)
			return false
		}
	}
}

// errPipelined says that puts wait because earlier batches are not committed yet.
var errPipelined = errors.New("engine: batches are on their way to the followers")

// Announce tells the committer that the partition has work for it. The replica calls it, and so do the callers of
// TryEnter. They hold no lock. With alone, the caller may do the work itself; see driver.Driver.Push.
func (pt *Partition) Announce(alone bool) {
	if pt.StayReady() {
		pt.store.committer.Push(pt, alone)
	}
}

// beginEpoch writes the first batch of this leader's epoch, if it is not written yet. It does nothing if this node does
// not lead. It returns false when g is full. Replica.mu is held.
func (c *committer) beginEpoch(pt *Partition, g *clog.Group, w *groupWork) bool {
	r := pt.replica
	if r.leader == nil || !r.startEpoch || r.leader.Err() != nil {
		return true
	}
	pt.correctDelays()
	if !r.granted {
		pt.machine.Lead(r.leader.Epoch())
		r.granted = true
	}
	if !c.sealInternal(pt, g, w, machine.PurposeEpochStart, 0) {
		return false
	}
	c.tell(r)
	r.startEpoch = false
	return true
}

// appendIncoming writes the batches that the leader sent: the same bytes, to the same places as at the leader. It
// returns false when g is full; the batches that did not fit stay in r.incoming. Replica.mu is held.
func (c *committer) appendIncoming(pt *Partition, g *clog.Group, w *groupWork) bool {
	r := pt.replica
	n := 0
	for n < len(r.incoming) && c.appendOne(pt, g, w, &r.incoming[n]) {
		r.incoming[n].frame.Release()
		n++
	}
	done := n == len(r.incoming)
	left := copy(r.incoming, r.incoming[n:])
	clear(r.incoming[left:])
	r.incoming = r.incoming[:left]
	return done
}

// appendOne writes one batch that the leader sent, and applies it to the machine, the fold and the log. It returns
// false when g is full. Replica.mu is held.
func (c *committer) appendOne(pt *Partition, g *clog.Group, w *groupWork, in *incomingBatch) bool {
	dst := g.Reserve(pt.clogPlacement(in.segment, in.offset), len(in.data))
	if dst == nil {
		return false
	}
	copy(dst, in.data)
	var h segment.Header
	if err := h.Decode(dst); err != nil {
		panic("BUG: a batch that was verified does not decode: " + err.Error())
	}
	pt.machine.Follow(segment.State{
		Next: h.Position + 1, NextID: h.NextID(), End: in.offset + segment.Offset(len(dst)), LastCRC: h.CRC, Epoch: h.Epoch,
		Segment: in.segment, SegmentBase: in.base, SegmentCapacity: in.capacity,
	})
	pt.epochs.Note(replicate.EpochStart{Epoch: h.Epoch, Position: h.Position, Offset: in.offset})
	c.foldIncoming(pt, &h, dst[segment.HeaderBytes:], in.offset)
	s := segment.Slice{
		Buf: g.Buf(), Data: dst, Position: h.Position, FirstID: h.FirstID, Count: h.Count, Offset: in.offset,
		Segment: in.segment, SegmentBase: in.base, SegmentCapacity: in.capacity,
		Control: h.Control(), Appended: h.Appended, FileSeq: g.FileSeq(),
	}
	pt.newest = max(pt.newest, h.Appended)
	c.store.delays.Saw(&pt.writer, &h, c.nowNs, pt.topic.Name, pt.number)
	pt.log.Append(&s)
	c.store.flusher.MarkDirty(&pt.flush)
	w.batches = append(w.batches, batchWork{part: pt, slice: s, nextID: h.NextID(), generation: in.generation})
	return true
}

// foldIncoming applies a batch that the leader sent to the fold of the partition, unless the fold is not known. If this
// version does not know an entry of the batch, or the log begins without a fold, the partition becomes unread
// (cannotFold). In the second case, the next batch that contains the whole fold ends that. Replica.mu is held.
func (c *committer) foldIncoming(pt *Partition, h *segment.Header, body []byte, at segment.Offset) {
	was := pt.WhyUnread()
	if was != nil && !errors.Is(was, replay.ErrNoFold) {
		return
	}
	due, err := c.store.folder.Batch(pt.fold, h, body, at)
	pt.fold.PublishDeferred(due)
	pt.Grew(pt.fold, pt.machine.State().End, len(due))
	switch {
	case err != nil:
		pt.replica.cannotFold(err)
	case was != nil:
		pt.replica.foundFold()
	}
	if h.Control() {
		pt.publishFold(h.NextID())
	}
}

// replicate hands a batch that was just sealed to the replica. The followers, if any, get it before this node's disk
// has written it (tell). The puts of the batch move from the run to Replica.pending; the replica answers them when the
// batch is committed. deferred is borrowed. Replica.mu is held.
func (c *committer) replicate(pt *Partition, w *groupWork, r *seal.Run, deferred []fold.DeferredMessage) {
	b := &w.batches[len(w.batches)-1]
	pt.log.Append(&b.slice)
	c.store.flusher.MarkDirty(&pt.flush)
	p := seal.Batch{Position: b.slice.Position, NextID: b.nextID, Count: r.Count, BodyBytes: b.bodyBytes}
	if len(deferred) != 0 {
		p.Deferred = append(p.Deferred, deferred...)
	}
	p.Puts = r.Puts.Take()
	c.appended(pt.replica, &p, &b.slice)
}

// maxToldCount and maxToldBytes bound the batches that a leader's machine is told of at once (tell). They leave for the
// followers in one frame. A large batch does not wait until the next one is sealed.
const (
	maxToldCount = 256
	maxToldBytes = 64 << 10
)

// appended adds a batch that this leader, or this single node, has just added to its log to the pending ones. b.Offset
// and b.Data are the batch. Replica.mu is held.
func (c *committer) appended(r *Replica, p *seal.Batch, b *segment.Slice) {
	if r.solo() {
		r.pending.Push(p)
		return
	}
	p.SealedNs = r.node.Now()
	r.pending.Push(p)
	h := segment.Header{}
	if err := h.Decode(b.Data); err != nil {
		panic("BUG: a batch that was just sealed does not decode: " + err.Error())
	}
	c.untold = append(c.untold, replicate.Batch{
		Position: h.Position, FirstID: h.FirstID, Offset: b.Offset, Epoch: h.Epoch, Bytes: len(b.Data),
		Count: h.Count, PrevCRC: h.PrevCRC, CRC: h.CRC,
	})
	if c.untoldBytes += len(b.Data); c.untoldBytes >= maxToldBytes || len(c.untold) == maxToldCount {
		c.tell(r)
	}
}

// tell tells the leader's machine of the batches that were appended since the last call. It must be called before any
// other event of the partition, and before mu is released. Replica.mu is held.
func (c *committer) tell(r *Replica) {
	if len(c.untold) == 0 {
		return
	}
	r.ev = replicate.Event{Kind: replicate.EvAppended, Batches: c.untold}
	c.untold, c.untoldBytes = c.untold[:0], 0 // nothing appends to it during the step
	r.step(&r.ev)
}

// batchDurable tells the replica that batch i of the group is durable. For consecutive batches of one partition it does
// so only once, for the last of them. waiters is how many goroutines got their answer.
func (c *committer) batchDurable(w *groupWork, i int) (waiters int) {
	b := &w.batches[i]
	if i+1 < len(w.batches) {
		if next := &w.batches[i+1]; next.part == b.part && next.generation == b.generation {
			return 0
		}
	}
	failpoint.Pass("engine/replica-durable")
	r := b.part.replica
	r.mu.Lock()
	r.durableUpTo(b.slice.Position, b.generation)
	return r.unlock()
}
