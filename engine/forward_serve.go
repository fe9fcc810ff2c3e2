package engine

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// A put on the way to the leader:
//
//	topic 16 | partition u32 | delay ms u32 | run u32 | kind u8 | zero 3 | count u32 | content
//
// content by kind; count is the number of messages, 1 for a sealed batch:
//
//	0  messages                { length u32 | body }*
//	1  sealed by the producer  batch
//	2  with headers            { count u32 | { length u32 | name | length u32 | value }* | length u32 | body }*
//
// A put without headers is of kind 0, as it was before there were headers. The sending node has checked the headers' names.
//
// and its answer: first id u64 | reason u8 (wire.Reason). The frame's status says whether it was stored.
const (
	putHeadBytes = 16 + 4 + 4 + 4 + 4 + 4
	wireMessages = 0
	wireSealed   = 1
	wireHeadered = 2
	putAckBytes  = 9
)

// putBuffer is the bytes of one put on the way.
type putBuffer struct{ bytes []byte }

var putBuffers = sync.Pool{New: func() any { return new(putBuffer) }}

const maxPooledPutBytes = 1 << 20

// Release implements netproto.Releaser.
func (b *putBuffer) Release() {
	if cap(b.bytes) <= maxPooledPutBytes {
		putBuffers.Put(b)
	}
}

func (b *putBuffer) encode(l *lane, p *Put) {
	le := binary.LittleEndian
	kind := byte(wireMessages)
	switch {
	case p.kind == putSealed:
		kind = wireSealed
	case p.headered:
		kind = wireHeadered
	}
	id := l.pt.identity()
	dst := append(b.bytes[:0], id.Topic[:]...)
	dst = le.AppendUint32(dst, id.Partition)
	dst = le.AppendUint32(dst, p.deferMs)
	dst = le.AppendUint32(dst, l.run)
	dst = append(dst, kind, 0, 0, 0)
	if kind == wireSealed {
		dst = le.AppendUint32(dst, 1)
		b.bytes = append(dst, p.special.sealed...)
		return
	}
	dst = le.AppendUint32(dst, uint32(len(p.Messages)))
	for i, m := range p.Messages {
		if kind == wireHeadered {
			dst = le.AppendUint32(dst, uint32(len(p.Headers[i])))
			for _, kv := range p.Headers[i] {
				dst = append(le.AppendUint32(dst, uint32(len(kv.Key))), kv.Key...)
				dst = append(le.AppendUint32(dst, uint32(len(kv.Value))), kv.Value...)
			}
		}
		dst = append(le.AppendUint32(dst, uint32(len(m))), m...)
	}
	b.bytes = dst
}

// refusals are the runs of other nodes of which a put was refused as not stored: the rest of the run is refused, too.
type refusals struct {
	mu   sync.Mutex
	runs map[refusalKey]uint32
}

type refusalKey struct {
	from replicate.NodeID
	pt   *partition
}

func (r *refusals) note(from replicate.NodeID, pt *partition, run uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == nil {
		r.runs = map[refusalKey]uint32{}
	}
	r.runs[refusalKey{from, pt}] = run
}

func (r *refusals) has(from replicate.NodeID, pt *partition, run uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.runs) == 0 {
		return false
	}
	refused, ok := r.runs[refusalKey{from, pt}]
	return ok && refused == run
}

// removeNode is called when a connection ends: the runs end with it.
func (r *refusals) removeNode(from replicate.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.runs {
		if k.from == from {
			delete(r.runs, k)
		}
	}
}

// forwardedPut is a put that came from another node. Its messages lie in buf, which it keeps until it is answered. Its Done
// is reply.
type forwardedPut struct {
	Put
	sealed  specialPut
	f       *forwarder
	from    replicate.NodeID
	request uint64
	run     uint32
	buf     *netproto.RecvBuf
	bodies  [][]byte
	lists   [][]Header // of the messages, parts of headers
	headers []Header
}

var forwardedPuts = sync.Pool{New: func() any { return new(forwardedPut) }}

// handlePut takes a put of another node's client. It runs on the connection's reader and does not wait. It returns the
// partition whose inbox has the put, for the caller to announce; nil: it was refused and answered.
func (f *forwarder) handlePut(from replicate.NodeID, fr *netproto.Received) *partition {
	p := forwardedPuts.Get().(*forwardedPut)
	if p.Done == nil {
		p.Done = func(*Put) { p.reply(p.First, p.Err) }
	}
	f.lastRemotePut.Store(f.cn.now())
	p.f, p.from, p.request, p.forwarded = f, from, fr.Header.Request, true
	pt, run, err := p.decode(fr.Payload)
	p.run = run
	if err == nil {
		retainBuf(fr.Buf)
		p.buf = fr.Buf
		switch {
		case f.refusals.has(from, pt, run):
			err = ErrNoLeader // of the same run, and behind one that was refused
		default:
			if err = f.cn.e.measure(&p.Put); err == nil {
				p.part = pt
				err = pt.tryEnqueue(&p.Put)
			}
		}
	}
	if err == nil {
		return pt
	}
	if pt != nil && (errors.Is(err, ErrNoLeader) || errors.Is(err, ErrOverloaded) || errors.Is(err, ErrClosed)) {
		f.refusals.note(from, pt, run)
	}
	p.reply(0, err)
	return nil
}

