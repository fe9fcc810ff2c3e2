package engine

import (
	"context"
	"errors"
	"slices"

	"penstock/engine/core"
	"penstock/segment"
)

// A deferred message that waits for days would keep its segment, and all later ones. So when nothing else needs the
// oldest segments, the deferred messages in them are copied, with their ids, into a control batch at the end of the log
// (core.DeferredCarried). Then the segments are removed:
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
// Step 7 never precedes step 5 (confirmedBound), so after a crash or a cut the message is in one of the two places. A
// channel that reads the old place while step 7 happens gets the message again when its timeout expires.
//
// Retention by size, age or count removes segments even if messages wait in them. Those messages are lost. They count
// as confirmed in every channel, and each channel is told (findLost, forgetGone), so that they hold back nothing else
// and are not listed until their time.

const (
	maxCarryBytes      = 256 << 10 // of records in one batch; a single larger record is carried alone
	maxCarryCandidates = 16        // segment borders that toCarry tries
	noOffset           = 1<<63 - 1
)

// runOnCommitter runs f where the fold may be read (on the committer), and then calls done.
func (pt *partition) runOnCommitter(f func(), done func(error)) {
	p := &Put{Done: func(p *Put) { done(p.Err) }}
	p.kind, p.special = putInspection, &specialPut{inspect: f}
	if err := pt.enqueue(context.Background(), p); err != nil {
		done(err)
	}
}

// startBorder returns where the log begins.
func (pt *partition) startBorder() core.Border {
	at, _, id := pt.log.Start()
	return core.Border{At: at, ID: id}
}

// carry copies the deferred messages out of the oldest segments, if nothing else needs those segments. limit is the
// highest offset up to which segments may be removed.
func (f *flusher) carry(pt *partition, limit segment.Offset) {
	if !pt.rep.serves.Load() || !pt.carrying.CompareAndSwap(false, true) {
		return
	}
	var borders []core.Border
	for i, s := range pt.log.Segments() {
		if i > 0 && s.Start <= limit && s.Err == nil {
			borders = append(borders, core.Border{At: s.Start, ID: s.FirstID})
		}
	}
	var sources []core.CarrySource
	start := pt.startBorder()
	pt.runOnCommitter(func() { sources = pt.toCarry(start, borders) }, func(err error) {
		if err != nil || len(sources) == 0 {
			pt.carrying.Store(false)
			return
		}
		f.e.host.Spawn(func() { f.carryFrom(pt, sources) })
	})
}

// toCarry decides which messages to carry. It runs on the committer, which owns the fold.
func (pt *partition) toCarry(start core.Border, borders []core.Border) []core.CarrySource {
	for n := 0; len(borders) > 0 && n < maxCarryCandidates; n++ {
		b := borders[len(borders)-1]
		sources, ok := pt.fold.ToCarry(nil, start, b, core.MaxCarriedCount)
		if ok {
			return sources
		}
		borders = borders[:len(borders)/2]
	}
	return nil
}

// carryFrom reads the messages and writes the batch that carries them.
func (f *flusher) carryFrom(pt *partition, sources []core.CarrySource) {
	var ms []core.CarriedMessage
	bytes := 0
	for _, s := range sources {
		m, err := pt.readRecord(s.ID, s.At)
		if errors.Is(err, segment.ErrBelowStart) {
			continue // retention has just removed it; findLost will report it
		}
		if err != nil {
			f.e.log.Warn("a deferred message cannot be carried out of its old segment, which therefore stays",
				"topic", pt.t.name, "partition", pt.number, "error", err)
			break
		}
		if bytes += len(m.Record); bytes > maxCarryBytes && len(ms) > 0 {
			break
		}
		ms = append(ms, m)
	}
	if len(ms) == 0 {
		pt.carrying.Store(false)
		return
	}
	own := &specialPut{controls: []core.Control{{Kind: core.DeferredCarried, Carried: ms}}}
	own.onCommit = func() { pt.postCarried(ms, own.offset) }
	if err := pt.postControls(own, func(error) { pt.carrying.Store(false) }); err != nil {
		pt.carrying.Store(false)
	}
}

// postCarried tells the channels the new places of carried messages.
func (pt *partition) postCarried(ms []core.CarriedMessage, at segment.Offset) {
	ds := make([]core.DeferredMessage, len(ms))
	for i := range ms {
		ds[i] = core.DeferredMessage{ID: ms[i].ID, DueMs: ms[i].DueMs, At: at}
	}
	pt.post(&post{Event: core.Event{Kind: core.EvCarried, Deferred: ds}})
}

// findLost looks for deferred messages that were removed with their segments. It runs after retention removed something
// that was not confirmed.
func (f *flusher) findLost(pt *partition) {
	if !pt.mayHaveLost.Load() || !pt.rep.serves.Load() || !pt.searchingLost.CompareAndSwap(false, true) {
		return
	}
	pt.mayHaveLost.Store(false)
	start := pt.startBorder()
	var gone []segment.MsgID
	pt.runOnCommitter(func() {
		gone = pt.fold.Gone(nil, start, core.MaxCarriedCount)
		pt.publishFold(pt.machine.State().NextID)
	}, func(err error) {
		if err != nil || len(gone) > 0 {
			pt.mayHaveLost.Store(true) // look again, until no lost message is found
		}
		if err == nil && len(gone) > 0 {
			pt.post(&post{Event: core.Event{Kind: core.EvTrimmed, Start: start.ID}, gone: gone})
		}
		pt.searchingLost.Store(false)
	})
}

