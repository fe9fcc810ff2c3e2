package engine

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

// forwarder brings puts of partitions that another node leads to that node, pipelined, and answers them when it does. A put waits here while
// nobody leads; it was not stored then, and may go to whoever leads next. Once it was sent and the connection is lost, its fate is unknown.
type forwarder struct {
	cn *clusterNode

	mu      sync.Mutex
	waiting map[*partition]*waitingPuts
	bytes   int64 // of all that waits here or elsewhere for an answer
	sent    map[uint64]*Put
	next    uint64
	closed  bool
	frame   netproto.Frame
	body    [1][]byte
}

// waitingPuts of one partition, in order.
type waitingPuts struct{ list putList }

func newForwarder(cn *clusterNode) *forwarder {
	return &forwarder{cn: cn, waiting: map[*partition]*waitingPuts{}, sent: map[uint64]*Put{}}
}

// A put on the way to the leader:
//
//	topic 16 | partition u32 | delay ms u32 | kind u8 | zero 3 | count u32 | { length u32 | body }*      kind 0: messages
//	                                                            | batch                                  kind 1: sealed by the producer
//
// and its answer: first id u64 | reason u8. The frame's status says whether it was stored.
const (
	putHeadBytes = 16 + 4 + 4 + 4 + 4
	putMessages  = 0
	putSealed    = 1
	putAckBytes  = 9
)

// put takes a put that this node's inbox does not. It is answered in any case, unless it returns an error. What a put says about who
// waits for it stays as it is.
func (f *forwarder) put(pt *partition, p *Put) error {
	p.next, p.part, p.seq = nil, pt, 0
	if p.deadline == 0 {
		p.deadline = time.Now().Add(f.cn.e.opts.PublishTimeout).UnixNano()
	}
	f.mu.Lock()
	switch {
	case f.closed:
		f.mu.Unlock()
		return ErrClosed
	case f.bytes != 0 && f.bytes+int64(p.bytes) > f.cn.e.opts.MaxNodeInboxBytes:
		f.mu.Unlock()
		f.cn.e.counters.Overloaded.Add(1)
		return ErrOverloaded
	}
	f.bytes += int64(p.bytes)
	w := f.waiting[pt]
	if w == nil && f.trySend(pt, p) {
		f.mu.Unlock()
		return nil
	}
	f.park(pt, p)
	f.mu.Unlock()
	return nil
}

// park appends p to what waits for a leader of pt; mu is held.
func (f *forwarder) park(pt *partition, p *Put) {
	w := f.waiting[pt]
	if w == nil {
		w = &waitingPuts{}
		f.waiting[pt] = w
	}
	p.next = nil
	if w.list.head == nil {
		w.list.head = p
	} else {
		w.list.tail.next = p
	}
	w.list.tail = p
}

// trySend sends p to the leader, if there is one that can take it now; mu is held.
func (f *forwarder) trySend(pt *partition, p *Put) bool {
	to := replicate.NodeID(pt.rep.target.Load())
	if to == 0 || to == f.cn.self.ID || f.cn.net == nil || !f.cn.net.Connected(to) {
		return false
	}
	f.next++
	id := f.next
	buf := putBuffers.Get().(*putBuffer)
	buf.encode(pt, p)
	f.body[0] = buf.bytes
	f.frame = netproto.Frame{Type: netproto.TypeForwardPut, Request: id, Body: f.body[:], Owner: buf}
	f.sent[id] = p // before it leaves: the answer comes on another goroutine
	p.to = to
	if err := f.cn.net.TrySend(to, &f.frame); err != nil {
		delete(f.sent, id)
		buf.Release()
		return false
	}
	return true
}

// putBuffer is the bytes of one put on the way.
type putBuffer struct{ bytes []byte }

var putBuffers = sync.Pool{New: func() any { return new(putBuffer) }}

const maxKeptPutBytes = 1 << 20

// Release implements netproto.Releaser.
func (b *putBuffer) Release() {
	if cap(b.bytes) <= maxKeptPutBytes {
		putBuffers.Put(b)
	}
}

func (b *putBuffer) encode(pt *partition, p *Put) {
	le := binary.LittleEndian
	kind := byte(putMessages)
	if p.own != nil {
		kind = putSealed
	}
	id := pt.identity()
	dst := append(b.bytes[:0], id.Topic[:]...)
	dst = le.AppendUint32(dst, id.Partition)
	dst = le.AppendUint32(dst, p.deferMs)
	dst = append(dst, kind, 0, 0, 0)
	if kind == putSealed {
		dst = le.AppendUint32(dst, 1)
		b.bytes = append(dst, p.own.sealed...)
		return
	}
	dst = le.AppendUint32(dst, uint32(len(p.Messages)))
	for _, m := range p.Messages {
		dst = append(le.AppendUint32(dst, uint32(len(m))), m...)
	}
	b.bytes = dst
}

