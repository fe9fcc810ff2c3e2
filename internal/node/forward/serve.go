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

// arrivals is what this node remembers of the puts of other nodes. The connections' readers call it, and the goroutine
// that answers a put. mu guards the fields below it, and the Answers; it is a leaf. It has route.RememberedPuts puts of
// each other node, and one refused run of each of that node's partitions until its connection ends. A crash loses it:
// then these puts have an unknown fate.
type arrivals struct {
	mu      lock.Mutex[lock.Arrivals]
	refused route.Refusals[sender]
	answers map[replicate.NodeID]*route.Answers[answer]
}

// sender is the node that sent a forwarded put, and the put's partition, which this node may not know yet.
type sender struct {
	from replicate.NodeID
	id   segment.Identity
}

// answer is what a forwarded put was answered. Its ack has no text, which may be long.
type answer struct {
	status netproto.Status
	ack    wire.PutAck
}

// arrived notes a put, and says whether it must be refused because an earlier put of its run was refused.
func (a *arrivals) arrived(p *forwardedPut) (refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.answers = a.answers[p.from]
	if p.answers == nil {
		p.answers = new(route.Answers[answer])
		if a.answers == nil {
			a.answers = map[replicate.NodeID]*route.Answers[answer]{}
		}
		a.answers[p.from] = p.answers
	}
	p.number = p.answers.Arrived(p.request)
	return a.refused.Refuses(p.sender(), p.run)
}

// answered notes the answer to a put. If the put was not stored, the rest of its run must be refused.
func (a *arrivals) answered(p *forwardedPut, ans answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ans.ack.Text = ""
	p.answers.Answered(p.number, ans)
	if notStored(ans.status) {
		a.refused.Note(p.sender(), p.run)
	}
}

// ask returns what became of a put, whose run is refused from now on if it did not arrive.
func (a *arrivals) ask(from sender, request uint64, run uint32) (route.Fate, answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.answers[from.from]
	if s == nil {
		return route.FateUnknown, answer{}
	}
	fate, ans := s.Ask(request)
	if fate == route.FateAbsent {
		a.refused.Note(from, run)
	}
	return fate, ans
}

// removeNode forgets the refused runs of a node whose connection has ended. If its process has ended, too, it asks for
// no answer any more.
func (a *arrivals) removeNode(node replicate.NodeID, ended bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused.Forget(func(s sender) bool { return s.from == node })
	if ended {
		delete(a.answers, node)
	}
}

// notStored says whether the status of an answer means that the put was not stored, and may go to the next leader.
func notStored(s netproto.Status) bool {
	return s == netproto.StatusNotLeader || s == netproto.StatusFull || s == netproto.StatusClosed
}

// forwardedPut is a put of another node. Its messages lie in buf, which the put retains until it is answered. Its Done
// calls reply.
type forwardedPut struct {
	inbox.Put
	own     inbox.Special // of a sealed or numbered put
	f       *Forwarder
	from    replicate.NodeID
	request uint64
	id      segment.Identity
	pt      Partition // nil: this node does not know it
	run     uint32
	answers *route.Answers[answer] // of from; arrivals.mu guards it
	number  uint64                 // of the put in answers
	buf     *netproto.RecvBuf
	bodies  [][]byte
	lists   [][]message.Header // the headers of each message, as parts of headers
	headers []message.Header
}

var forwardedPuts = sync.Pool{New: func() any { return new(forwardedPut) }}

// sender returns where the put came from.
func (p *forwardedPut) sender() sender { return sender{p.from, p.id} }

// HandlePut handles a ForwardPut. It runs on the connection's reader and does not wait. It returns the partition whose
// inbox holds the put, and the caller must call Announce for that partition. It returns nil if the put was refused and
// answered, or if the frame asks for an answer.
func (f *Forwarder) HandlePut(from replicate.NodeID, fr *netproto.Received) Partition {
	h, rest, err := wire.DecodePutHead(fr.Payload)
	if err == nil && h.Kind == wire.PutAsk {
		f.answerAgain(from, fr.Header.Request, &h)
		return nil
	}
	p := forwardedPuts.Get().(*forwardedPut)
	if p.Done == nil {
		p.Done = func(*inbox.Put) { p.reply(p.First, p.Err) }
	}
	f.lastRemotePut.Store(f.n.Now())
	p.f, p.from, p.request, p.Forwarded = f, from, fr.Header.Request, true
	if err == nil {
		err = p.decode(&h, rest)
	} else {
		err = errs.ErrUnknown
	}
	if refused := f.arrivals.arrived(p); err == nil && refused {
		err = errs.ErrNoLeader // an earlier put of the run was refused
	}
	if err == nil {
		fr.Buf.Retain()
		p.buf = fr.Buf
		if err = f.n.Limits.Measure(&p.Put); err == nil {
			pt := p.pt // once p is in the inbox, it may be answered and reused
			p.Box = pt.Box()
			if err = p.Box.TryEnter(&p.Put); err == nil {
				return pt
			}
		}
	}
	p.reply(0, err)
	return nil
}

// answerAgain answers a node that asks for the answer to an earlier put.
func (f *Forwarder) answerAgain(from replicate.NodeID, request uint64, h *wire.PutHead) {
	who := sender{from, segment.Identity{Topic: h.Topic, Partition: h.Partition}}
	fate, ans := f.arrivals.ask(who, request, h.Run)
	switch fate {
	case route.FateOpen:
		return
	case route.FateAbsent:
		ans.status = netproto.StatusNotLeader
	case route.FateUnknown:
		ans.status = netproto.StatusUnknown
	case route.FateAnswered:
	}
	f.peers.Reply(from, &netproto.Frame{
		Type: netproto.TypeForwardAck, Status: ans.status, Request: request, Head: wire.AppendPutAck(nil, &ans.ack),
	})
}

// decode decodes what follows the head of a ForwardPut.
func (p *forwardedPut) decode(h *wire.PutHead, b []byte) (err error) {
	p.run, p.id = h.Run, segment.Identity{Topic: h.Topic, Partition: h.Partition}
	if p.pt = p.f.n.Find(p.id); p.pt == nil {
		return errs.ErrNoLeader
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
		return nil
	case wire.PutNumbered, wire.PutTaken:
		var n wire.PutNumbers
		if n, b, err = wire.NextPutNumbers(b, h.Kind); err == nil && p.decodeMessages(b, h.Count, true) {
			p.own = inbox.Special{Producer: n.Name, Tenure: n.Tenure}
			p.own.Header.BaseSequence = n.Sequence
			p.Kind, p.Special = inbox.Numbered, &p.own
			return nil
		}
	case wire.PutMessages, wire.PutHeadered:
		if p.decodeMessages(b, h.Count, h.Kind == wire.PutHeadered) {
			return nil
		}
	}
	return errs.ErrUnknown // damaged, or of a newer version
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
	f.arrivals.answered(p, answer{fr.Status, ack})
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
