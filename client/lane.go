package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// lane is one producer at one partition. Its goroutine keeps a connection to the partition's leader, does what flow
// decides, and calls done functions. While nothing is on its way, a caller of ProduceSync may do that instead: see
// lone.go.
type lane struct {
	producer  *Producer
	partition int
	kicked    chan struct{}
	ended     chan struct{} // closed when the goroutine has ended
	halted    chan struct{} // closed by stop
	awaitRoom roomWait      // wait; a field, because a method value would be allocated

	turn   sync.Mutex      // held by whoever does what flow decides; never taken while mu is held
	lone   atomic.Bool     // a caller of ProduceSync has the turn
	caller context.Context // of that caller; nil: the lane's goroutine has the turn. Guarded by turn
	nudged chan struct{}   // kicked, for that caller

	mu      sync.Mutex // guards the fields down to headers
	flow    flow
	open    *packet        // the batch that takes messages; nil: none yet
	events  []event        // that the goroutine has not handled yet
	taken   uint64         // messages since the lane began
	told    uint64         // of them, those whose fate the application knows
	flushes []pendingFlush // that wait, by rising target
	opened  chan struct{}  // closed after the first answer to OpenProducer that is final
	openErr error          // what that answer was
	headers []batch.KV     // memory for the headers of a message
	calls   int            // messages that wait in flow, whose done function belongs to the application

	// Guarded by turn.
	timer    *time.Timer
	topic    uuid.UUID
	node     *node
	link     *link      // nil: the leader cannot be reached now
	followed *knowledge // the newest that follow has seen
	asked    uint64
	tenure   uint64 // for which the name is opened next; each opening counts it up
	ousted   bool   // Producer.fence was called
	as       numbers
	finished []event // memory that is exchanged with events
	head     []byte
	body     [1][]byte
}

// event is an answer.
type event struct {
	link    *link
	request uint64
	typ     netproto.Type
	status  netproto.Status
	err     error  // of a status that is not OK
	leader  string // with StatusNotLeader: who leads, as the node believes; or empty
	first   uint64
	repeat  bool
	opened  wire.Producer
}

func newLane(p *Producer, partition int) *lane {
	l := &lane{
		producer: p, partition: partition, topic: p.id, tenure: p.tenure,
		kicked: make(chan struct{}, 1), ended: make(chan struct{}), opened: make(chan struct{}), halted: make(chan struct{}),
		nudged: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
	}
	l.flow.o = flowOptions{
		linger: p.o.Linger, timeout: p.o.DeliveryTimeout, maxBytes: p.o.MaxBatchBytes - batch.HeaderBytes,
		inFlight: p.o.InFlight, stop: p.o.StopAtFailure, pause: p.client.o.delay,
	}
	l.flow.eager = p.o.Name != ""
	l.awaitRoom = l.wait
	p.client.goroutines.Go(l.run)
	return l
}

func (l *lane) wake() {
	if l.lone.Load() {
		signal(l.nudged)
		if l.lone.Load() { // otherwise that caller may have left without seeing it
			return
		}
	}
	signal(l.kicked)
}

// add puts a copy of the message into the open batch. room is what it took of MaxBufferedBytes; own says that done is
// the client's own and not the application's. It returns false if the lane has ended or the producer closes:
// Close waits for no message that comes after its flush, which locks mu.
func (l *lane) add(m *Message, done func(*Message, ID, error), own bool, room int64) bool {
	l.mu.Lock()
	if l.flow.ended != nil || l.producer.closed.Load() {
		l.mu.Unlock()
		return false
	}
	l.headers = l.headers[:0]
	if m.Key != nil {
		l.headers = append(l.headers, batch.KV{Key: keyHeader, Value: m.Key})
	}
	for _, h := range m.Headers {
		l.headers = append(l.headers, batch.KV(h))
	}
	r := batch.Record{Body: m.Body, Headers: l.headers}
	if l.open != nil {
		r.TimeDelta = time.Since(l.open.created).Microseconds() // it reads one clock, where time.Now reads two
	}
	size := r.Size()
	if l.open != nil && !l.flow.fits(size) {
		l.sealLocked()
		r.TimeDelta = 0
	}
	if l.open == nil {
		l.open = newPacket(l.producer.o.Compression, time.Now())
	}
	p := l.open
	if err := p.builder.Add(&r); err != nil {
		panic("BUG: client: " + err.Error()) // Produce has checked the limits
	}
	p.items = append(p.items, item{m, done})
	p.room += room
	if done != nil && !own {
		p.calls++
		l.calls++
	}
	l.taken++
	wake := l.flow.added(p.created, size)
	clear(l.headers)
	l.mu.Unlock()
	if wake {
		l.wake()
	}
	return true
}

