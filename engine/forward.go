package engine

import (
	"bytes"
	"cmp"
	"slices"
	"sync/atomic"

	"penstock/engine/inbox"
	"penstock/engine/reason"
	"penstock/engine/route"
	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// forwarder sends the puts of partitions that another node leads to that node, pipelined, and answers them when the
// leader does. While no node leads, a put waits in its lane: it is not stored, and may go to any later leader. When the
// connection is lost, the fate of the puts that were sent is unknown. A crash loses what waits here; nobody was told
// that it is stored.
//
// mu guards the lanes and the puts in flight. Producers take it, the connections' readers for an answer, and the
// ticker. Puts are answered, and the committer is told (announce), after mu was released.
//
// The puts of a partition keep their order, whatever becomes of its leader: route.Lane decides when the next one
// leaves.
type forwarder struct {
	cn *clusterNode

	mu       lock.Mutex[lock.Forwarder] // taken after replica.mu, before Inbox.mu
	lanes    map[*inbox.Inbox]*lane
	inFlight map[uint64]*inbox.Put // by request id
	bytes    int64                 // of all puts that wait or are in flight; at most MaxNodeInboxBytes, or one put
	next     uint64
	closed   bool
	frame    netproto.Frame
	body     [1][]byte

	refusals      refusals
	lastRemotePut atomic.Int64 // when the last put of another node came, by clusterNode.now
}

// lane has this node's puts for one partition, in their order. It exists only while there are any. forwarder.mu guards
// it.
type lane struct {
	route.Lane
	pt      *partition
	waiting inbox.List // not sent yet, or refused as not stored; sorted by order
}

func newForwarder(cn *clusterNode) *forwarder {
	return &forwarder{
		cn: cn, lanes: map[*inbox.Inbox]*lane{}, inFlight: map[uint64]*inbox.Put{}, next: cn.e.firstRequest(),
	}
}

// lane returns the lane of pt, and makes it if there is none. mu is held.
func (f *forwarder) lane(pt *partition) *lane {
	l := f.lanes[&pt.Inbox]
	if l == nil {
		f.next++
		l = &lane{Lane: route.NewLane(uint32(f.next)), pt: pt}
		f.lanes[&pt.Inbox] = l
		pt.Parked.Store(true)
	}
	return l
}

// removeIdle removes a lane that is empty. From then on, puts of a partition that this node leads go to its inbox. mu
// is held.
func (f *forwarder) removeIdle(l *lane) {
	if l.waiting.Empty() && l.Idle() && f.lanes[&l.pt.Inbox] == l {
		delete(f.lanes, &l.pt.Inbox)
		l.pt.Parked.Store(false)
	}
}

// enqueue takes a put that this node's inbox does not accept. Only partition.enqueue calls it; it has set p.box. If
// enqueue returns nil, p is answered later.
func (f *forwarder) enqueue(pt *partition, p *inbox.Put) error {
	if p.DeadlineNs == 0 {
		p.DeadlineNs = f.cn.e.now().Add(f.cn.e.opts.PublishTimeout).UnixNano()
	}
	f.mu.Lock()
	switch {
	case f.closed:
		f.mu.Unlock()
		return ErrClosed
	case f.bytes != 0 && f.bytes+int64(p.Bytes) > f.cn.e.opts.MaxNodeInboxBytes:
		f.mu.Unlock()
		f.cn.e.counters.Overloaded.Add(1)
		return ErrOverloaded
	}
	f.bytes += int64(p.Bytes)
	l := f.lane(pt)
	p.Order = l.Last()
	l.waiting.Insert(p)
	announce := f.flush(l)
	f.mu.Unlock()
	if announce {
		pt.announce(false)
	}
	return nil
}

// flush sends the waiting puts as far as possible. If this node has become the leader, flush moves them to its inbox
// and returns true; the caller calls announce after it has released mu. mu is held.
func (f *forwarder) flush(l *lane) (announce bool) {
	defer f.removeIdle(l)
	for !l.waiting.Empty() {
		leader := f.leaderOf(l.pt)
		switch l.Next(leader) {
		case route.Stay:
			return announce
		case route.Send:
			if !f.trySend(l, leader.Node) {
				return announce
			}
			continue
		}
		p := l.waiting.Pop()
		size := int64(p.Bytes)                   // once p is in the inbox, it may be answered and reused
		if err := l.pt.TryEnter(p); err != nil { // full, or no longer the leader: the next tick tries again
			l.waiting.PushFront(p)
			return announce
		}
		f.bytes -= size
		announce = true
	}
	return announce
}

// leaderOf returns what this node knows of the leader of pt.
func (f *forwarder) leaderOf(pt *partition) route.Leader {
	l := route.Leader{Here: pt.Leading.Load(), Node: replicate.NodeID(pt.rep.target.Load())}
	l.Connected = !l.Here && l.Node != 0 && l.Node != f.cn.self.ID && f.cn.net != nil && f.cn.net.Connected(l.Node)
	return l
}

// trySend sends the first waiting put to the leader, and says whether it did. mu is held.
func (f *forwarder) trySend(l *lane, to replicate.NodeID) bool {
	p := l.waiting.First()
	f.next++
	id := f.next
	buf := wire.NewBuffer()
	encode(buf, l, p)
	f.body[0] = buf.Bytes
	f.frame = netproto.Frame{Type: netproto.TypeForwardPut, Request: id, Body: f.body[:], Owner: buf}
	f.inFlight[id] = p // before it is sent: another goroutine handles the answer
	if err := f.cn.net.TrySend(to, &f.frame); err != nil {
		delete(f.inFlight, id)
		buf.Release()
		return false
	}
	l.waiting.Pop()
	p.SentTo = to
	l.Sent(to)
	return true
}

// wake tries again to send what waits in all lanes.
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

// sorted returns the lanes in a fixed order, so that simulations can be repeated. mu is held.
func (f *forwarder) sorted() []*lane {
	if len(f.lanes) == 0 {
		return nil
	}
	lanes := make([]*lane, 0, len(f.lanes))
	for _, l := range f.lanes {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b *lane) int {
		return cmp.Or(bytes.Compare(a.pt.t.uuid[:], b.pt.t.uuid[:]), cmp.Compare(a.pt.Number(), b.pt.Number()))
	})
	return lanes
}

