package engine

import (
	"encoding/json"
	"slices"
	"time"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// A client that subscribes at a node which leads no partition of the topic is served by the leaders through that node:
//
//	client ─► remoteConsumer ─► leg ── Subscribe, Consume ──► subscription ─► Consumer ─► Channel      at each leader
//	client ◄─ Sink           ◄─ leg ◄── Deliver, Consumed ─── (a Sink)      ◄─
//
// For the leader's channel a subscription is a consumer like any other, and what that node's lease and epoch say holds for it. When the
// connection between the nodes ends, the leader closes its consumer, so that what it had in flight goes to others at once. When leadership moves,
// the client's node subscribes at the next leader; what was in flight comes again from there. If the client's node becomes leader itself, it is one of
// the legs: its frames take a queue instead of a connection.
//
// Messages do not fill the connection that replication uses: a subscription has at most remoteWindowBytes on their way. The client's node gives bytes back when
// the client's sink has room.
const (
	remoteWindowBytes = 1 << 20
	maxDeliverBytes   = 64 << 10 // of a Deliver frame, but for a single longer message
	maxConsumeBytes   = 32 << 10 // of a Consume frame
	maxUnsentBytes    = 1 << 20  // of Consume entries that a full connection did not take; then the subscription is made anew
	remoteAnswerTime  = time.Second
	remoteServeTime   = 500 * time.Millisecond // how long a leader that does not serve yet lets a subscription wait
	rotationInterval  = 10 * time.Millisecond
	maxTickCount      = 512 // clients that a tick looks after; more take turns
)

// RemoteLabel is the label of a consumer whose client is connected to another node.
type RemoteLabel struct {
	Node   string          `json:"-"`                // its name
	Text   string          `json:"text"`             // the client in a few words
	Client json.RawMessage `json:"client,omitempty"` // what that node says of it; nil: nothing
}

// String is the client, and where it is connected.
func (l RemoteLabel) String() string { return l.Text + " at " + l.Node }

// FailureSink is a Sink that is told of a Finish, Requeue or Touch that failed after it had returned nil: the leader is another
// node. It must not block and must not call the Consumer.
type FailureSink interface {
	Failed(what FailedCall, id ID, err error)
}

// FailedCall names a method of a Consumer.
type FailedCall uint8

// The methods that can fail later.
const (
	FailedFinish FailedCall = iota + 1
	FailedRequeue
	FailedTouch
)

// remotes are a node's subscriptions at others, and theirs here. Its mu is taken last.
type remotes struct {
	cn *clusterNode

	mu       lock.Mutex[lock.Remotes]
	next     uint64
	legs     map[uint64]*leg
	clients  []*remoteConsumer
	subs     map[subscriptionKey]*subscription
	stamps   map[replicate.NodeID]uint64 // the last that came on the connections of now
	stampTo  []replicate.NodeID          // sendStamps'
	fences   map[fenceKey]*fencing
	rotating bool
	shut     bool

	counts remoteCounts
	ticked int // where the last tick began; runTicker's

	loopback        []loopedFrame // from this node to itself
	loopbackRunning bool
}

type loopedFrame struct {
	header  netproto.Header
	payload []byte
}

func (rs *remotes) init(cn *clusterNode) {
	rs.cn, rs.next = cn, cn.e.firstRequest()
	rs.legs, rs.subs = map[uint64]*leg{}, map[subscriptionKey]*subscription{}
	rs.stamps, rs.fences = map[replicate.NodeID]uint64{}, map[fenceKey]*fencing{}
}

// send sends one frame; those to this node itself are always taken.
func (rs *remotes) send(to replicate.NodeID, f *netproto.Frame) error {
	if to != rs.cn.self.ID {
		return rs.cn.net.TrySend(to, f)
	}
	l := loopedFrame{header: netproto.Header{Type: f.Type, Status: f.Status, Request: f.Request}}
	l.payload = append(l.payload, f.Head...)
	for _, b := range f.Body {
		l.payload = append(l.payload, b...)
	}
	rs.mu.Lock()
	start := !rs.loopbackRunning && !rs.shut
	if !rs.shut {
		rs.loopback, rs.loopbackRunning = append(rs.loopback, l), true
	}
	rs.mu.Unlock()
	if start {
		rs.cn.spawn(rs.runLoopback)
	}
	if f.Owner != nil {
		f.Owner.Release()
	}
	return nil
}

func (rs *remotes) runLoopback() {
	for {
		rs.mu.Lock()
		frames := rs.loopback
		rs.loopback = nil
		if len(frames) == 0 || rs.shut {
			rs.loopbackRunning = false
			rs.mu.Unlock()
			return
		}
		rs.mu.Unlock()
		for i := range frames {
			rs.handleFrame(rs.cn.self.ID, &frames[i].header, frames[i].payload)
		}
	}
}

// sendReliably sends a short frame, later if the connection's queue is full now.
func (rs *remotes) sendReliably(to replicate.NodeID, f *netproto.Frame) {
	if to == rs.cn.self.ID {
		_ = rs.send(to, f)
		return
	}
	rs.cn.forward.reply(to, f)
}

// handleFrame takes a frame of types Subscribe to Fenced.
func (rs *remotes) handleFrame(from replicate.NodeID, h *netproto.Header, payload []byte) {
	var err error
	switch h.Type {
	case netproto.TypeSubscribe:
		err = rs.handleSubscribe(from, h.Request, payload)
	case netproto.TypeConsume:
		err = rs.handleConsume(subscriptionKey{from, h.Request}, payload)
	case netproto.TypeFence:
		err = rs.handleFence(from, payload)
	case netproto.TypeFenced:
		err = rs.handleFenced(from, payload)
	case netproto.TypeStamp:
		err = rs.handleStamp(from, payload)
	case netproto.TypeUnsubscribe:
		if s := rs.removeSubscription(subscriptionKey{from, h.Request}); s != nil {
			clean := len(payload) == 1 && payload[0] == 1
			rs.cn.spawn(func() { s.end(clean) })
		}
	default:
		l := rs.leg(from, h.Request)
		if l == nil {
			return // it is given up already
		}
		switch h.Type {
		case netproto.TypeSubscribed:
			l.r.handleSubscribed(l, h.Status, payload)
		case netproto.TypeDeliver:
			err = l.r.handleDeliver(l, payload)
		case netproto.TypeDeliverHeld:
			err = l.r.handleDeliverHeld(l, payload)
		case netproto.TypeConsumed:
			err = l.r.handleConsumed(l, payload)
		case netproto.TypeUnserved:
			l.r.handleUnserved(l, payload)
		}
	}
	if err != nil {
		rs.cn.log.Error("a frame of a node was refused; the connection is made anew", "peer", from, "error", err)
		rs.cn.net.Disconnect(from, err)
	}
}

func (rs *remotes) leg(from replicate.NodeID, id uint64) *leg {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if l := rs.legs[id]; l != nil && l.node == from {
		return l
	}
	return nil
}

// all are the clients that are served through this node.
func (rs *remotes) all() []*remoteConsumer {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Clone(rs.clients)
}

// refresh lets every client follow the leaders.
func (rs *remotes) refresh() { rs.refreshAll(rs.all()) }

func (rs *remotes) refreshAll(clients []*remoteConsumer) {
	if len(clients) == 0 {
		return
	}
	leaders := map[*Topic][]replicate.NodeID{}
	for _, r := range clients {
		now, ok := leaders[r.t]
		if !ok {
			now = r.t.leaders()
			leaders[r.t] = now
		}
		r.followLeaders(now)
	}
}

// leaders are the nodes that lead a partition of t, as far as this node has heard, in order.
func (t *Topic) leaders() (all []replicate.NodeID) {
	for _, pt := range t.partitions() {
		if to := replicate.NodeID(pt.rep.target.Load()); to != 0 && !slices.Contains(all, to) {
			all = append(all, to)
		}
	}
	slices.Sort(all)
	return all
}

// servesAny says whether a channel of this node may deliver anything of t.
func (t *Topic) servesAny() bool {
	for _, pt := range t.partitions() {
		if pt.rep == nil || pt.rep.serves.Load() {
			return true
		}
	}
	return false
}

// tick does what nobody else brings about.
func (rs *remotes) tick() {
	rs.sendStamps()
	rs.tickFences()
	clients := rs.all()
	if n := len(clients); n > maxTickCount {
		part := max(maxTickCount, (n+3)/4)
		rs.ticked = (rs.ticked + part) % n
		clients = append(clients[rs.ticked:], clients[:rs.ticked]...)[:part]
	}
	rs.refreshAll(clients)
	for _, r := range clients {
		r.tick()
	}
}

// rotateCredits lets legs take turns as long as a client has fewer credits than leaders.
func (rs *remotes) rotateCredits() {
	for rs.cn.e.host.Pause(rotationInterval, rs.cn.ctx.Done()) {
		any := false
		for _, r := range rs.all() {
			any = r.rotateCredit() || any
		}
		if any {
			continue
		}
		rs.mu.Lock()
		rs.rotating = false
		rs.mu.Unlock()
		for _, r := range rs.all() { // one may have begun meanwhile, and seen that somebody does it
			any = r.rotateCredit() || any
		}
		if !any || !rs.startRotation() {
			return
		}
	}
}

func (rs *remotes) startRotation() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.rotating || rs.shut {
		return false
	}
	rs.rotating = true
	return true
}

