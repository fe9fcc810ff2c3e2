package native

import (
	"context"
	"errors"
	"sync"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/server/auth"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// packer is the Sink of a subscription: it packs deliveries into frames, and sends those when the engine flushes.
//
//	Deliver (the channel's lock is held) ─► open ─► sealed ─► Flush ─► netproto
//
// Deliveries spend the client's credit, and room for output (output.go), which is taken for each frame when it is begun
// and given back when it is written. When either is used up, Deliver says that the sink is full, and the subscription's
// goroutine calls goOn when there is some again. A message that finds no room for its frame, because other connections
// have just taken it, is packed all the same; then the sink is full. While the client's link is not known to be quick,
// packs are small, and the sink is full after each: what waits for a slow link counts as in flight, and must not time
// out on its way.
type packer struct {
	u     *subscription
	most  int // bytes of a frame's payload that the client accepts
	chunk int // bytes at which a frame is sent: DeliverBytes, or a whole limit of output

	sending sync.Mutex // held while frames are sent, so that they leave in order; before mu

	mu       sync.Mutex    // a leaf; guards the rest
	delivery wire.Delivery // scratch of Deliver
	credit   credit
	open     *pack // nil: none is begun
	sealed   []*pack
	out      []*pack // what Flush sends; exchanged for sealed. sending guards it
	blocked  bool    // Deliver has said that the sink is full
	crowded  bool    // for lack of room for output
	awaiting bool    // a goroutine waits for that room, or for the link
	granted  bool    // it has taken the room
	doubtful bool    // it is not certain that the client may still have messages; goOn finds out
	ended    bool
	broken   error // the subscription has to end, because its client cannot take a message
	permits  permits
}

// pack is a Deliver that is being packed, or is on its way to the client: the netproto.Releaser of its bytes.
type pack struct {
	output *output
	room   int // taken of output
	buf    []byte
	first  uint64
	count  int
	// head is the length of the permit before the Deliver, which is filled in when the pack is sent; 0: there is none.
	head int
}

// slowChunk is k.chunk for a link that is not known to be quick.
const slowChunk = 16 << 10

// maxSpareBytes bounds the buffers that are kept for later packs.
const maxSpareBytes = wire.DeliverBytes + 64<<10

var packs = sync.Pool{New: func() any { return new(pack) }}

func (p *pack) Release() {
	if p.room > 0 {
		p.output.give(p.room)
	}
	if cap(p.buf) > maxSpareBytes {
		p.buf = nil
	}
	*p = pack{buf: p.buf[:0]}
	packs.Put(p)
}

func newPacker(u *subscription) *packer {
	o := &u.s.output
	return &packer{
		u: u, most: int(u.s.conn.Peer().MaxFrameBytes) - netproto.HeaderBytes,
		chunk: int(min(wire.DeliverBytes, o.most, o.all.Share())),
	}
}

// begin begins a pack whose room for output was taken, or which has none.
func (k *packer) begin(room int) {
	p := packs.Get().(*pack)
	p.output, p.room = &k.u.s.output, room
	k.open = p
}

func (k *packer) Deliver(d *node.Delivery) bool {
	k.mu.Lock()
	// Field by field, because a composite would be made elsewhere and copied, for each message.
	w := &k.delivery
	w.ID, w.Timestamp, w.Attempts, w.Headers, w.Body = uint64(d.ID), d.Timestamp, d.Attempts, d.Headers, d.Body
	room := !k.ended && k.pack(w, d.Number, k.permits.covers(d))
	w.Headers, w.Body = nil, nil
	k.mu.Unlock()
	return room
}

func (k *packer) DeliverRun(r *message.Run) (count int, room bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return 0, false
	}
	w := wire.Delivery{Attempts: 1}
	for m := r.Next(); m != nil; m = r.Next() {
		w.ID, w.Timestamp, w.Body = uint64(r.ID)+uint64(count), r.Created+m.TimeDelta*1000, m.Body
		number := r.Number + uint64(count)
		if count++; !k.pack(&w, number, false) {
			return count, false
		}
	}
	return count, true
}

// pack packs one delivery for a subscription that has not ended, behind a permit or not. It returns false if the sink
// is full then. mu is held.
func (k *packer) pack(w *wire.Delivery, number uint64, permitted bool) bool {
	size := wire.DeliverySize(w)
	if p := k.open; p != nil && p.count > 0 &&
		(number != p.first+uint64(p.count) || len(p.buf)+size > k.most || permitted != (p.head > 0)) {
		k.seal()
	}
	if k.open == nil {
		if k.u.s.output.try(k.chunk) {
			k.begin(k.chunk)
		} else {
			k.begin(0)
			k.crowded = true
		}
	}
	p := k.open
	if p.count == 0 {
		p.first = number
		p.start(permitted)
	}
	p.buf = wire.AppendDelivery(p.buf, w)
	p.count++
	most, quick := k.chunk, k.u.s.conn.Quick()
	if !quick {
		most = min(most, slowChunk)
	}
	if k.credit.spend(size); len(p.buf) >= most || p.count == wire.MaxDeliveryCount {
		k.seal()
		k.crowded = k.crowded || !quick
	}
	k.blocked = k.crowded || k.credit.left <= 0
	return !k.blocked
}

// seal completes the open pack. mu is held.
func (k *packer) seal() {
	p := k.open
	k.open = nil
	wire.EndDeliver(p.buf[p.head:], p.count)
	if spare := p.room - len(p.buf); spare > 0 {
		p.output.give(spare)
		p.room -= spare
	}
	k.sealed = append(k.sealed, p)
}

