package forward

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/internal/node/reason"
	"penstock/internal/node/route"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// AnswerMargin is how much longer than its own deadline a put waits for its leader's answer once it was sent. The put
// tells the leader how long it may still wait to be stored. The leader looks for late puts four times a second, so its
// answer, which says why nothing was stored, is up to half a second behind this node's deadline. (A leader of a version
// that does not read that time gives every forwarded put the whole PublishTimeout from when it arrives.)
const AnswerMargin = time.Second

// Forwarder sends puts to the nodes that lead their partitions, pipelined, and answers each put when its leader
// answers. While a partition has no leader, its puts wait in their lane: they are not stored, and may go to any later
// leader. When a connection is lost, the leader is asked for the answers to the puts in flight on it once it is
// connected again (askAgain); if it cannot be asked before another node leads, their outcome is unknown. A crash loses
// the puts that wait here; no producer was told that they are stored.
//
// mu guards the lanes and the puts in flight. Producers take it, the connections' readers when an answer arrives, and
// the ticker. Puts are answered, and the committer is told (Announce), only after mu was released.
//
// The puts of a partition keep their order, even when the leader changes: route.Lane decides when the next one leaves.
type Forwarder struct {
	n     Env
	peers *platform.Peers

	mu       lock.Mutex[lock.Forwarder] // taken after Replica.mu, before Inbox.mu
	lanes    map[*inbox.Inbox]*lane
	inFlight map[uint64]*inbox.Put // by request id
	bytes    int64                 // of all puts that wait or are in flight; at most Node.MaxBytes, or one put
	next     uint64
	closed   bool
	frame    netproto.Frame
	body     [1][]byte

	arrivals      arrivals
	lastRemotePut atomic.Int64 // when the last put of another node arrived, by Node.Now
	unknown       atomic.Uint64
}

// lane holds this node's puts for one partition, in order. It exists only while puts wait or are in flight, or the lane
// is frozen. Forwarder.mu guards it.
type lane struct {
	route.Lane
	pt      Partition
	box     *inbox.Inbox     // the partition's
	id      segment.Identity // the partition's
	waiting inbox.List       // not sent yet, or refused as not stored; sorted by Order
	ask     bool             // the connection of the puts in flight has ended, and the node was not asked for them yet
}

// New returns the Forwarder of a node. It sends nothing before the node has joined.
func New(n Env) *Forwarder {
	return &Forwarder{
		n: n, peers: n.Peers, lanes: map[*inbox.Inbox]*lane{}, inFlight: map[uint64]*inbox.Put{}, next: n.First,
	}
}

// LastPut returns when the last put of another node arrived, by Node.Now; 0: none has arrived.
func (f *Forwarder) LastPut() int64 { return f.lastRemotePut.Load() }

// defaultDeadline returns the deadline of a put that arrives now without one.
func (f *Forwarder) defaultDeadline() int64 { return f.n.Clock.NowNs() + int64(f.n.Timeout()) }

// lane returns the lane of pt, and creates it if there is none. mu is held.
func (f *Forwarder) lane(pt Partition) *lane {
	box := pt.Box()
	l := f.lanes[box]
	if l == nil {
		f.next++
		l = &lane{Lane: route.NewLane(uint32(f.next)), pt: pt, box: box, id: pt.Identity()}
		f.lanes[box] = l
		box.Parked.Store(true)
	}
	return l
}

// removeIdle removes the lane if it is empty. From then on, this node's puts for the partition enter its inbox if this
// node leads. mu is held.
func (f *Forwarder) removeIdle(l *lane) {
	if l.waiting.Empty() && l.Idle() && f.lanes[l.box] == l {
		delete(f.lanes, l.box)
		l.box.Parked.Store(false)
	}
}