// wake tries again to send what waits.
func (f *forwarder) wake() {
	f.mu.Lock()
	var local []*Put
	for pt, w := range f.waiting {
		for w.list.head != nil {
			p := w.list.head
			next := p.next
			if pt.rep.leads.Load() {
				f.bytes -= int64(p.bytes)
				p.next = nil
				local = append(local, p)
			} else if !f.trySend(pt, p) {
				break
			}
			w.list.head = next
		}
		if w.list.head == nil {
			delete(f.waiting, pt)
		}
	}
	f.mu.Unlock()
	for _, p := range local {
		if err := p.part.tryEnqueue(p); err != nil {
			p.answer(0, err)
			continue
		}
		p.part.announce(false)
	}
}

// tick also answers what has waited too long.
func (f *forwarder) tick() {
	now := time.Now().UnixNano()
	var expired, unknown *Put
	f.mu.Lock()
	for pt, w := range f.waiting {
		var kept putList
		for p := w.list.head; p != nil; {
			next := p.next
			p.next = nil
			if p.deadline < now {
				f.bytes -= int64(p.bytes)
				p.next, expired = expired, p
			} else if kept.head == nil {
				kept.head, kept.tail = p, p
			} else {
				kept.tail.next, kept.tail = p, p
			}
			p = next
		}
		if w.list = kept; kept.head == nil {
			delete(f.waiting, pt)
		}
	}
	for id, p := range f.sent {
		if p.deadline+int64(f.cn.e.opts.PublishTimeout) < now {
			delete(f.sent, id)
			f.bytes -= int64(p.bytes)
			p.next, unknown = unknown, p
		}
	}
	f.mu.Unlock()
	answerAll(expired, ErrNoLeader)
	answerAll(unknown, ErrUnknown)
	f.wake()
}

// answerAll ends a chain of puts that were not stored, or may have been.
func answerAll(chain *Put, err error) {
	for p := chain; p != nil; {
		next := p.next
		p.next = nil
		p.answer(0, err)
		p = next
	}
}

// lost ends what was sent to a node and not answered: it may be stored there.
func (f *forwarder) lost(node replicate.NodeID) {
	var unknown *Put
	f.mu.Lock()
	for id, p := range f.sent {
		if p.to == node {
			delete(f.sent, id)
			f.bytes -= int64(p.bytes)
			p.next, unknown = unknown, p
		}
	}
	f.mu.Unlock()
	answerAll(unknown, ErrUnknown)
}

func (f *forwarder) close() {
	var waiting, unknown *Put
	f.mu.Lock()
	f.closed = true
	for pt, w := range f.waiting {
		if w.list.head != nil {
			w.list.tail.next, waiting = waiting, w.list.head
		}
		delete(f.waiting, pt)
	}
	for id, p := range f.sent {
		delete(f.sent, id)
		p.next, unknown = unknown, p
	}
	f.mu.Unlock()
	answerAll(waiting, ErrClosed)
	answerAll(unknown, ErrUnknown)
}

// answered takes the leader's answer.
func (f *forwarder) answered(from replicate.NodeID, fr *netproto.Received) {
	f.mu.Lock()
	p := f.sent[fr.Header.Request]
	if p == nil || p.to != from || len(fr.Payload) < putAckBytes {
		f.mu.Unlock()
		return // answered already: too late, or the connection was lost
	}
	delete(f.sent, fr.Header.Request)
	status := fr.Header.Status
	if status == netproto.StatusNotLeader || status == netproto.StatusFull || status == netproto.StatusClosed {
		f.park(p.part, p) // nothing was stored: it goes to whoever leads next, or again
		f.mu.Unlock()
		return
	}
	f.bytes -= int64(p.bytes)
	f.mu.Unlock()
	if status == netproto.StatusOK {
		p.answer(ID(binary.LittleEndian.Uint64(fr.Payload)), nil)
		return
	}
	p.answer(0, reasonOf(fr.Payload[8]))
}

// reasons are the errors that travel in an answer; numbers are for ever.
var reasons = [...]error{
	0: ErrUnknown, 1: ErrNoSpace, 2: ErrReadOnly, 3: ErrDeadline, 4: ErrOverloaded, 5: ErrDisk, 6: ErrDeleted,
	7: ErrMessageTooBig, 8: ErrBatchTooBig, 9: ErrDeferTooLong, 10: ErrEmptyMessage, 11: ErrNoQuorum, 12: ErrNoLeader,
}