// tick answers the puts whose deadline has passed, and tries again to send the others. The ticker calls it every 50 ms.
func (f *forwarder) tick() {
	now := f.cn.e.now().UnixNano()
	var expired inbox.List
	f.mu.Lock()
	for _, l := range f.sorted() {
		late := l.waiting.TakeIf(func(p *inbox.Put) bool { return p.DeadlineNs < now })
		f.bytes -= late.Size()
		expired.Append(late)
		f.removeIdle(l)
	}
	unknown := f.removeInFlight(func(p *inbox.Put) bool { return p.DeadlineNs < now })
	f.mu.Unlock()
	expired.Answer(ErrNoLeader)
	unknown.Answer(ErrUnknown)
	f.wake()
}

// removeInFlight removes the puts in flight that which selects, and returns them in the order in which they were sent.
// mu is held.
func (f *forwarder) removeInFlight(which func(*inbox.Put) bool) (puts inbox.List) {
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
		f.bytes -= int64(p.Bytes)
		f.answered(f.lanes[p.Box], false)
		puts.Push(p)
	}
	return puts
}

// answered notes that a put of the lane is no longer in flight; refused: it waits again. mu is held.
func (f *forwarder) answered(l *lane, refused bool) {
	f.next++ // the number of the next run, if this one is over
	l.Answered(refused, uint32(f.next))
	f.removeIdle(l)
}

// peerLost answers the puts that were sent to a node whose connection is lost with ErrUnknown: they may be stored.
func (f *forwarder) peerLost(node replicate.NodeID) {
	f.refusals.removeNode(node)
	f.mu.Lock()
	unknown := f.removeInFlight(func(p *inbox.Put) bool { return p.SentTo == node })
	f.mu.Unlock()
	unknown.Answer(ErrUnknown)
}

func (f *forwarder) close() {
	var waiting inbox.List
	f.mu.Lock()
	f.closed = true
	for _, l := range f.sorted() {
		waiting.Append(l.waiting.Take())
	}
	unknown := f.removeInFlight(func(*inbox.Put) bool { return true })
	f.mu.Unlock()
	waiting.Answer(ErrClosed)
	unknown.Answer(ErrUnknown)
}

// handleAck handles a leader's answer to a put.
func (f *forwarder) handleAck(from replicate.NodeID, fr *netproto.Received) {
	ack, bad := wire.DecodePutAck(fr.Payload)
	f.mu.Lock()
	p := f.inFlight[fr.Header.Request]
	if p == nil || p.SentTo != from || bad != nil {
		f.mu.Unlock()
		return // the put was answered before: its deadline passed, or the connection was lost
	}
	delete(f.inFlight, fr.Header.Request)
	l := f.lanes[p.Box]
	status := fr.Header.Status
	if status == netproto.StatusNotLeader || status == netproto.StatusFull || status == netproto.StatusClosed {
		l.waiting.Insert(p) // not stored: send it again, to whoever leads, when the run is over
		f.answered(l, true)
		f.mu.Unlock()
		return
	}
	f.bytes -= int64(p.Bytes)
	f.answered(l, false)
	announce := !l.waiting.Empty() && f.flush(l)
	f.mu.Unlock()
	if announce {
		l.pt.announce(false)
	}
	if status == netproto.StatusOK {
		p.First = ID(ack.First)
		inbox.Answer(p, nil)
		return
	}
	inbox.Answer(p, reason.OfPut(ack.Reason))
}

// freeze stops the lane of pt until reroute has inserted the inbox before its puts.
func (f *forwarder) freeze(pt *partition) {
	f.mu.Lock()
	f.lane(pt).Freeze()
	f.mu.Unlock()
}

// reroute moves the puts in the inbox of a partition that this node no longer leads to the lane. Nothing of them was
// stored. They go before those that already wait in the lane, which came later. The caller has called freeze before, so
// that nothing has left the lane since, and has released replica.mu.
func (cn *clusterNode) reroute(pt *partition) {
	f := cn.forward
	var controls, refused, back inbox.List
	left := pt.TakeForReroute()
	f.mu.Lock()
	l := f.lane(pt)
	order := l.First(left.Count())
	for p := left.Pop(); p != nil; p, order = left.Pop(), order+1 {
		switch {
		case p.Kind.Internal():
			controls.Push(p)
		case f.closed:
			refused.Push(p)
		case p.Forwarded:
			back.Push(p) // it is sent from where it came from; this node may hear of the new leader last
		default:
			if p.DeadlineNs == 0 {
				p.DeadlineNs = cn.e.now().Add(cn.e.opts.PublishTimeout).UnixNano()
			}
			p.Order = order
			f.bytes += int64(p.Bytes)
			l.waiting.Insert(p)
		}
	}
	l.Thaw()
	announce := f.flush(l)
	f.removeIdle(l)
	f.mu.Unlock()
	controls.Answer(ErrNoLeader)
	back.Answer(ErrNoLeader)
	refused.Answer(ErrClosed)
	if announce {
		pt.announce(false)
	}
}