// Enqueue takes a put that this node's inbox does not accept. Only partition.Partition.Enqueue calls it, through
// partition.Above, after it has set p.Box. If Enqueue returns nil, p is answered later.
func (f *Forwarder) Enqueue(pt Partition, p *inbox.Put) error {
	if p.DeadlineNs == 0 {
		p.DeadlineNs = f.defaultDeadline()
	}
	f.mu.Lock()
	switch {
	case f.closed:
		f.mu.Unlock()
		return errs.ErrClosed
	case f.bytes != 0 && f.bytes+int64(p.Bytes) > f.n.MaxBytes():
		over := &errs.LimitError{
			Err: errs.ErrOverloaded, What: "with this request the number of bytes that wait for the leaders on other nodes",
			Value: f.bytes + int64(p.Bytes), Most: f.n.MaxBytes(), Setting: "max-node-inbox-bytes",
		}
		f.mu.Unlock()
		f.n.Overloaded.Add(1)
		return over
	}
	f.bytes += int64(p.Bytes)
	l := f.lane(pt)
	p.Order = l.Last()
	l.waiting.Insert(p)
	announce := f.flush(l)
	f.mu.Unlock()
	if announce {
		pt.Announce(false)
	}
	return nil
}

// flush sends the waiting puts of the lane as far as possible. If this node has become the leader, flush moves them to
// the inbox instead, and returns true: the caller must call Announce after it has released mu. mu is held.
func (f *Forwarder) flush(l *lane) (announce bool) {
	defer f.removeIdle(l)
	for !l.waiting.Empty() {
		leader := f.leaderOf(l)
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
		size := int64(p.Bytes)                    // once p is in the inbox, it may be answered and reused
		if err := l.box.TryEnter(p); err != nil { // inbox full, or not the leader any more: the next tick retries
			l.waiting.PushFront(p)
			return announce
		}
		f.bytes -= size
		announce = true
	}
	return announce
}

// leaderOf returns what this node knows of the leader of a lane's partition.
func (f *Forwarder) leaderOf(l *lane) route.Leader {
	to := route.Leader{Here: l.box.Leading.Load(), Node: l.pt.Target()}
	to.Connected = !to.Here && f.connected(to.Node)
	return to
}

func (f *Forwarder) connected(node replicate.NodeID) bool {
	return node != 0 && node != f.peers.Self && f.peers.Network != nil && f.peers.Connected(node)
}

// trySend sends the first waiting put to the leader, and says whether it did. mu is held.
func (f *Forwarder) trySend(l *lane, to replicate.NodeID) bool {
	p := l.waiting.First()
	f.next++
	id := f.next
	buf := wire.NewBuffer()
	encode(buf, l, p, f.n.Clock.NowNs())
	f.body[0] = buf.Bytes
	f.frame = netproto.Frame{Type: netproto.TypeForwardPut, Request: id, Body: f.body[:], Owner: buf}
	f.inFlight[id] = p // set before sending: another goroutine handles the answer
	if err := f.peers.TrySend(to, &f.frame); err != nil {
		delete(f.inFlight, id)
		buf.Release()
		return false
	}
	l.waiting.Pop()
	p.SentTo = to
	l.Sent(to)
	return true
}

// Wake asks for answers that may be lost, and tries again to send the waiting puts of all lanes.
func (f *Forwarder) Wake() {
	f.mu.Lock()
	var work []Partition
	unknown := f.askAgain()
	for _, l := range f.sorted() {
		if f.flush(l) {
			work = append(work, l.pt)
		}
	}
	f.mu.Unlock()
	f.answerUnknown(unknown)
	for _, pt := range work {
		pt.Announce(false)
	}
}

// sorted returns the lanes in a fixed order, so that simulations are repeatable. mu is held.
func (f *Forwarder) sorted() []*lane {
	if len(f.lanes) == 0 {
		return nil
	}
	lanes := slices.AppendSeq(make([]*lane, 0, len(f.lanes)), maps.Values(f.lanes))
	slices.SortFunc(lanes, func(a, b *lane) int {
		return cmp.Or(bytes.Compare(a.id.Topic[:], b.id.Topic[:]), cmp.Compare(a.id.Partition, b.id.Partition))
	})
	return lanes
}

