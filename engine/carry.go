package engine

import (
	"context"
	"errors"
	"slices"

	"penstock/engine/core"
	"penstock/segment"
	"penstock/segment/aio"
)

// A message that waits for days keeps its segment, and with it all that came after. When nothing else needs the oldest segments, the
// messages that wait are copied into a control batch at the end of the log (core.DeferredCarried), with their ids, and the segments go:
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
// 7 is not before 5 (carriedBound), so a crash or a cut finds the message in one of the two places. A channel that is just reading an old place
// when 7 happens comes back for the message when its time is out.

const (
	maxCarryBytes      = 256 << 10 // of records in one batch, unless a single one is larger
	maxCarryCandidates = 16        // places up to which segments could go that are looked at
	noOffset           = 1<<63 - 1
)

// carriedBound is how much of what the fold says is not needed may go.
func (pt *partition) carriedBound(to segment.Offset) segment.Offset {
	to = min(to, segment.Offset(pt.carriedFrom.Load()))
	if last := segment.Offset(pt.carriedAt.Load()); last != 0 && pt.carriedFrom.Load() != noOffset && last >= pt.committedEnd() {
		return 0
	}
	return to
}

// look runs f where the fold belongs to, and then done.
func (pt *partition) look(f func(), done func(error)) {
	p := &Put{Done: func(p *Put) { done(p.Err) }}
	p.own = &ownPut{look: f}
	if err := pt.enqueue(context.Background(), p); err != nil {
		done(err)
	}
}

// border is where segments could end to be kept.
type border struct {
	at segment.Offset
	id segment.MsgID
}

// carry copies what waits in the oldest segments, if nothing else is needed of them; limit is how far they may go at all.
func (f *flusher) carry(pt *partition, limit segment.Offset) {
	if pt.rep != nil && !pt.rep.serves.Load() || !pt.carrying.CompareAndSwap(false, true) {
		return
	}
	var borders []border
	for i, s := range pt.log.Segments() {
		if i > 0 && s.Start <= limit && s.Err == nil {
			borders = append(borders, border{s.Start, s.FirstID})
		}
	}
	var sources []core.CarrySource
	pt.look(func() { sources = pt.toCarry(borders) }, func(err error) {
		if err != nil || len(sources) == 0 {
			pt.carrying.Store(false)
			return
		}
		f.e.spawn(func() { f.carryFrom(pt, sources) })
	})
}

// toCarry decides what to carry; it runs where the fold belongs to.
func (pt *partition) toCarry(borders []border) []core.CarrySource {
	for n := 0; len(borders) > 0 && n < maxCarryCandidates; n++ {
		b := borders[len(borders)-1]
		sources, ok := pt.fold.ToCarry(nil, b.id, b.at, core.MaxCarriedCount)
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
			continue
		}
		if err != nil {
			f.e.log.Warn("a deferred message cannot be carried out of its old segment, which therefore stays", "topic", pt.t.name, "partition", pt.number, "error", err)
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
	p := &Put{Done: func(*Put) { pt.carrying.Store(false) }}
	p.own = &ownPut{patient: true, controls: []core.Control{{Kind: core.DeferredCarried, Carried: ms}}}
	p.own.onCommit = func(p *Put) { pt.postCarried(ms, p.own.placed) }
	if err := pt.enqueue(context.Background(), p); err != nil {
		pt.carrying.Store(false)
	}
}

// postCarried tells the channels where carried messages lie.
func (pt *partition) postCarried(ms []core.CarriedMessage, at segment.Offset) {
	ws := pt.watchers.Load()
	if ws == nil {
		return
	}
	ds := make([]core.DeferredMessage, len(ms))
	for i := range ms {
		ds[i] = core.DeferredMessage{ID: ms[i].ID, DueMs: ms[i].DueMs, At: at}
	}
	for _, w := range *ws {
		w.ch.post(post{index: w.index, carried: ds})
		w.ch.wake()
	}
}

// readRecord copies a message as it is stored; at is where it lies, 0: where it was published.
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
	err = aio.Guard(pt.t.name, func() error {
		var err error
		m, err = recordIn(v.Bytes(), id)
		return err
	})
	return m, err
}

// recordIn copies a message out of the batch that begins a run.
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

// carriedOne returns a copy of a message that a control batch carries; ErrBelowStart: none does.
func (t *Topic) carriedOne(id ID) (*PeekedMessage, error) {
	pt := t.partitions()[id.Partition()]
	var at segment.Offset
	done := make(chan struct{}, 1)
	var err error
	pt.look(func() { at = pt.fold.CarriedAt(id.MsgID()) }, func(e error) { err = e; done <- struct{}{} })
	t.e.receive(done)
	if err != nil {
		return nil, err
	}
	if at == 0 {
		return nil, segment.ErrBelowStart
	}
	m, err := pt.readRecord(id.MsgID(), at)
	if err != nil {
		return nil, err
	}
	var it segment.RecordIter
	h := segment.Header{Count: 1, Created: m.CreatedNs}
	it.Reset(&h, m.Record)
	r := it.NextRef()
	if r == nil {
		return nil, errors.Join(segment.ErrInvalid, it.Err())
	}
	p := peeker{whole: true, room: MaxPeekBytes}
	p.add(id, &h, r)
	return &p.found[0], nil
}
