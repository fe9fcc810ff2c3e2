package forward

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/clock"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/reason"
	"penstock/internal/node/route"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// encode encodes p as the payload of a ForwardPut. A put without headers is sent as a kind that older versions know.
// The receiver need not check the names of headers, because this node has checked them. nowNs is the engine's time: the
// receiver, whose clock may be another, gets the time that is left until the put's deadline.
func encode(b *wire.Buffer, l *lane, p *inbox.Put, nowNs int64) {
	h := wire.PutHead{Topic: l.id.Topic, Partition: l.id.Partition, DelayMs: p.DeferMs, Run: l.Run()}
	if p.DeadlineNs != 0 {
		h.WaitMs = uint32(min(max(clock.CeilMs(p.DeadlineNs-nowNs), 1), wire.MaxPutWaitMs))
	}
	var numbers wire.PutNumbers
	switch {
	case p.Kind == inbox.Sealed:
		h.Kind, h.Count = wire.PutSealed, 1
		b.Bytes = append(wire.AppendPutHead(b.Bytes[:0], &h), p.Special.Sealed...)
		return
	case p.Kind == inbox.Numbered:
		numbers = wire.PutNumbers{
			Name: p.Special.Producer, Tenure: p.Special.Tenure, Sequence: p.Special.Header.BaseSequence,
		}
		h.Kind = numbers.Kind()
	case p.Headered:
		h.Kind = wire.PutHeadered
	}
	h.Count = uint32(len(p.Messages))
	dst := wire.AppendPutHead(b.Bytes[:0], &h)
	if p.Kind == inbox.Numbered {
		dst = wire.AppendPutNumbers(dst, &numbers)
	}
	for i, m := range p.Messages {
		switch {
		case p.Headered:
			dst = wire.AppendPutHeaders(dst, p.Headers[i])
		case p.Kind == inbox.Numbered:
			dst = wire.AppendPutHeaders(dst, nil)
		}
		dst = wire.AppendPutBody(dst, m)
	}
	b.Bytes = dst
}

// refusals wraps route.Refusals for the puts of other nodes. mu guards runs; it is a leaf.
type refusals struct {
	mu   lock.Mutex[lock.Refusals]
	runs route.Refusals[sender]
}

// sender is the node that sent a forwarded put, and the inbox of the put's partition.
type sender struct {
	from replicate.NodeID
	box  *inbox.Inbox
}

func (r *refusals) note(from replicate.NodeID, box *inbox.Inbox, run uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs.Note(sender{from, box}, run)
}

func (r *refusals) has(from replicate.NodeID, box *inbox.Inbox, run uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs.Refuses(sender{from, box}, run)
}

// removeNode forgets the runs of a node whose connection has ended.
func (r *refusals) removeNode(from replicate.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs.Forget(func(s sender) bool { return s.from == from })
}

// forwardedPut is a put of another node. Its messages lie in buf, which the put retains until it is answered. Its Done
// calls reply.
type forwardedPut struct {
	inbox.Put
	own     inbox.Special // of a sealed or numbered put
	f       *Forwarder
	from    replicate.NodeID
	request uint64
	run     uint32
	buf     *netproto.RecvBuf
	bodies  [][]byte
	lists   [][]message.Header // the headers of each message, as parts of headers
	headers []message.Header
}

var forwardedPuts = sync.Pool{New: func() any { return new(forwardedPut) }}

// HandlePut handles a ForwardPut. It runs on the connection's reader and does not wait. It returns the partition whose
// inbox holds the put, and the caller must call Announce for that partition. It returns nil if the put was refused and
// answered.
func (f *Forwarder) HandlePut(from replicate.NodeID, fr *netproto.Received) Partition {
	p := forwardedPuts.Get().(*forwardedPut)
	if p.Done == nil {
		p.Done = func(*inbox.Put) { p.reply(p.First, p.Err) }
	}
	f.lastRemotePut.Store(f.n.Now())
	p.f, p.from, p.request, p.Forwarded = f, from, fr.Header.Request, true
	pt, run, err := p.decode(fr.Payload)
	p.run = run
	if err == nil {
		fr.Buf.Retain()
		p.buf = fr.Buf
		switch {
		case f.refusals.has(from, pt.Box(), run):
			err = errs.ErrNoLeader // an earlier put of the run was refused
		default:
			if err = f.n.Limits.Measure(&p.Put); err == nil {
				p.Box = pt.Box()
				err = pt.Box().TryEnter(&p.Put)
			}
		}
	}
	if err == nil {
		return pt
	}
	notStored := errors.Is(err, errs.ErrNoLeader) || errors.Is(err, errs.ErrOverloaded) || errors.Is(err, errs.ErrClosed)
	if pt != nil && notStored {
		f.refusals.note(from, pt.Box(), run)
	}
	p.reply(0, err)
	return nil
}

