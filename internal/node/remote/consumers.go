package remote

import (
	"slices"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

const (
	windowBytes      = 1 << 20
	maxDeliverBytes  = 64 << 10              // of one Deliver frame, unless a single message is longer
	maxConsumeBytes  = 32 << 10              // of one Consume frame
	maxUnsentBytes   = 1 << 20               // of Consume entries that wait for a full connection; more are dropped
	answerTime       = time.Second           // the longest that Subscribe waits for the leaders' first answers
	rotationInterval = 10 * time.Millisecond // how often credits move between leaders, see Credit.Rotates
	shortInterval    = time.Millisecond      // the same while a leader has a short turn, see Credit.InShortTurn
	shortClients     = 100                   // for so many clients; looking at more takes its time
	maxTickCount     = 512                   // clients per tick; if there are more, they take turns

	// OnlyLevel is the feature level from which a client can ask other nodes for one partition.
	OnlyLevel = 3

	// ServeTime is how long a subscription waits at a leader that does not serve yet.
	ServeTime = 500 * time.Millisecond
)

// Consumers holds the subscriptions of this node at other nodes (legs, clients), and the subscriptions of other nodes
// here (subs). The connections' readers, the ticker, methods of consumers and the store's news call it. mu guards the
// fields below it, except counts, which are atomics, and ticked and stampTo, which belong to the ticker. mu is a leaf.
// A crash leaves nothing: the other side sees the connection end.
type Consumers struct {
	n     Env
	host  platform.Host
	peers *platform.Peers
	lease Lease

	mu       lock.Mutex[lock.Remotes]
	next     uint64          // request id of the newest leg
	legs     map[uint64]*leg // this node is the client's node
	clients  []*Consumer
	subs     map[subscriptionKey]*subscription // this node is the leader
	stamps   map[replicate.NodeID]uint64       // last Stamp of each node on its current connection
	stampTo  []replicate.NodeID                // scratch of sendStamps
	fences   map[fenceKey]*fencing
	rotating bool // a goroutine runs rotateCredits
	shut     bool

	counts counts
	ticked int // index of the first client of the last tick

	loopback        []loopedFrame // frames from this node to itself
	loopbackRunning bool
}

type loopedFrame struct {
	header  netproto.Header
	payload []byte
}

// New returns the Consumers of a node. It must send nothing before the node has joined.
func New(n Env) *Consumers {
	return &Consumers{
		n: n, host: n.Host, peers: n.Peers, lease: n.Lease, next: n.First,
		legs: map[uint64]*leg{}, subs: map[subscriptionKey]*subscription{},
		stamps: map[replicate.NodeID]uint64{}, fences: map[fenceKey]*fencing{},
	}
}

// send sends one frame without waiting. Frames to this node itself are queued and never refused. The caller may hold
// subscription.mu or Consumer.mu.
func (rs *Consumers) send(to replicate.NodeID, f *netproto.Frame) error {
	if to != rs.peers.Self {
		return rs.peers.TrySend(to, f)
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
		rs.peers.Spawn(rs.runLoopback)
	}
	if f.Owner != nil {
		f.Owner.Release()
	}
	return nil
}

// runLoopback handles the frames of this node to itself in order, until there are none. No lock is held, because the
// sender of a frame may hold the lock that the handler takes.
func (rs *Consumers) runLoopback() {
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
			rs.HandleFrame(rs.peers.Self, &frames[i].header, frames[i].payload)
		}
	}
}

// sendReliably sends a short frame. If the connection's queue is full, a goroutine sends it later.
func (rs *Consumers) sendReliably(to replicate.NodeID, f *netproto.Frame) {
	if to == rs.peers.Self {
		_ = rs.send(to, f)
		return
	}
	rs.peers.Reply(to, f)
}