func reasonOf(n byte) error {
	if int(n) < len(reasons) {
		return reasons[n]
	}
	return ErrUnknown
}

func numberOf(err error) byte {
	for n, r := range reasons {
		if errors.Is(err, r) {
			return byte(n)
		}
	}
	return 0
}

// forwardedPut is a put that came from another node.
type forwardedPut struct {
	Put
	kind    ownPut
	f       *forwarder
	from    replicate.NodeID
	request uint64
	buf     *netproto.RecvBuf
	bodies  [][]byte
}

var forwardedPuts = sync.Pool{New: func() any { return new(forwardedPut) }}

// serve takes a put of another node's client. It runs on the connection's reader and does not wait. It returns the partition whose inbox has it,
// for the caller to announce.
func (f *forwarder) serve(from replicate.NodeID, fr *netproto.Received) *partition {
	p := forwardedPuts.Get().(*forwardedPut)
	if p.Done == nil {
		p.Done = func(*Put) { p.reply(p.First, p.Err) }
	}
	p.f, p.from, p.request = f, from, fr.Header.Request
	pt, err := p.decode(fr.Payload)
	if err == nil {
		fr.Buf.Retain()
		p.buf = fr.Buf
		if err = f.cn.e.measure(&p.Put); err == nil {
			err = pt.tryEnqueue(&p.Put)
		}
	}
	if err != nil {
		p.reply(0, err)
		return nil
	}
	return pt
}

func (p *forwardedPut) decode(b []byte) (*partition, error) {
	le := binary.LittleEndian
	if len(b) < putHeadBytes {
		return nil, ErrUnknown
	}
	pt := p.f.cn.partition(segment.Identity{Topic: uuid.UUID(b[:16]), Partition: le.Uint32(b[16:])})
	if pt == nil || !pt.rep.leads.Load() {
		return nil, ErrNoLeader
	}
	p.Defer = time.Duration(le.Uint32(b[20:])) * time.Millisecond
	kind, count := b[24], le.Uint32(b[28:])
	b = b[putHeadBytes:]
	if kind == putSealed {
		p.kind = ownPut{sealed: b}
		p.own = &p.kind
		return pt, nil
	}
	for range count {
		if len(b) < 4 || uint64(le.Uint32(b)) > uint64(len(b)-4) {
			return nil, ErrUnknown
		}
		n := le.Uint32(b)
		p.bodies = append(p.bodies, b[4:4+n])
		b = b[4+n:]
	}
	p.Messages = p.bodies
	return pt, nil
}

// reply answers the node that sent the put, and makes p ready for another.
func (p *forwardedPut) reply(first ID, err error) {
	var payload [putAckBytes]byte
	binary.LittleEndian.PutUint64(payload[:], uint64(first))
	fr := netproto.Frame{Type: netproto.TypeForwardAck, Request: p.request, Head: payload[:]}
	switch {
	case err == nil:
	case errors.Is(err, ErrNoLeader):
		fr.Status = netproto.StatusNotLeader
	case errors.Is(err, ErrOverloaded):
		fr.Status = netproto.StatusFull
	case errors.Is(err, ErrClosed):
		fr.Status = netproto.StatusClosed
	case errors.Is(err, ErrUnknown), errors.Is(err, ErrDisk):
		fr.Status = netproto.StatusUnknown
		payload[8] = numberOf(err)
	default:
		fr.Status = netproto.StatusRejected
		payload[8] = numberOf(err)
	}
	f, from := p.f, p.from
	if p.buf != nil {
		p.buf.Release()
	}
	clear(p.bodies)
	done := p.Done
	*p = forwardedPut{bodies: p.bodies[:0]}
	p.Done = done
	forwardedPuts.Put(p)
	// If it cannot be sent, the other side gives up waiting and says that the outcome is unknown.
	_ = f.cn.net.TrySend(from, &fr)
}

// reroute moves what waits in an inbox that is this node's no more to the node that leads now. Nothing of it was stored.
func (cn *clusterNode) reroute(pt *partition) {
	l := pt.takeForOthers()
	for p := l.head; p != nil; {
		next := p.next
		p.next = nil
		switch {
		case p.control():
			p.answer(0, ErrNoLeader)
		default:
			if err := cn.forward.put(pt, p); err != nil {
				p.answer(0, err)
			}
		}
		p = next
	}
}