// Tick answers the puts whose deadline has passed, those in flight AnswerMargin later, and tries again to send the
// others. The ticker calls it every 50 ms.
func (f *Forwarder) Tick() {
	now := f.n.Clock.NowNs()
	var expired inbox.List
	f.mu.Lock()
	for _, l := range f.sorted() {
		late := l.waiting.TakeIf(func(p *inbox.Put) bool { return p.DeadlineNs < now })
		f.bytes -= late.Size()
		expired.Append(late)
		f.removeIdle(l)
	}
	unknown := f.removeInFlight(func(p *inbox.Put) bool { return p.DeadlineNs+int64(AnswerMargin) < now })
	f.mu.Unlock()
	expired.Answer(errs.ErrNoLeader)
	f.answerUnknown(unknown)
	f.Wake()
}

// answerUnknown answers puts of which this node will not learn whether they are stored. The caller holds no lock.
func (f *Forwarder) answerUnknown(puts inbox.List) {
	f.unknown.Add(uint64(puts.Count()))
	puts.Answer(errs.ErrUnknown)
}

// Unknown returns how many puts of this node were answered as unknown.
func (f *Forwarder) Unknown() uint64 { return f.unknown.Load() }

// removeInFlight removes the puts in flight that which selects, and returns them in the order in which they were sent.
// mu is held.
func (f *Forwarder) removeInFlight(which func(*inbox.Put) bool) (puts inbox.List) {
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

// answered notes that a put of the lane is no longer in flight. refused says that the put waits again. mu is held.
func (f *Forwarder) answered(l *lane, refused bool) {
	f.next++ // the number of the next run, in case this one is over
	l.Answered(refused, uint32(f.next))
	f.removeIdle(l)
}

// PeerLost handles the end of the connection to a node, where the puts in flight on it may be stored. ended says that
// the node's process has ended, too: then nobody knows that any more. Otherwise the node is asked: see askAgain.
func (f *Forwarder) PeerLost(node replicate.NodeID, ended bool) {
	f.arrivals.removeNode(node, ended)
	f.mu.Lock()
	var unknown inbox.List
	if ended {
		unknown = f.removeInFlight(func(p *inbox.Put) bool { return p.SentTo == node })
	}
	for _, l := range f.lanes { // if ended, nothing is in flight to the node any more
		if l.To() == node {
			l.Break()
			l.ask = true
		}
	}
	f.mu.Unlock()
	f.answerUnknown(unknown)
}

// askAgain asks what became of the puts whose connection has ended: the node to which they were sent, once it is
// connected again. It returns, as unknown, those of lanes whose node is not connected while another one leads: the puts
// behind them must not wait any longer. It looks at all puts in flight once, however many lanes ask. mu is held.
func (f *Forwarder) askAgain() (unknown inbox.List) {
	var asked, given map[*inbox.Inbox]*lane
	for box, l := range f.lanes {
		if !l.ask {
			continue
		}
		switch leader := f.leaderOf(l); {
		case l.To() == 0: // their time is over
			l.ask = false
		case f.connected(l.To()):
			asked = note(asked, box, l)
		case leader.Here || leader.Node != 0 && leader.Node != l.To():
			given = note(given, box, l)
			l.ask = false
		}
	}
	if given != nil {
		unknown = f.removeInFlight(func(p *inbox.Put) bool { return given[p.Box] != nil })
	}
	if asked == nil {
		return unknown
	}
	for _, id := range slices.Sorted(maps.Keys(f.inFlight)) {
		p := f.inFlight[id]
		l := asked[p.Box]
		if l == nil {
			continue
		}
		h := wire.PutHead{Topic: l.id.Topic, Partition: l.id.Partition, Run: l.Run(), Kind: wire.PutAsk}
		fr := netproto.Frame{Type: netproto.TypeForwardPut, Request: id, Head: wire.AppendPutHead(nil, &h)}
		if f.peers.TrySend(p.SentTo, &fr) != nil {
			return unknown // the next tick asks again
		}
	}
	for _, l := range asked {
		l.ask = false
	}
	return unknown
}

// note adds a lane to a map, which it makes if it is nil: usually there is nothing to note.
func note(m map[*inbox.Inbox]*lane, box *inbox.Inbox, l *lane) map[*inbox.Inbox]*lane {
	if m == nil {
		m = map[*inbox.Inbox]*lane{}
	}
	m[box] = l
	return m
}

// Close answers all puts: the waiting ones with ErrClosed, those in flight with ErrUnknown. Later puts get ErrClosed.
func (f *Forwarder) Close() {
	var waiting inbox.List
	f.mu.Lock()
	f.closed = true
	for _, l := range f.sorted() {
		waiting.Append(l.waiting.Take())
	}
	unknown := f.removeInFlight(func(*inbox.Put) bool { return true })
	f.mu.Unlock()
	waiting.Answer(errs.ErrClosed)
	f.answerUnknown(unknown)
}

// HandleAck handles a leader's answer to a put.
func (f *Forwarder) HandleAck(from replicate.NodeID, fr *netproto.Received) {
	ack, bad := wire.DecodePutAck(fr.Payload)
	f.mu.Lock()
	p := f.inFlight[fr.Header.Request]
	if p == nil || p.SentTo != from || bad != nil {
		f.mu.Unlock()
		return // the put was answered already: its deadline passed, or the connection was lost
	}
	delete(f.inFlight, fr.Header.Request)
	l := f.lanes[p.Box]
	status := fr.Header.Status
	if notStored(status) {
		late := p.DeadlineNs < f.n.Clock.NowNs()
		if late { // it may not be stored any more
			f.bytes -= int64(p.Bytes)
		} else { // not stored: send it again, to the current leader, when the run is over
			l.waiting.Insert(p)
		}
		f.answered(l, true)
		f.mu.Unlock()
		if late {
			inbox.Answer(p, errs.ErrNoLeader)
		}
		return
	}
	f.bytes -= int64(p.Bytes)
	f.answered(l, false)
	announce := !l.waiting.Empty() && f.flush(l)
	f.mu.Unlock()
	if announce {
		l.pt.Announce(false)
	}
	if status == netproto.StatusOK {
		p.First = message.ID(ack.First)
		inbox.Answer(p, nil)
		return
	}
	err := reason.OfPut(ack.Reason, ack.Text)
	want, other, ok := wire.SequenceOfAck(ack.First)
	if ok && p.Kind == inbox.Numbered && errors.Is(err, errs.ErrSequence) {
		err = &fold.SequenceError{Want: want, Got: p.Special.Header.BaseSequence, Other: other}
	}
	if errors.Is(err, errs.ErrUnknown) {
		f.unknown.Add(1)
	}
	inbox.Answer(p, err)
}

// Freeze stops the lane of pt until Reroute has inserted the puts of the inbox in front of the lane's.
func (f *Forwarder) Freeze(pt Partition) {
	f.mu.Lock()
	f.lane(pt).Freeze()
	f.mu.Unlock()
}

// Reroute moves the puts that are left in the inbox of a partition to the lane, after this node has lost the
// leadership. None of them was stored. They go in front of the puts that already wait in the lane, because those
// arrived later. The caller has called Freeze, so no put has left the lane since then, and has released Replica.mu.
func (f *Forwarder) Reroute(pt Partition) {
	var controls, refused, back inbox.List
	left := pt.Box().TakeForReroute()
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
			back.Push(p) // its own node sends it again; this node may be the last to hear of the new leader
		default:
			if p.DeadlineNs == 0 {
				p.DeadlineNs = f.defaultDeadline()
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
	controls.Answer(errs.ErrNoLeader)
	back.Answer(errs.ErrNoLeader)
	refused.Answer(errs.ErrClosed)
	if announce {
		pt.Announce(false)
	}
}
