package partition

import (
	"penstock/internal/failpoint"
	"penstock/internal/node/outgoing"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// marksLevel is the feature level from which on reports say what a copy knows to be committed and whether it is
// shortened, and rows list short members.
const marksLevel = 4

// send puts a message into the queue of the connection to a node. The message is dropped if it does not fit: the
// machines repeat messages that are not answered. mu is held.
func (r *Replica) send(to replicate.NodeID, m *replicate.Message) {
	if wire.CarriesBatches(m.Kind) {
		r.sendBatches(to, m)
		return
	}
	if m.Kind == replicate.MsgReport && r.node.store.Feature() < marksLevel {
		m.Until, m.Committed, m.Shortened = 0, 0, false // a node of a lower level would take the frame for a broken one
	}
	wire.Encode(&r.sent, r.pt.Identity(), m, nil)
	r.sent.Body, r.sent.Owner = nil, nil
	_ = r.node.Net.TrySend(to, &r.sent)
}

// sendBatches sends the batches from m.Position up to m.Until, as many as fit into a frame: those that were read for
// the event that is being handled, or else those that are in memory. If memory does not have them, the machine is told
// so (EvEvicted). sendBatches does not read them from the device, because mu is held.
func (r *Replica) sendBatches(to replicate.NodeID, m *replicate.Message) {
	out := r.read.out
	switch {
	case m.Position == m.Until: // the message only says where the log begins, and has no batches
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

// fromMemory pins the batches of m, or the first of them, in memory. If memory does not have the first one, it returns
// nil and queues EvEvicted for the machine. mu is held.
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

// receivedFrame is the frame whose message the machine is handling.
type receivedFrame struct {
	d   *wire.Decoder
	buf *netproto.RecvBuf
}

// Receive passes a message of another replica to the machine. work says that the committer has work; the caller
// announces that at the end of its burst of frames (Announce). taken is false if this node has no active copy. The
// goroutines of the connections call it. It takes mu.
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

// enqueueIncoming hands the batches of the frame from a.Position on to the committer. Each batch keeps a reference to
// the frame's buffer. mu is held.
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