// peerLost ends what the connection to a node carried: its clients' consumers here, and this node's clients' legs there.
func (rs *remotes) peerLost(node replicate.NodeID) {
	rs.mu.Lock()
	delete(rs.stamps, node)
	var gone []*subscription
	for k, s := range rs.subs {
		if k.from == node {
			delete(rs.subs, k)
			gone = append(gone, s)
		}
	}
	rs.mu.Unlock()
	slices.SortFunc(gone, func(a, b *subscription) int { return int(int64(a.key.id - b.key.id)) })
	for _, s := range gone {
		rs.cn.spawn(func() { s.end(false) })
	}
	for _, r := range rs.all() {
		r.peerLost(node)
	}
}

// endTopic ends the clients of a topic that is deleted, or of an engine that closes.
func (rs *remotes) endTopic(t *Topic, err error) {
	for _, r := range rs.all() {
		if r.t == t {
			r.fail(err)
		}
	}
}

func (rs *remotes) close() {
	for _, r := range rs.all() {
		r.fail(ErrClosed)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.shut, rs.loopback = true, nil
}

// failedCalls are the methods by what travels.
var failedCalls = map[wire.ConsumeKind]FailedCall{
	wire.ConsumeFinish: FailedFinish, wire.ConsumeRequeue: FailedRequeue, wire.ConsumeTouch: FailedTouch,
}
