package engine

import (
	"bytes"
	"cmp"
	"slices"
	"sync/atomic"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// forwarder brings puts of partitions that another node leads to that node, pipelined, and answers them when it does. A put
// waits in its lane while nobody leads: it is not stored, and may go to whoever leads next. Once it was sent and the
// connection is lost, its fate is unknown. A crash loses what waits here, of which nobody was told that it is stored.
//
// mu guards the lanes and what is on its way. Producers take it, the connection's reader when an answer comes, and the tick.
// Puts are answered, and the committer is told (announce), after it was released.
//
// The puts of a partition keep their order, whatever becomes of its leader:
//
//	this node                                  the leader
//	1 sends a, b, c as run 7
//	                                           2 leads no more: refuses a, and with it all of run 7
//	3 a comes back: nothing more is sent
//	4 b, c come back: sorted behind a
//	5 sends a, b, c to the new leader as run 8
//
// Without the runs the leader could refuse a for want of room and take b.
type forwarder struct {
	cn *clusterNode

	mu       lock.Mutex[lock.Forwarder] // taken after replica.mu, before partition.mu
	lanes    map[*partition]*lane
	inFlight map[uint64]*Put // by request
	bytes    int64           // of all puts that wait or are on their way; at most MaxNodeInboxBytes, or those of one put
	next     uint64
	closed   bool
	frame    netproto.Frame
	body     [1][]byte

	refusals      refusals
	lastRemotePut atomic.Int64 // when the last put of another node came, by clusterNode.now
}

// lane is this node's puts for one partition, as long as there are any.
type lane struct {
	pt       *partition
	waiting  putList // in order: not sent, or come back
	inFlight int     // on their way, all of them
	to       replicate.NodeID
	run      uint32 // of those
	broken   bool   // one of the run came back
	frozen   bool   // the inbox is about to be moved here, before what waits
	low      uint64 // orders given out are above low and up to high
	high     uint64
}

func newForwarder(cn *clusterNode) *forwarder {
	return &forwarder{cn: cn, lanes: map[*partition]*lane{}, inFlight: map[uint64]*Put{}, next: cn.e.firstRequest()}
}

const firstOrder = 1 << 62 // puts that are moved from an inbox get lower ones

// lane returns the lane of pt; mu is held.
func (f *forwarder) lane(pt *partition) *lane {
	l := f.lanes[pt]
	if l == nil {
		f.next++
		l = &lane{pt: pt, low: firstOrder, high: firstOrder, run: uint32(f.next)}
		f.lanes[pt] = l
		pt.rep.parked.Store(true)
	}
	return l
}

// removeIdle forgets a lane that is empty: from then on puts of a partition that this node leads go to its inbox.
func (f *forwarder) removeIdle(l *lane) {
	if l.waiting.empty() && l.inFlight == 0 && !l.frozen && f.lanes[l.pt] == l {
		delete(f.lanes, l.pt)
		l.pt.rep.parked.Store(false)
	}
}

// enqueue takes a put that this node's inbox does not: partition.enqueue calls it, which has set p.part. Unless it returns
// an error, p is answered.
func (f *forwarder) enqueue(pt *partition, p *Put) error {
	if p.deadline == 0 {
		p.deadline = f.cn.e.now().Add(f.cn.e.opts.PublishTimeout).UnixNano()
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
	l := f.lane(pt)
	l.high++
	p.order = l.high
	l.waiting.insert(p)
	announce := f.flush(l)
	f.mu.Unlock()
	if announce {
		pt.announce(false)
	}
	return nil
}

// flush sends what can be sent. If this node leads by now it moves the puts to its inbox and returns true: then the caller
// calls announce once mu is free. mu is held.
func (f *forwarder) flush(l *lane) (announce bool) {
	defer f.removeIdle(l)
	for !l.waiting.empty() && !l.frozen && !l.broken {
		if !l.pt.rep.leads.Load() {
			if !f.trySend(l) {
				return announce
			}
			continue
		}
		if l.inFlight > 0 {
			return announce // what was sent to the leader before is not answered yet
		}
		p := l.waiting.pop()
		size := int64(p.bytes)                     // once it is in the inbox it may be answered at any time
		if err := l.pt.tryEnqueue(p); err != nil { // it is full, or leads no more: the next tick tries again
			l.waiting.pushFront(p)
			return announce
		}
		f.bytes -= size
		announce = true
	}
	return announce
}

// trySend sends the first that waits to the leader, if there is one that can take it now; mu is held.
func (f *forwarder) trySend(l *lane) bool {
	to := replicate.NodeID(l.pt.rep.target.Load())
	if to == 0 || to == f.cn.self.ID || f.cn.net == nil || l.inFlight > 0 && l.to != to || !f.cn.net.Connected(to) {
		return false
	}
	p := l.waiting.head
	f.next++
	id := f.next
	buf := putBuffers.Get().(*putBuffer)
	buf.encode(l, p)
	f.body[0] = buf.bytes
	f.frame = netproto.Frame{Type: netproto.TypeForwardPut, Request: id, Body: f.body[:], Owner: buf}
	f.inFlight[id] = p // before it leaves: the answer comes on another goroutine
	if err := f.cn.net.TrySend(to, &f.frame); err != nil {
		delete(f.inFlight, id)
		buf.Release()
		return false
	}
	l.waiting.pop()
	l.to, p.to = to, to
	l.inFlight++
	return true
}

// wake tries again to send what waits.
func (f *forwarder) wake() {
	f.mu.Lock()
	var work []*partition
	for _, l := range f.sorted() {
		if f.flush(l) {
			work = append(work, l.pt)
		}
	}
	f.mu.Unlock()
	for _, pt := range work {
		pt.announce(false)
	}
}

// sorted are the lanes, always in the same order; mu is held.
func (f *forwarder) sorted() []*lane {
	if len(f.lanes) == 0 {
		return nil
	}
	lanes := make([]*lane, 0, len(f.lanes))
	for _, l := range f.lanes {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b *lane) int {
		return cmp.Or(bytes.Compare(a.pt.t.uuid[:], b.pt.t.uuid[:]), cmp.Compare(a.pt.number, b.pt.number))
	})
	return lanes
}

// tick also answers what has waited too long.
func (f *forwarder) tick() {
	now := f.cn.e.now().UnixNano()
	var expired putList
	f.mu.Lock()
	for _, l := range f.sorted() {
		late := l.waiting.takeIf(func(p *Put) bool { return p.deadline < now })
		f.bytes -= late.bytes
		expired.append(late)
		f.removeIdle(l)
	}
	unknown := f.removeInFlight(func(p *Put) bool { return p.deadline < now })
	f.mu.Unlock()
	expired.answer(ErrNoLeader)
	unknown.answer(ErrUnknown)
	f.wake()
}

// removeInFlight forgets those puts on the way that which chooses, and returns them, the first one sent first; mu is held.
func (f *forwarder) removeInFlight(which func(*Put) bool) (puts putList) {
	var ids []uint64
	for id, p := range f.inFlight {
		if which(p) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		p := f.inFlight[id]
		delete(f.inFlight, id)
		f.bytes -= int64(p.bytes)
		f.completeOne(f.lanes[p.part])
		puts.push(p)
	}
	return puts
}

// completeOne counts one that is not on its way any more; mu is held.
func (f *forwarder) completeOne(l *lane) {
	if l.inFlight--; l.inFlight == 0 {
		if l.broken {
			f.next++
			l.broken, l.run = false, uint32(f.next)
		}
		f.removeIdle(l)
	}
}

// peerLost ends what was sent to a node and not answered: it may be stored there.
func (f *forwarder) peerLost(node replicate.NodeID) {
	f.refusals.removeNode(node)
	f.mu.Lock()
	unknown := f.removeInFlight(func(p *Put) bool { return p.to == node })
	f.mu.Unlock()
	unknown.answer(ErrUnknown)
}

func (f *forwarder) close() {
	var waiting putList
	f.mu.Lock()
	f.closed = true
	for _, l := range f.sorted() {
		waiting.append(l.waiting.take())
	}
	unknown := f.removeInFlight(func(*Put) bool { return true })
	f.mu.Unlock()
	waiting.answer(ErrClosed)
	unknown.answer(ErrUnknown)
}

// handleAck takes the leader's answer.
func (f *forwarder) handleAck(from replicate.NodeID, fr *netproto.Received) {
	ack, bad := wire.DecodePutAck(fr.Payload)
	f.mu.Lock()
	p := f.inFlight[fr.Header.Request]
	if p == nil || p.to != from || bad != nil {
		f.mu.Unlock()
		return // answered already: too late, or the connection was lost
	}
	delete(f.inFlight, fr.Header.Request)
	l := f.lanes[p.part]
	status := fr.Header.Status
	if status == netproto.StatusNotLeader || status == netproto.StatusFull || status == netproto.StatusClosed {
		l.waiting.insert(p) // nothing was stored: it goes to whoever leads next, or again, when the run is over
		l.broken = true
		f.completeOne(l)
		f.mu.Unlock()
		return
	}
	f.bytes -= int64(p.bytes)
	f.completeOne(l)
	announce := !l.waiting.empty() && f.flush(l)
	f.mu.Unlock()
	if announce {
		l.pt.announce(false)
	}
	if status == netproto.StatusOK {
		p.First = ID(ack.First)
		p.answer(nil)
		return
	}
	p.answer(putErrorOf(ack.Reason))
}

// freeze makes puts of pt wait until reroute has moved the inbox before them.
func (f *forwarder) freeze(pt *partition) {
	f.mu.Lock()
	f.lane(pt).frozen = true
	f.mu.Unlock()
}

// reroute moves what waits in an inbox that is this node's no more to the node that leads now: nothing of it was stored. It
// goes before what already waits in the lane, which came later. freeze was called before, so nothing has left the lane
// since. Who released replica.mu calls it.
func (cn *clusterNode) reroute(pt *partition) {
	f := cn.forward
	var controls, refused, back putList
	inbox := pt.drainForReroute()
	f.mu.Lock()
	l := f.lane(pt)
	l.low -= uint64(inbox.count())
	order := l.low
	for p := inbox.pop(); p != nil; p = inbox.pop() {
		order++
		switch {
		case p.kind.internal():
			controls.push(p)
		case f.closed:
			refused.push(p)
		case p.forwarded:
			back.push(p) // it goes from where it came from: this node may hear of the new leader last, and end first
		default:
			if p.deadline == 0 {
				p.deadline = cn.e.now().Add(cn.e.opts.PublishTimeout).UnixNano()
			}
			p.order = order
			f.bytes += int64(p.bytes)
			l.waiting.insert(p)
		}
	}
	l.frozen = false
	announce := f.flush(l)
	f.removeIdle(l)
	f.mu.Unlock()
	controls.answer(ErrNoLeader)
	back.answer(ErrNoLeader)
	refused.answer(ErrClosed)
	if announce {
		pt.announce(false)
	}
}