// forgetGone tells the machine which deferred messages were removed with the log below its start. Clients that have one
// in flight may still finish it; the others count as confirmed. mu is held.
func (c *Channel) forgetGone(cur *cursor, gone []segment.MsgID) {
	count := 0
	for _, id := range gone {
		c.ev = core.Event{Kind: core.EvGone, ID: core.MakeID(cur.part.number, id)}
		if c.step().Decision == core.Skip {
			count++
		}
	}
	if count > 0 {
		c.e.log.Warn("messages that waited for their time are gone: retention by size, age or count removed them first",
			"topic", c.t.name, "channel", c.name, "partition", cur.part.number, "count", count)
	}
}

// readRecord copies a stored message. at is the offset of its batch; 0: the place where it was published.
func (pt *partition) readRecord(id segment.MsgID, at segment.Offset) (m core.CarriedMessage, err error) {
	if at == 0 {
		if at, _, err = pt.log.Seek(id); err != nil {
			return m, err
		}
	}
	var v segment.View
	defer v.Release()
	if err := pt.log.View(&v, at, 1); err != nil {
		return m, err
	}
	return recordIn(v.Bytes(), id)
}

// recordIn copies a message out of the first batch of a run.
func recordIn(run []byte, id segment.MsgID) (m core.CarriedMessage, err error) {
	var it segment.BatchIter
	it.Reset(run)
	h, body, ok := it.Next()
	if !ok {
		return m, it.Err()
	}
	if h.Control() {
		m, err = core.CarriedRecord(body, id)
		m.Record = slices.Clone(m.Record)
		return m, err
	}
	if h.Codec != segment.CodecNone {
		if body, err = segment.DecompressBody(h, body, nil); err != nil {
			return m, err
		}
	}
	f := fetched{body: body}
	if id < h.FirstID || id >= h.NextID() {
		return m, segment.ErrNotBoundary
	}
	record, ok := f.record(int(id - h.FirstID))
	var one segment.RecordIter
	one.Reset(&segment.Header{Count: 1}, record)
	r := one.NextRef()
	if !ok || r == nil {
		return m, errors.Join(segment.ErrInvalid, one.Err())
	}
	m = core.CarriedMessage{ID: id, CreatedNs: h.Created, Record: slices.Clone(record)}
	if r.Defer != 0 {
		m.DueMs = ceilMs(h.Created) + int64(r.Defer)
	}
	return m, nil
}

// readFold runs f where the fold may be read. With an error f may have run, or may run yet.
func (pt *partition) readFold(ctx context.Context, f func()) error {
	if r := pt.rep; r != nil { // not through the inbox: without a quorum it stands still
		r.mu.Lock()
		defer r.mu.Unlock()
		f()
		return nil
	}
	done := make(chan struct{}, 1)
	var err error
	pt.runOnCommitter(f, func(e error) { err = e; done <- struct{}{} })
	if !pt.e.host.Either(done, ctx.Done()) {
		return ctx.Err()
	}
	return err
}

// onlyCarried lists at most count messages, from the id from on, whose bytes are only in control batches that carry
// them. It also returns the first id of the log; messages from there on still have their bytes where they were
// published.
func (pt *partition) onlyCarried(
	ctx context.Context, from segment.MsgID, count int,
) ([]core.CarrySource, segment.MsgID, error) {
	if start := pt.startBorder(); pt.carriedFrom.Load() == noOffset {
		return nil, start.ID, nil
	}
	var list []core.CarrySource
	var start core.Border
	err := pt.readFold(ctx, func() {
		start = pt.startBorder()
		list = pt.fold.CarriedBelow(nil, from, start, count)
	})
	if err != nil {
		return nil, 0, err
	}
	return list, start.ID, nil
}

// readCarried copies messages that control batches carry, as far as they are still there.
func (p *peeker) readCarried(ctx context.Context, pt *partition, sources []core.CarrySource) error {
	for _, s := range sources {
		m, err := pt.readRecord(s.ID, s.At)
		if errors.Is(err, segment.ErrBelowStart) { // carried further up meanwhile, or gone
			var again []core.CarrySource
			if again, _, err = pt.onlyCarried(ctx, s.ID, 1); err == nil &&
				(len(again) == 0 || again[0].ID != s.ID || again[0].At == s.At) {
				continue
			} else if err == nil {
				m, err = pt.readRecord(s.ID, again[0].At)
			}
		}
		if err != nil {
			return err
		}
		var it segment.RecordIter
		h := segment.Header{Count: 1, Created: m.CreatedNs}
		it.Reset(&h, m.Record)
		r := it.NextRef()
		if r == nil {
			return errors.Join(segment.ErrInvalid, it.Err())
		}
		if !p.add(core.MakeID(pt.number, s.ID), &h, r) {
			return nil
		}
	}
	return nil
}

// carriedOne returns a copy of a message that a control batch carries; ErrBelowStart: none does.
func (t *Topic) carriedOne(ctx context.Context, id ID) (*PeekedMessage, error) {
	pt := t.partitions()[id.Partition()]
	p := peeker{whole: true, room: MaxPeekBytes}
	list, _, err := pt.onlyCarried(ctx, id.MsgID(), 1)
	if err == nil && len(list) == 1 && list[0].ID == id.MsgID() {
		err = p.readCarried(ctx, pt, list)
	}
	switch {
	case err != nil:
		return nil, err
	case len(p.found) == 0:
		return nil, segment.ErrBelowStart
	}
	return &p.found[0], nil
}
