package partition

import (
	"errors"
	"time"

	"penstock/internal/node/outgoing"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// rangeRead holds batches that were read for another replica. It is set while the machine handles EvRead, and
// sendBatches takes out from it. Replica.mu guards it.
type rangeRead struct {
	to   replicate.NodeID
	from segment.Position
	out  *outgoing.Batches // nil: nothing was read, or it was sent
}

// rangeAsk is a range to read: the values of an ActRead.
type rangeAsk struct {
	to      replicate.NodeID
	purpose replicate.Purpose
	request uint64
	from    segment.Position
	bytes   int64
	count   int
	delay   time.Duration
}

// reader identifies a goroutine that reads for another replica: each purpose has its own.
type reader struct {
	to      replicate.NodeID
	purpose replicate.Purpose
}

// readRange reads batches for another replica. The read may wait for the device, so it runs on a goroutine, which
// answers with EvRead. Each reader has one goroutine, however long the device takes. If the machine asks for more
// ranges meanwhile, the goroutine reads only the newest of them next. mu is held.
func (r *Replica) readRange(a *replicate.Action) {
	ask := &rangeAsk{
		to: a.Node, purpose: a.Purpose, request: a.Request, from: a.Position, bytes: min(a.Bytes, maxRangeBytes),
		count: min(a.Count, wire.MaxBatchCount), delay: time.Duration(a.DelayNs),
	}
	who := reader{a.Node, a.Purpose}
	if _, busy := r.reading[who]; busy {
		r.reading[who] = ask
		return
	}
	if r.reading == nil {
		r.reading = map[reader]*rangeAsk{}
	}
	r.reading[who] = nil
	r.node.Spawn(func() {
		for ask != nil {
			if ask.delay > 0 && !r.node.store.host.Pause(ask.delay, r.node.store.stop) {
				return
			}
			out := r.readFor(ask)
			r.run(func() {
				r.answerRead(ask, out)
				if ask = r.reading[who]; ask == nil {
					delete(r.reading, who)
				} else {
					r.reading[who] = nil
				}
			})
		}
	})
}

// maxRangeBytes bounds the size of the batches of one range, so that they fit into a frame together with their
// descriptions.
const maxRangeBytes = netproto.MaxFrameBytes / 2

// readFor reads the range ask. It first waits for its turn among the readers of the node, and then for the device. It
// holds no lock while it reads.
func (r *Replica) readFor(ask *rangeAsk) *outgoing.Batches {
	r.node.readers <- struct{}{}
	defer func() { <-r.node.readers }()
	out := outgoing.Get()
	if at, err := out.Collect(r.pt.log, ask.from, noPosition, ask.count, ask.bytes); err != nil {
		r.unreadable(ask.from+segment.Position(len(out.List)), at, err)
	}
	return out
}

// answerRead tells the machine which batches were read. The machine sends them or not; answerRead releases them if they
// are not sent. mu is held.
func (r *Replica) answerRead(ask *rangeAsk, out *outgoing.Batches) {
	ev := replicate.Event{
		Kind: replicate.EvRead, Node: ask.to, Request: ask.request, Position: ask.from, Until: ask.from, Purpose: ask.purpose,
	}
	if n := len(out.List); n > 0 {
		last := &out.List[n-1]
		ev.Until, ev.Offset, ev.Epoch, ev.CRC = last.Position+1, last.End(), last.Epoch, last.CRC
	}
	r.read = rangeRead{ask.to, ask.from, out}
	r.stepOne(&ev)
	r.dropRead()
	r.stepFeed()
}

// dropRead releases the batches that were read and not sent. mu is held.
func (r *Replica) dropRead() {
	if r.read.out != nil {
		r.read.out.Release()
		r.read.out = nil
	}
}

// unreadable tells the machine that the batch at pos, at offset at, cannot be read. It may read the batch behind the
// damage from the device. It takes mu.
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
	r.run(func() { r.step(&replicate.Event{Kind: replicate.EvCorrupt, Position: pos, Until: until}) })
}

// positionAt returns the position of the batch at offset at, or false if that batch cannot be read.
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
