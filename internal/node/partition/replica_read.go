package partition

import (
	"errors"
	"time"

	"penstock/internal/node/logread"
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

// readerKey identifies a reader: each purpose of each other replica has its own.
type readerKey struct {
	to      replicate.NodeID
	purpose replicate.Purpose
}

// rangeReader is a goroutine that reads for another replica, because a read may wait for the device. It answers with
// EvRead. Replica.mu guards next.
type rangeReader struct {
	replica *Replica
	key     readerKey
	next    *rangeAsk // to be read when the present range is: the newest that the machine asked for; nil: none
}

// readRange reads batches for another replica. Each reader has one goroutine, however long the device takes. If the
// machine asks for more ranges meanwhile, it reads only the newest of them next. mu is held.
func (r *Replica) readRange(a *replicate.Action) {
	ask := &rangeAsk{
		to: a.Node, purpose: a.Purpose, request: a.Request, from: a.Position, bytes: min(a.Bytes, maxRangeBytes),
		count: min(a.Count, wire.MaxBatchCount), delay: time.Duration(a.DelayNs),
	}
	key := readerKey{a.Node, a.Purpose}
	if busy := r.reading[key]; busy != nil {
		busy.next = ask
		return
	}
	if r.reading == nil {
		r.reading = map[readerKey]*rangeReader{}
	}
	rr := &rangeReader{replica: r, key: key}
	r.reading[key] = rr
	r.node.Spawn(func() { rr.run(ask) })
}

// run reads ask, and then what the machine has asked for meanwhile, until nothing is left. Without a lock.
func (rr *rangeReader) run(ask *rangeAsk) {
	r := rr.replica
	for ask != nil {
		if ask.delay > 0 && !r.node.store.host.Pause(ask.delay, r.node.store.stop) {
			return
		}
		out := rr.read(ask)
		r.run(func() {
			rr.answer(ask, out)
			if ask, rr.next = rr.next, nil; ask == nil {
				delete(r.reading, rr.key)
			}
		})
	}
}

// maxRangeBytes bounds the size of the batches of one range, so that they fit into a frame together with their
// descriptions.
const maxRangeBytes = netproto.MaxFrameBytes / 2

// read reads the range ask. It first waits for its turn among the readers of the node, and then for the device. It
// holds no lock while it reads.
func (rr *rangeReader) read(ask *rangeAsk) *outgoing.Batches {
	r := rr.replica
	r.node.readers <- struct{}{}
	defer func() { <-r.node.readers }()
	out := outgoing.Get()
	if at, err := out.Collect(r.pt.log, ask.from, ^segment.Position(0), ask.count, ask.bytes); err != nil {
		rr.unreadable(ask.from+segment.Position(len(out.List)), at, err)
	}
	return out
}

// answer tells the machine which batches were read. The machine sends them or not; answer releases them if they are
// not sent. Replica.mu is held.
func (rr *rangeReader) answer(ask *rangeAsk, out *outgoing.Batches) {
	r := rr.replica
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
// damage from the device. It takes Replica.mu.
func (rr *rangeReader) unreadable(pos segment.Position, at segment.Offset, err error) {
	r := rr.replica
	var corrupt *segment.CorruptError
	if !errors.As(err, &corrupt) {
		return
	}
	r.node.store.log.Error("stored messages of a partition do not read back: they are fetched from another replica",
		"topic", r.pt.topic.Name, "partition", r.pt.number, "offset", at, "error", err)
	until := logread.Behind(r.pt.log, pos, at)
	r.run(func() { r.step(&replicate.Event{Kind: replicate.EvCorrupt, Position: pos, Until: until}) })
}