// HandleFrame handles Stamp and the frame types from Subscribe to Fenced. It runs on the connection's reader and does
// not wait.
func (rs *Consumers) HandleFrame(from replicate.NodeID, h *netproto.Header, payload []byte) {
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
			rs.peers.Spawn(func() { s.end(clean) })
		}
	default:
		l := rs.leg(from, h.Request)
		if l == nil {
			return // the client's node has removed the leg
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
		rs.n.Log.Error("a frame of a node was refused; the connection is made anew", "peer", from, "error", err)
		rs.peers.Disconnect(from, err)
	}
}

// leg returns the leg with this request id, or nil if it does not lead to the node that sent the frame.
func (rs *Consumers) leg(from replicate.NodeID, id uint64) *leg {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if l := rs.legs[id]; l != nil && l.Node == from {
		return l
	}
	return nil
}

// all returns the clients of this node that other nodes serve.
func (rs *Consumers) all() []*Consumer {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Clone(rs.clients)
}

// Refresh makes every client subscribe at the current leaders.
func (rs *Consumers) Refresh() { rs.refreshAll(rs.all()) }

func (rs *Consumers) refreshAll(clients []*Consumer) {
	if len(clients) == 0 {
		return
	}
	leading := map[Topic][]replicate.NodeID{}
	for _, r := range clients {
		now, ok := leading[r.topic]
		if !ok {
			now = r.topic.Leaders()
			leading[r.topic] = now
		}
		r.followLeaders(now)
	}
}

// distinct returns the nodes among the leaders of partitions, in ascending order. 0 stands for a partition without one.
func distinct(leaders []replicate.NodeID) []replicate.NodeID {
	all := slices.Compact(slices.Sorted(slices.Values(leaders)))
	if len(all) > 0 && all[0] == 0 {
		all = all[1:]
	}
	return all
}

// Tick sends stamps, repeats fences, and makes clients retry what no event triggers. The ticker calls it every 50 ms.
func (rs *Consumers) Tick() {
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

// rotateCredits moves credits between the legs of clients that have fewer credits than leaders, until no such client is
// left. At most one goroutine runs it.
func (rs *Consumers) rotateCredits() {
	for pause := rotationInterval; rs.host.Pause(pause, rs.peers.Ctx.Done()); {
		any, soon, all := false, false, rs.all()
		for _, r := range all {
			rotates, short := r.rotateCredit()
			any, soon = any || rotates, soon || short
		}
		if pause = rotationInterval; soon {
			pause = min(pause, shortInterval*time.Duration(1+len(all)/shortClients))
		}
		if any {
			continue
		}
		rs.mu.Lock()
		rs.rotating = false
		rs.mu.Unlock()
		for _, r := range rs.all() { // a client may have found rotating still set, and relies on this goroutine
			rotates, _ := r.rotateCredit()
			any = any || rotates
		}
		if !any || !rs.startRotation() {
			return
		}
	}
}

// startRotation says whether the caller must run rotateCredits.
func (rs *Consumers) startRotation() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.rotating || rs.shut {
		return false
	}
	rs.rotating = true
	return true
}

// PeerLost handles the end of the connection to a node. It ends the subscriptions of that node's clients, and removes
// the legs of this node's clients to that node.
func (rs *Consumers) PeerLost(node replicate.NodeID) {
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
		rs.peers.Spawn(func() { s.end(false) })
	}
	for _, r := range rs.all() {
		r.peerLost(node)
	}
}

// EndTopic fails the clients of a topic that was deleted.
func (rs *Consumers) EndTopic(t Topic, err error) {
	for _, r := range rs.all() {
		if r.topic == t {
			r.fail(err)
		}
	}
}

// Close fails all clients of this node. Afterwards nothing is sent any more.
func (rs *Consumers) Close() {
	for _, r := range rs.all() {
		r.fail(errs.ErrClosed)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.shut, rs.loopback = true, nil
}

// failedCalls maps kinds of Consume entries to the methods of a Consumer.
var failedCalls = map[wire.ConsumeKind]message.FailedCall{
	wire.ConsumeFinish: message.FailedFinish, wire.ConsumeRequeue: message.FailedRequeue,
	wire.ConsumeTouch: message.FailedTouch,
}