// sealLocked puts the open batch into the queue. Messages without a key go to the next partition then. The caller holds
// mu.
func (l *lane) sealLocked() {
	l.flow.sealed(l.open)
	l.open = nil
	l.producer.turn.CompareAndSwap(uint32(l.partition), uint32(l.partition)+1)
}

// post gives an event to the goroutine.
func (l *lane) post(e event) {
	l.mu.Lock()
	l.events = append(l.events, e)
	l.mu.Unlock()
	l.wake()
}

// answer is link's call for an answer of the leader.
func (l *lane) answer(on *link, f *netproto.Received) bool {
	e := event{link: on, request: f.Request, typ: f.Type, status: f.Status}
	var err error
	switch {
	case f.Type == wire.TypeProduced && f.Status == netproto.StatusOK:
		var m wire.Produced
		err = wire.Decode(f.Payload, &m)
		e.first, e.repeat = m.First, m.Duplicate
	case f.Type == wire.TypeProducer && f.Status == netproto.StatusOK:
		err = wire.Decode(f.Payload, &e.opened)
	case f.Status == netproto.StatusOK:
		err = wire.ErrInvalid
	default:
		out := outcomeOf(f.Type, f.Payload)
		e.leader, e.err, e.first = out.Address, errorOf(f.Status, out.Text), out.First
		if f.Type == wire.TypeProducer && f.Status == netproto.StatusRejected && out.First == wire.TooManyProducers {
			e.err = because(ErrTooManyProducers, &StatusError{f.Status, out.Text})
		}
	}
	if err != nil {
		e.status, e.err = netproto.StatusUnknown, err
	}
	l.post(e)
	return false
}

// lost is link's call at the end of the connection; the goroutine sees the end itself.
func (l *lane) lost(*link, uint64) { l.wake() }

// run is the lane's goroutine. It ends when flow has ended and every message was told. It has the turn except while
// there is nothing to do and nothing to wait for.
func (l *lane) run() {
	defer close(l.ended)
	for {
		l.turn.Lock()
		s := l.advance()
		for ; !s.over && !s.until.IsZero(); s = l.advance() {
			l.timer.Reset(time.Until(s.until))
			select {
			case <-l.timer.C:
			case <-l.kicked:
			case <-s.known.changed:
			}
		}
		if s.over {
			l.timer.Stop()
			l.moveTo("")
		}
		l.turn.Unlock()
		if s.over {
			return
		}
		select {
		case <-l.kicked:
		case <-s.known.changed:
		}
	}
}

// standing is where advance has stopped.
type standing struct {
	known   *knowledge
	at      time.Time // when advance looked last
	until   time.Time // when to go on at the latest; zero: there is nothing to wait for
	over    bool      // flow has ended, and every message was told
	foreign bool      // done functions of the application wait
}

// advance does what flow decides until there is nothing to do now. The caller has the turn. If it is not the lane's
// goroutine (caller), it must not call done functions of the application.
func (l *lane) advance() standing {
	for {
		known := l.producer.client.view.known.Load()
		l.follow(known)
		now := time.Now()
		l.mu.Lock()
		if l.caller != nil && l.calls > 0 {
			l.mu.Unlock()
			return standing{known: known, at: now, foreign: true}
		}
		l.handle(now)
		a := l.flow.step(now)
		if a.do == doSeal {
			l.sealLocked()
		}
		ousted := l.flow.ended == ErrFenced && !l.ousted
		over := a.do == doWait && l.flow.ended != nil && len(l.flow.queue) == 0
		if over {
			l.openedLocked(l.flow.ended)
		}
		l.mu.Unlock()
		if ousted {
			l.ousted = true
			l.producer.fence(l)
		}
		switch a.do {
		case doWait:
			return standing{known: known, at: now, until: a.until, over: over}
		case doOpen:
			l.openProducer()
		case doSend:
			l.send(&a)
		case doDivide:
			l.divide(a.p)
		case doTell:
			l.tell(&a)
		case doDrop:
			a.p.Release()
		}
	}
}

