package part

import (
	"penstock/engine/outgoing"
	"penstock/internal/failpoint"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

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

// sendBatches sends the batches from Position up to Until: what was read for the event that is being handled, or else
// what memory has, as many as fit into a frame. If memory does not have them, the machine hears so: mu is held, and
// nobody waits for the device with it.
func (r *Replica) sendBatches(to replicate.NodeID, m *replicate.Message) {
	out := r.read.out
	switch {
	case m.Position == m.Until: // it says where the log begins, and has no batches
		out = outgoing.Get()
	case out != nil && r.read.to == to && r.read.from == m.Position:
		r.read.out = nil
	default:
		if out = r.fromMemory(to, m); out == nil {
			return
		}
	}
	if m.Batches = out.List; len(m.Batches) > 0 {
		m.FirstID, m.NextID = m.Batches[0].FirstID, m.Batches[len(m.Batches)-1].NextID()
	}
	wire.Encode(&r.sent, r.pt.Identity(), m, out.Runs)
	r.sent.Body, r.sent.Owner = out.Body, out
	if err := r.node.Net.TrySend(to, &r.sent); err != nil {
		out.Release()
	}
}

// fromMemory pins the batches of m, or the first of them. If memory does not have them it returns nil, and the machine
// gets an event. mu is held.
func (r *Replica) fromMemory(to replicate.NodeID, m *replicate.Message) *outgoing.Batches {
	out, log := outgoing.Get(), r.pt.log
	_, err := out.Collect(log.Memory(), m.Position, m.Until, wire.MaxBatchCount, r.node.replication.MaxSendBytes)
	if n := len(out.List); n > 0 {
		m.Until = m.Position + segment.Position(n)
		return out
	}
	out.Release()
	if err != segment.ErrNotInMemory {
		return nil // the log was cut, or is closed
	}
	until, ok := log.InMemory(0)
	if !ok {
		_, until, _ = log.End()
	}
	r.feed = append(r.feed, replicate.Event{
		Kind: replicate.EvEvicted, Node: to, Request: m.Request, Position: m.Position, Until: until,
	})
	return nil
}

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
