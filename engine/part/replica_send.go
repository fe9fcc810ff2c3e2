package part

import (
	"errors"
	"slices"
	"sync"
	"time"

	"penstock/internal/failpoint"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// outgoing holds the batches of one frame. The bytes stay pinned in the log until the connection has written the frame
// and calls Release.
type outgoing struct {
	views []*segment.View // the first used of them are pinned; the others are kept for later frames
	used  int
	body  [][]byte
	runs  []wire.Run
}

var outgoings = sync.Pool{New: func() any { return new(outgoing) }}

// Release implements netproto.Releaser.
func (o *outgoing) Release() {
	for i := range o.used {
		o.views[i].Release()
	}
	clear(o.body)
	o.used, o.body, o.runs = 0, o.body[:0], o.runs[:0]
	outgoings.Put(o)
}

func (o *outgoing) next() *segment.View {
	if o.used == len(o.views) {
		o.views = append(o.views, new(segment.View))
	}
	o.used++
	return o.views[o.used-1]
}

// add appends data, which lies in the segment that where describes. It returns false if the frame has no room for
// another run. A segment can be given more capacity for a later batch; then the run gets the capacity of its last
// piece.
func (o *outgoing) add(data []byte, where *segment.State) bool {
	if n := len(o.runs); n > 0 && o.runs[n-1].Segment == where.Segment && o.runs[n-1].Base == where.SegmentBase {
		r := &o.runs[n-1]
		r.Bytes += len(data)
		r.Capacity = max(r.Capacity, where.SegmentCapacity)
	} else {
		if n == wire.MaxRunCount {
			return false
		}
		o.runs = append(o.runs, wire.Run{
			Segment: where.Segment, Base: where.SegmentBase, Capacity: where.SegmentCapacity, Bytes: len(data),
		})
	}
	o.body = append(o.body, data)
	return true
}

// rangeRead is a range of old batches that was read for a follower and is about to be sent.
type rangeRead struct {
	from, until segment.Position
	out         *outgoing
	batches     []replicate.Batch
}

// send puts a message into the connection's queue. It is dropped if it does not fit: the machines repeat what is not
// answered. mu is held.
func (r *Replica) send(to replicate.NodeID, m *replicate.Message) {
	if wire.CarriesBatches(m.Kind) {
		r.sendBatches(to, m)
		return
	}
	wire.Encode(&r.sent, r.pt.Identity(), m, nil)
	r.sent.Body, r.sent.Owner = nil, nil
	_ = r.node.Net.TrySend(to, &r.sent)
}

// sendBatches sends the batches from Position up to Until, or as many as can be read. They come from memory, or from a
// rangeRead. What the machine remembers may be in segments only by now: that is read without mu, and sent later. mu is
// held.
func (r *Replica) sendBatches(to replicate.NodeID, m *replicate.Message) {
	if rd := r.reads[to]; rd != nil && rd.from == m.Position {
		delete(r.reads, to)
		m.Until = rd.until
		r.sendCollected(to, m, rd.out, rd.batches)
		return
	}
	out, err := outgoings.Get().(*outgoing), error(nil)
	r.batches, err = r.collect(
		out, r.batches[:0], m.Position, m.Until, wire.MaxBatchCount, r.node.replication.MaxSendBytes, false)
	if len(r.batches) == 0 && err == segment.ErrNotInMemory {
		out.Release()
		r.sendLater(to, *m)
		return
	}
	m.Until = m.Position + segment.Position(len(r.batches))
	r.sendCollected(to, m, out, r.batches)
}

// sendLater sends batches that only segments have, as sendBatches does. The read may wait for the device, so it runs on
// a goroutine, at most one for each follower: the machine repeats what is not answered. mu is held.
func (r *Replica) sendLater(to replicate.NodeID, m replicate.Message) {
	if r.late[to] {
		return
	}
	if r.late == nil {
		r.late = map[replicate.NodeID]bool{}
	}
	r.late[to] = true
	r.node.Spawn(func() {
		r.node.readers <- struct{}{}
		defer func() { <-r.node.readers }()
		out := outgoings.Get().(*outgoing)
		batches, _ := r.collect(
			out, nil, m.Position, m.Until, wire.MaxBatchCount, r.node.replication.MaxSendBytes, false)
		r.run(func() {
			delete(r.late, to)
			// Followers send MsgRange, too: it answers who repairs its copy. MsgAppend is of one leader's epoch.
			ended := m.Kind == replicate.MsgAppend && (r.leader == nil || r.leader.Epoch() != m.Epoch)
			if ended || !r.active() {
				out.Release()
				return
			}
			m.Until = m.Position + segment.Position(len(batches))
			r.sendCollected(to, &m, out, batches)
		})
	})
}

// sendCollected sends batches that are pinned in out, which belongs to the connection from then on. mu is held.
func (r *Replica) sendCollected(
	to replicate.NodeID, m *replicate.Message, out *outgoing, batches []replicate.Batch,
) {
	m.Batches, m.Start = batches, 0
	if m.Kind == replicate.MsgRange {
		_, m.Start, _ = r.pt.log.Start()
	}
	if n := len(m.Batches); n > 0 {
		m.FirstID, m.NextID = m.Batches[0].FirstID, m.Batches[n-1].NextID()
	} else if m.Kind == replicate.MsgAppend || m.Position >= m.Start {
		out.Release()
		return
	}
	wire.Encode(&r.sent, r.pt.Identity(), m, out.runs)
	r.sent.Body, r.sent.Owner = out.body, out
	if err := r.node.Net.TrySend(to, &r.sent); err != nil {
		out.Release()
	}
}

// collect pins batches from position from up to until in out, and appends their descriptions to batches. It stops after
// count batches or so many bytes, but takes one batch in any case. It runs with mu only with memory: then it reads
// nothing from the device, and returns segment.ErrNotInMemory where it would have to.
func (r *Replica) collect(
	out *outgoing, batches []replicate.Batch, from, until segment.Position, count int, bytes int64, memory bool,
) ([]replicate.Batch, error) {
	log := r.pt.log
	at, err := seek(log, from, memory)
	for err == nil && from < until && count > 0 && (bytes > 0 || len(batches) == 0) {
		v := out.next()
		if err = view(log, v, at, int(max(bytes, 1)), memory); err != nil {
			out.used--
			break
		}
		where, werr := log.Where(at)
		if werr != nil {
			break
		}
		var it segment.BatchIter
		it.Reset(v.Bytes())
		size := 0
		for h, _, ok := it.Next(); ok && h.Position < until && count > 0 &&
			(size == 0 || int64(size+h.Size()) <= bytes); h, _, ok = it.Next() {
			batches = append(batches, replicate.Batch{
				Position: h.Position, FirstID: h.FirstID, Offset: at + segment.Offset(size), Epoch: h.Epoch, Bytes: h.Size(),
				Count: h.Count, PrevCRC: h.PrevCRC, CRC: h.CRC,
			})
			from = h.Position + 1
			size += h.Size()
			count--
		}
		if size == 0 || !out.add(v.Bytes()[:size], &where) {
			break
		}
		at += segment.Offset(size)
		bytes -= int64(size)
	}
	if err != nil {
		r.unreadable(from, at, err)
	}
	// The last view may hold batches for which the frame had no room.
	total := 0
	for _, p := range out.body {
		total += len(p)
	}
	n := 0
	for ; n < len(batches) && total >= batches[n].Bytes; n++ {
		total -= batches[n].Bytes
	}
	return batches[:n], err
}

func seek(log *segment.Log, pos segment.Position, memory bool) (segment.Offset, error) {
	if memory {
		return log.SeekMemory(pos)
	}
	return log.SeekPosition(pos)
}

func view(log *segment.Log, v *segment.View, at segment.Offset, maxBytes int, memory bool) error {
	if memory {
		return log.ViewMemory(v, at)
	}
	return log.View(v, at, maxBytes)
}

// unreadable tells the machine that a batch cannot be read. It does so on a goroutine, because the readers of ranges
// call it. mu is not held: it may read the batch behind the damage.
func (r *Replica) unreadable(pos segment.Position, at segment.Offset, err error) {
	var corrupt *segment.CorruptError
	if !errors.As(err, &corrupt) {
		return
	}
	r.node.store.log.Error("stored messages of a partition do not read back: they are fetched from another replica",
		"topic", r.pt.topic.Name, "partition", r.pt.number, "offset", at, "error", err)
	until := pos + 1
	for _, bad := range r.pt.log.Isolated() {
		if bad.From <= at && at < bad.To {
			if next, ok := r.positionAt(bad.To); ok {
				until = next
			}
		}
	}
	r.node.Spawn(func() {
		r.run(func() { r.step(&replicate.Event{Kind: replicate.EvCorrupt, Position: pos, Until: until}) })
	})
}

// positionAt is the position of the batch at offset at; false if it cannot be read.
func (r *Replica) positionAt(at segment.Offset) (segment.Position, bool) {
	if end, pos, _ := r.pt.log.End(); end == at {
		return pos, true
	}
	var v segment.View
	if err := r.pt.log.View(&v, at, 1); err != nil {
		return 0, false
	}
	defer v.Release()
	var h segment.Header
	if err := h.Decode(v.Bytes()); err != nil {
		return 0, false
	}
	return h.Position, true
}

// readRange reads old batches for a follower. The read may wait for the device, so it runs on a goroutine. mu is held.
func (r *Replica) readRange(a *replicate.Action) {
	to, request, from, bytes, count, delay := a.Node, a.Request, a.Position, a.Bytes, a.Count, time.Duration(a.DelayNs)
	r.node.Spawn(func() {
		if delay > 0 && !r.node.store.host.Pause(delay, r.node.store.stop) {
			return
		}
		r.node.readers <- struct{}{}
		defer func() { <-r.node.readers }()
		rd := &rangeRead{from: from, until: from, out: outgoings.Get().(*outgoing)}
		rd.batches, _ = r.collect(
			rd.out, nil, from, noPosition, min(count, wire.MaxBatchCount), min(bytes, maxRangeBytes), false)
		ev := replicate.Event{Kind: replicate.EvRead, Node: to, Request: request, Position: from, Until: from}
		if n := len(rd.batches); n > 0 {
			ev.Until, ev.Offset = rd.batches[n-1].Position+1, rd.batches[n-1].End()
			rd.until = ev.Until
		}
		r.run(func() {
			if r.reads == nil {
				r.reads = map[replicate.NodeID]*rangeRead{}
			}
			if old := r.reads[to]; old != nil {
				old.out.Release()
			}
			r.reads[to] = rd
			r.step(&ev)
			if r.reads[to] == rd { // the machine has not sent it
				delete(r.reads, to)
				rd.out.Release()
			}
		})
	})
}

// maxRangeBytes bounds the batches of one range, so that they fit into a frame with their descriptions.
const maxRangeBytes = netproto.MaxFrameBytes / 2

// receivedFrame is the frame whose message the machine handles.
type receivedFrame struct {
	d   *wire.Decoder
	buf *netproto.RecvBuf
}

// Receive passes a message of another replica to the machine. work says that the committer has work, which the caller
// announces once per frame. taken is false if this node has no active copy. It takes mu.
func (r *Replica) Receive(from replicate.NodeID, d *wire.Decoder, buf *netproto.RecvBuf) (work, taken bool) {
	r.mu.Lock()
	if taken = r.active(); taken {
		r.frame = &receivedFrame{d, buf}
		r.ev = replicate.Event{Kind: replicate.EvMessage, Node: from, Message: &d.Message}
		r.step(&r.ev)
		r.frame = nil
	}
	work, r.out.work = r.out.work, false
	r.unlock()
	return work, taken
}

// enqueueIncoming gives the batches of the frame from a.Position on to the committer. Each keeps a reference to the
// frame's buffer. mu is held.
func (r *Replica) enqueueIncoming(a *replicate.Action) {
	failpoint.Pass("engine/follower-append")
	d, buf := r.frame.d, r.frame.buf
	run, left := 0, 0
	if len(d.Runs) > 0 {
		left = d.Runs[0].Bytes
	}
	for i := range d.Message.Batches {
		b := &d.Message.Batches[i]
		for left == 0 {
			run++
			left = d.Runs[run].Bytes
		}
		left -= b.Bytes
		if b.Position < a.Position {
			continue
		}
		w := &d.Runs[run]
		buf.Retain()
		r.incoming = append(r.incoming, incomingBatch{
			frame: buf, data: d.Batch(i), offset: b.Offset, segment: w.Segment, base: w.Base, capacity: w.Capacity,
			generation: r.generation,
		})
	}
	r.out.work = true
}

// repair overwrites damaged batches with those that another replica sent. The frame's bytes are copied, and a goroutine
// writes them. mu is held.
func (r *Replica) repair(m *replicate.Message) {
	d := r.frame.d
	body := slices.Clone(d.Body)
	from, at, batches := m.Position, m.Batches[0].Offset, slices.Clone(m.Batches)
	r.node.Spawn(func() {
		until, err := r.repairRange(at, body, batches)
		if errors.Is(err, errBeginsBefore) && !r.hasBroken() {
			r.run(func() {
				for _, ev := range r.isolated() { // the machine asks again, for the whole damaged range
					r.step(&ev)
				}
			})
			return
		}
		if err != nil {
			r.notRepaired(err)
			return
		}
		r.node.store.log.Info("a damaged range was repaired from another replica",
			"topic", r.pt.topic.Name, "partition", r.pt.number, "bytes", len(body))
		if len(r.pt.log.Isolated()) == 0 {
			r.pt.flush.ReopenInbox()
		}
		r.run(func() { r.step(&replicate.Event{Kind: replicate.EvRepaired, Position: from, Until: until}) })
		r.pt.ResumeReaders()
	})
}

// notRepaired handles a repair that failed: the copy is given up if a file of it is broken. Otherwise the machine tries
// again.
func (r *Replica) notRepaired(err error) {
	if r.brokenFile() != nil {
		r.discard(err, nil)
		return
	}
	if now := r.node.Now(); r.loggedRepairAt.Load() == 0 || now-r.loggedRepairAt.Load() > int64(repairLogEvery) {
		r.loggedRepairAt.Store(now)
		r.node.store.log.Warn("a damaged range could not be repaired yet",
			"topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
	}
}

// repairLogEvery is the least time between two log lines about failed repairs of one copy. Repairs are tried more
// often.
const repairLogEvery = 10 * time.Second

// errBeginsBefore says that the damaged range begins before the bytes that were fetched.
var errBeginsBefore = errors.New("engine: what is damaged begins before the range that was fetched")

// repairRange writes body, which begins at offset at, over the isolated ranges of the log. Everything below until can
// be read afterwards. If body ends inside a damaged range, the part that body covers is repaired, and the machine asks
// for the rest. It waits for the disk and takes no lock of the replica.
func (r *Replica) repairRange(
	at segment.Offset, body []byte, batches []replicate.Batch,
) (until segment.Position, err error) {
	w := segment.NewWriter()
	defer w.Close()
	end := at + segment.Offset(len(body))
	for _, bad := range r.pt.log.Isolated() {
		if bad.To <= at || bad.From >= end {
			continue
		}
		if bad.From < at {
			return 0, errBeginsBefore
		}
		bad.To = min(bad.To, end)
		if err := r.pt.log.Repair(w, bad, body[bad.From-at:bad.To-at]); err != nil {
			return 0, err
		}
	}
	return batches[len(batches)-1].Position + 1, nil
}

// isolated makes events that tell a new machine which positions of the log cannot be read. A machine does not inherit
// such knowledge from the machine before it. The events name whole segments, because finding exact positions would mean
// reading. They end before what is in memory: the segment behind a damaged one may have no file yet.
func (r *Replica) isolated() (events []replicate.Event) {
	bad := r.pt.log.Isolated()
	if len(bad) == 0 {
		return nil
	}
	segments := r.pt.log.Segments()
	_, start, _ := r.pt.log.Start()
	for i := range bad {
		from := start
		_, until, _ := r.pt.log.End()
		if pos, ok := r.pt.log.InMemory(bad[i].To); ok {
			until = min(until, pos)
		}
		for j := range segments {
			s := &segments[j]
			switch {
			case s.Err != nil: // its header cannot be read
			case s.Start <= bad[i].From:
				from = max(from, s.FirstPosition)
			default:
				until = min(until, s.FirstPosition)
			}
		}
		if from = max(from, segment.Position(r.leaderStart.Load())); from < until {
			events = append(events, replicate.Event{Kind: replicate.EvCorrupt, Position: from, Until: until})
		}
	}
	return events
}