// decode decodes a ForwardPut. The partition is nil if this node does not know it.
func (p *forwardedPut) decode(b []byte) (pt Partition, run uint32, err error) {
	h, b, err := wire.DecodePutHead(b)
	if err != nil {
		return nil, 0, errs.ErrUnknown
	}
	pt = p.f.n.Find(segment.Identity{Topic: h.Topic, Partition: h.Partition})
	if pt == nil {
		return nil, 0, errs.ErrNoLeader
	}
	p.Defer = time.Duration(h.DelayMs) * time.Millisecond
	if h.WaitMs != 0 {
		p.DeadlineNs = p.f.n.Clock.NowNs() + int64(h.WaitMs)*int64(time.Millisecond)
	}
	p.Trusted = true
	switch h.Kind {
	case wire.PutSealed:
		p.own = inbox.Special{Sealed: b, Payer: fmt.Sprint("node ", p.from)}
		p.NoWait = true // the connection's reader does not wait; the other node has waited
		p.Kind, p.Special = inbox.Sealed, &p.own
		return pt, h.Run, nil
	case wire.PutNumbered, wire.PutTaken:
		var n wire.PutNumbers
		if n, b, err = wire.NextPutNumbers(b, h.Kind); err == nil && p.decodeMessages(b, h.Count, true) {
			p.own = inbox.Special{Producer: n.Name, Tenure: n.Tenure}
			p.own.Header.BaseSequence = n.Sequence
			p.Kind, p.Special = inbox.Numbered, &p.own
			return pt, h.Run, nil
		}
	case wire.PutMessages, wire.PutHeadered:
		if p.decodeMessages(b, h.Count, h.Kind == wire.PutHeadered) {
			return pt, h.Run, nil
		}
	}
	return pt, h.Run, errs.ErrUnknown // damaged, or of a newer version
}

// decodeMessages decodes the messages behind the head of a put that is not sealed.
func (p *forwardedPut) decodeMessages(b []byte, count uint32, headered bool) (ok bool) {
	var err error
	for range count {
		if headered {
			from := len(p.headers)
			if p.headers, b, err = wire.NextPutHeaders(p.headers, b); err != nil {
				return false
			}
			p.lists = append(p.lists, p.headers[from:len(p.headers):len(p.headers)])
		}
		var body []byte
		if body, b, err = wire.NextPutBody(b); err != nil {
			return false
		}
		p.bodies = append(p.bodies, body)
	}
	p.Messages = p.bodies
	if headered {
		p.Headers = p.lists
	}
	return len(b) == 0
}

// reply answers the node that sent the put, and puts p back into the pool.
func (p *forwardedPut) reply(first message.ID, err error) {
	fr := netproto.Frame{Type: netproto.TypeForwardAck, Request: p.request}
	ack := wire.PutAck{First: uint64(first)}
	switch {
	case err == nil:
	case errors.Is(err, errs.ErrNoLeader):
		fr.Status = netproto.StatusNotLeader
	case errors.Is(err, errs.ErrOverloaded):
		fr.Status = netproto.StatusFull
	case errors.Is(err, errs.ErrClosed):
		fr.Status = netproto.StatusClosed
	case errors.Is(err, errs.ErrUnknown), errors.Is(err, errs.ErrDisk):
		fr.Status = netproto.StatusUnknown
		ack.Reason = reason.Number(wire.AnswerPut, err)
	default:
		fr.Status = netproto.StatusRejected
		ack.Reason = reason.Number(wire.AnswerPut, err)
		var numbers *fold.SequenceError
		if errors.As(err, &numbers) {
			ack.First = wire.AckSequence(numbers.Want, numbers.Other)
		} else if ack.Reason != 0 {
			ack.Text = reason.TextOfPut(ack.Reason, err)
		}
	}
	fr.Head = wire.AppendPutAck(make([]byte, 0, wire.PutAckBytes), &ack)
	f, from := p.f, p.from
	if p.Box != nil && fr.Status == netproto.StatusNotLeader { // p was in an inbox, and was refused there
		f.refusals.note(from, p.Box, p.run)
	}
	if p.buf != nil {
		p.buf.Release()
	}
	clear(p.bodies)
	clear(p.lists)
	clear(p.headers)
	done := p.Done
	*p = forwardedPut{bodies: p.bodies[:0], lists: p.lists[:0], headers: p.headers[:0]}
	p.Done = done
	forwardedPuts.Put(p)
	f.peers.Reply(from, &fr)
}