// decode reads a put. The partition is nil if this node has never heard of it.
func (p *forwardedPut) decode(b []byte) (pt *partition, run uint32, err error) {
	le := binary.LittleEndian
	if len(b) < putHeadBytes {
		return nil, 0, ErrUnknown
	}
	pt = p.f.cn.partition(segment.Identity{Topic: uuid.UUID(b[:16]), Partition: le.Uint32(b[16:])})
	if pt == nil {
		return nil, 0, ErrNoLeader
	}
	p.Defer = time.Duration(le.Uint32(b[20:])) * time.Millisecond
	run = le.Uint32(b[24:])
	kind, count := b[28], le.Uint32(b[32:])
	b = b[putHeadBytes:]
	p.trusted = true
	switch kind {
	case wireSealed:
		p.sealed = specialPut{sealed: b}
		p.kind, p.special = putSealed, &p.sealed
		return pt, run, nil
	case wireMessages, wireHeadered:
		if p.decodeMessages(b, count, kind == wireHeadered) {
			return pt, run, nil
		}
	}
	return pt, run, ErrUnknown // damaged, or of a newer version
}

// decodeMessages reads what follows the head of a put that is not sealed.
func (p *forwardedPut) decodeMessages(b []byte, count uint32, headered bool) (ok bool) {
	for range count {
		var body []byte
		if headered {
			if b, ok = p.decodeHeaders(b); !ok {
				return false
			}
		}
		if body, b, ok = cutSized(b); !ok {
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

// decodeHeaders reads one message's headers.
func (p *forwardedPut) decodeHeaders(b []byte) (rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, false
	}
	count := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if count > MaxHeaderCount {
		return nil, false
	}
	from := len(p.headers)
	for range count {
		var kv Header
		if kv.Key, b, ok = cutSized(b); !ok {
			return nil, false
		}
		if kv.Value, b, ok = cutSized(b); !ok {
			return nil, false
		}
		p.headers = append(p.headers, kv)
	}
	p.lists = append(p.lists, p.headers[from:len(p.headers):len(p.headers)])
	return b, true
}

// cutSized reads a length and so many bytes.
func cutSized(b []byte) (v, rest []byte, ok bool) {
	if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
		return nil, nil, false
	}
	n := 4 + int(binary.LittleEndian.Uint32(b))
	return b[4:n:n], b[n:], true
}

// reply answers the node that sent the put, and makes p ready for another.
func (p *forwardedPut) reply(first ID, err error) {
	fr := netproto.Frame{Type: netproto.TypeForwardAck, Request: p.request, Head: make([]byte, putAckBytes)}
	binary.LittleEndian.PutUint64(fr.Head, uint64(first))
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
		fr.Head[8] = numberOf(wire.AnswerPut, err)
	default:
		fr.Status = netproto.StatusRejected
		fr.Head[8] = numberOf(wire.AnswerPut, err)
	}
	f, from := p.f, p.from
	if p.part != nil && fr.Status == netproto.StatusNotLeader { // it had been taken, and comes back from the inbox
		f.refusals.note(from, p.part, p.run)
	}
	if p.buf != nil {
		releaseBuf(p.buf)
	}
	clear(p.bodies)
	clear(p.lists)
	clear(p.headers)
	done := p.Done
	*p = forwardedPut{bodies: p.bodies[:0], lists: p.lists[:0], headers: p.headers[:0]}
	p.Done = done
	forwardedPuts.Put(p)
	f.reply(from, &fr)
}

// reply sends an answer, later if the connection's queue is full now. If the connection is lost, the other side answers its
// client that it does not know.
func (f *forwarder) reply(to replicate.NodeID, fr *netproto.Frame) {
	if err := f.cn.net.TrySend(to, fr); !errors.Is(err, netproto.ErrQueueFull) {
		return
	}
	own := *fr
	f.cn.spawn(func() {
		for errors.Is(f.cn.net.TrySend(to, &own), netproto.ErrQueueFull) && f.cn.sleep(f.cn.ctx, time.Millisecond) == nil {
			continue // the other side reads: it answers pings, or the connection ends
		}
	})
}