// follow keeps link the connection to the leader that known names. A node has no other connection while its last one is
// alive, so there is nothing to do until that ends or something else is known.
func (l *lane) follow(known *knowledge) {
	if known == l.followed && l.link.alive() {
		return
	}
	l.followed = known
	address, gone := l.leader(known)
	if address != "" { // the old leader may still answer what it has taken
		l.moveTo(address)
	}
	var now *link
	var failed error
	if l.node != nil {
		var live *link
		if live, _, failed = l.node.state(); live.alive() {
			now = live
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now == nil && failed != nil {
		l.flow.unreachable(failed)
	}
	if now != l.link {
		if l.link != nil {
			l.flow.disconnect()
		}
		if l.link = now; now != nil {
			l.flow.connect()
		}
	}
	if gone != nil {
		l.flow.end(gone)
	}
}

// leader is the address of the partition's leader; empty: none is known. gone is why there will be none.
func (l *lane) leader(known *knowledge) (address string, gone error) {
	t := known.topics[l.producer.topic]
	switch {
	case t == nil:
	case meaning(t.status) == verdictRefused:
		gone = topicRefused(t.status, l.producer.topic)
	case t.status != netproto.StatusOK:
	case t.id != l.topic:
		gone = topicRemade(l.producer.topic)
	case l.partition < len(t.leaders):
		address = t.leaders[l.partition]
	}
	return address, gone
}

// moveTo exchanges the node that the lane is connected to.
func (l *lane) moveTo(address string) {
	if l.node != nil && l.node.address != address {
		l.producer.client.release(l.node, l)
		l.node = nil
	}
	if l.node == nil && address != "" {
		l.node = l.producer.client.acquire(address, l)
	}
}

// handle gives the answers that have arrived to flow. Answers to earlier attempts are ignored. The caller holds mu.
func (l *lane) handle(now time.Time) {
	l.events, l.finished = l.finished[:0], l.events
	for i := range l.finished {
		if e := &l.finished[i]; e.link == l.link {
			l.handleOne(now, e)
		}
	}
	clear(l.finished)
}

func (l *lane) handleOne(now time.Time, e *event) {
	v := meaning(e.status)
	if e.status == netproto.StatusNotLeader {
		l.producer.client.view.redirect(l.producer.topic, l.partition, e.link.node.address, e.leader)
	}
	if e.request == l.asked {
		l.asked = 0
		if v == verdictStored {
			l.as.id, l.as.epoch = e.opened.ID, e.opened.Epoch
			l.flow.opened(e.opened.Sequence)
			l.openedLocked(nil)
			return
		}
		if v == verdictFenced {
			e.err = &heldError{tenure: e.first, why: e.err}
		}
		l.flow.openRefused(now, v, e.err)
		if v == verdictRefused || v == verdictFenced {
			l.openedLocked(e.err)
		}
		return
	}
	for _, p := range l.flow.queue {
		if p.onWay() && p.request == e.request {
			l.flow.answered(now, p, v, e.first, e.repeat, e.err)
			return
		}
	}
}

// openedLocked tells those who wait for the producer's first opening. The caller holds mu.
func (l *lane) openedLocked(err error) {
	select {
	case <-l.opened:
	default:
		l.openErr = err
		close(l.opened)
	}
}

// openProducer sends OpenProducer.
func (l *lane) openProducer() {
	m := wire.OpenProducer{
		Topic: l.topic, Partition: uint32(l.partition), Name: l.producer.o.Name, Tenure: l.tenure,
	}
	if l.tenure != 0 {
		l.tenure++ // what this one may still do behind a later one is nothing
	}
	frame := netproto.Frame{Type: wire.TypeOpenProducer, Head: wire.Append(l.head[:0], &m)}
	request, err := l.link.sendFor(l.link.ctx, &frame, l, 0, l.awaitRoom)
	if err == nil {
		l.asked = request
		return
	}
	l.mu.Lock()
	l.flow.openRefused(time.Now(), verdictAgain, err)
	l.mu.Unlock()
}

// errMoved ends a wait for room at a node that does not lead the partition any more.
var errMoved = errors.New("client: the partition may have another leader")

// wait returns the context until which a batch waits for room at the leader, where ctx is the longest: until a message
// is to be told, the lane is stopped, or another node may lead. The caller has the turn until it calls the function.
func (l *lane) wait(ctx context.Context) (context.Context, context.CancelFunc) {
	l.mu.Lock()
	until := l.flow.due(time.Now())
	l.mu.Unlock()
	ctx, over := context.WithDeadlineCause(ctx, until, errNoAnswer)
	ctx, cancel := context.WithCancelCause(ctx)
	known, at := l.followed, l.node.address
	go func() {
		for ; ; known = l.producer.client.view.known.Load() {
			if address, gone := l.leader(known); gone != nil || address != "" && address != at {
				cancel(errMoved)
				return
			}
			select {
			case <-known.changed:
			case <-l.halted:
				cancel(ErrClosed)
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); over() }
}

// send sends a batch. It waits while the node has too many bytes without having answered: see wait. A caller of
// ProduceSync does not wait longer than its context.
func (l *lane) send(a *action) {
	p, as := a.p, l.as
	as.base = a.base
	err := p.seal(as)
	v := verdictRefused
	if err == nil {
		m := wire.Produce{Topic: l.topic, Partition: uint32(l.partition)}
		l.head = wire.Append(l.head[:0], &m)
		l.body[0] = p.bytes
		frame := netproto.Frame{
			Type: wire.TypeProduce, Flags: netproto.FlagSelfChecked, Lone: a.lone, Head: l.head, Body: l.body[:], Owner: p,
		}
		p.holders.Add(1)
		ctx := l.caller
		if ctx == nil {
			ctx = l.link.ctx
		}
		p.request, err = l.link.sendFor(ctx, &frame, l, int64(len(p.bytes)), l.awaitRoom)
		if err == nil {
			return
		}
		p.holders.Add(-1) // it was not taken
		if v = verdictAgain; errors.Is(err, netproto.ErrTooBig) {
			v, err = verdictRefused, because(ErrTooLarge, err)
		}
	}
	l.mu.Lock()
	l.flow.answered(time.Now(), p, v, 0, false, err)
	l.mu.Unlock()
}

// divide makes two batches of one that is too large for the leader, or has a message that is.
func (l *lane) divide(p *packet) {
	first, second := p.divided(l.producer.o.Compression)
	l.mu.Lock()
	l.flow.divided(p, first, second)
	l.mu.Unlock()
	p.Release()
}

// tell calls the done functions of a batch.
func (l *lane) tell(a *action) {
	p := a.p
	l.producer.room.Release(p.room)
	var first ID
	if a.err == nil {
		first = batch.MakeID(uint32(l.partition), ID(p.first).MsgID())
	}
	for i := range p.items {
		if it := &p.items[i]; it.done != nil {
			if a.err != nil {
				it.done(it.m, 0, a.err)
			} else {
				it.done(it.m, first+ID(i), nil)
			}
		}
	}
	if hook := l.producer.client.o.Hooks.Produced; hook != nil {
		hook(ProducedBatch{
			Topic: l.producer.topic, Partition: l.partition, First: first, Count: len(p.items), Bytes: len(p.bytes),
			Duplicate: p.repeated, Took: time.Since(p.created), Err: a.err,
		})
	}
	told, calls := len(p.items), p.calls
	clear(p.items)
	p.items, p.calls = p.items[:0], 0
	if a.left {
		p.Release()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls -= calls
	l.told += uint64(told)
	for len(l.flushes) > 0 && l.flushes[0].target <= l.told {
		close(l.flushes[0].done)
		l.flushes = l.flushes[1:]
	}
	l.flow.flushing = len(l.flushes) > 0
}

// pendingFlush is a Flush at one lane.
type pendingFlush struct {
	lane   *lane
	target uint64        // it waits until so many messages were told
	done   chan struct{} // closed then
}

// untold is how many of the messages were not told.
func (f *pendingFlush) untold() uint64 {
	f.lane.mu.Lock()
	defer f.lane.mu.Unlock()
	return f.target - min(f.target, f.lane.told)
}

// flush waits until every message was told that was taken before.
func (l *lane) flush() pendingFlush {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := pendingFlush{l, l.taken, make(chan struct{})}
	if l.told == l.taken {
		close(f.done)
		return f
	}
	l.flow.flushing = true
	l.flushes = append(l.flushes, f)
	l.wake()
	return f
}

// stop ends the lane. It tells messages without an answer as ErrUnknown if they were sent, and as ErrClosed if not, and
// returns how many these are.
func (l *lane) stop() (left abandoned) {
	l.mu.Lock()
	l.flow.end(ErrClosed)
	left = l.flow.abandoned()
	select {
	case <-l.halted:
	default:
		close(l.halted)
	}
	l.mu.Unlock()
	l.wake()
	return left
}