func (k *packer) Flush() {
	k.sending.Lock()
	defer k.sending.Unlock()
	certain := k.u.s.isCurrent()
	k.mu.Lock()
	if !certain && !k.ended {
		k.doubtful = true
		k.mu.Unlock()
		k.u.rouse()
		return
	}
	k.flush()
}

// flush sends what is packed. sending is held, and mu, which flush releases.
func (k *packer) flush() {
	if k.open != nil && k.open.count > 0 {
		k.seal()
	}
	k.out, k.sealed = k.sealed, k.out[:0]
	crowded := k.blocked && k.crowded
	k.mu.Unlock()
	for _, p := range k.out {
		k.send(p)
	}
	clear(k.out)
	if crowded {
		k.u.rouse()
	}
}

// send sends a pack, or drops it if the connection has ended.
func (k *packer) send(p *pack) {
	typ := wire.TypeDeliver
	if p.head > 0 {
		typ = wire.TypeDeliverOrdered
		k.permit().Put(p.buf)
	}
	err := k.u.s.conn.TrySend(&netproto.Frame{Type: typ, Request: k.u.request, Body: [][]byte{p.buf}, Owner: p})
	if err == nil {
		return
	}
	p.Release()
	switch {
	case errors.Is(err, netproto.ErrQueueFull):
		k.u.s.conn.Abort(errUnread)
	case errors.Is(err, netproto.ErrTooBig):
		k.mu.Lock()
		k.broken = errs.ErrMessageTooBig
		k.mu.Unlock()
		k.u.rouse()
	}
}

func (k *packer) Closed(err error) {
	k.u.wish(func(w *wishes) { w.closed = err })
}

// allow adds to the client's credit.
func (k *packer) allow(n uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.credit.give(n)
}

// goOn lets the engine deliver, as far as there are credit and room for output. Only the subscription's goroutine calls
// it. An error ends the subscription.
func (k *packer) goOn() error {
	if err := k.resolve(); err != nil {
		return err
	}
	unblock := false
	k.mu.Lock()
	switch err := k.broken; {
	case err != nil:
		k.mu.Unlock()
		return err
	case k.blocked && k.credit.left > 0:
		// The room for the next frame is taken first: so only the message that finds it gone passes without room.
		switch {
		case k.u.s.conn.Waiting():
			k.await(k.u.s.conn.AwaitRoom)
			k.mu.Unlock()
			return nil
		case k.open != nil:
		case k.granted || k.u.s.output.try(k.chunk):
			k.granted = false
			k.begin(k.chunk)
		default:
			k.await(nil)
		}
		if k.open == nil {
			break
		}
		k.blocked, k.crowded, unblock = false, false, true
	}
	k.mu.Unlock()
	if unblock {
		k.u.consumer.Unblock()
	} else {
		k.u.consumer.Pump()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open != nil && k.open.count == 0 { // nothing came
		k.open.Release()
		k.open = nil
	}
	return nil
}

// await takes room for output when there is some, and wakes the subscription. It keeps the room: if all who wait only
// looked and tried again, each would find that others wait. With a link it waits for that instead. mu is held.
func (k *packer) await(link func(context.Context) error) {
	if k.awaiting {
		return
	}
	k.awaiting = true
	k.u.s.srv.workers.Go(func() {
		var err error
		if link != nil {
			err = link(k.u.ctx)
		} else {
			err = k.u.s.output.take(k.u.ctx, k.chunk)
		}
		k.mu.Lock()
		if k.awaiting = false; link != nil {
			k.mu.Unlock()
			k.u.rouse()
			return
		}
		if k.granted = err == nil && !k.ended; err == nil && k.ended {
			k.u.s.output.give(k.chunk)
		}
		k.mu.Unlock()
		k.u.rouse()
	})
}

// resolve finds out whether the client may still have messages, if that is doubtful, and sends those that wait.
func (k *packer) resolve() error {
	k.mu.Lock()
	doubtful := k.doubtful
	k.mu.Unlock()
	u := k.u
	if !doubtful && u.s.isCurrent() {
		return nil
	}
	who, err := u.s.principal()
	if err != nil || !auth.May(who, auth.Subscribe, auth.Channel(u.topic.Name(), u.ask.Channel)) {
		return errRevoked
	}
	k.sending.Lock()
	defer k.sending.Unlock()
	k.mu.Lock()
	k.doubtful = false
	k.flush()
	return nil
}

// end drops what is packed, and tells the client why the subscription has ended. No Deliver follows.
func (k *packer) end(why error) {
	k.sending.Lock()
	defer k.sending.Unlock()
	k.mu.Lock()
	k.ended = true
	if k.granted {
		k.granted = false
		k.u.s.output.give(k.chunk)
	}
	drop := k.sealed
	if k.sealed = nil; k.open != nil {
		drop, k.open = append(drop, k.open), nil
	}
	k.mu.Unlock()
	for _, p := range drop {
		p.Release()
	}
	k.u.sayEnd(why)
}

// isCurrent says whether it is certain what the client may do, without asking anybody.
func (s *session) isCurrent() bool {
	if s.srv.opts.Auth == nil {
		return true
	}
	l := s.login.Load()
	return l != nil && s.srv.opts.Auth.Current(l.who, time.Now())
}
