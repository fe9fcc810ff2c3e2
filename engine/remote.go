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

// A node that leads no partition of a topic still serves clients that subscribe to it. It subscribes at the leaders for
// them:
//
//	client ─► remoteConsumer ─► leg ── Subscribe, Consume ──► subscription ─► Consumer ─► Channel      at each leader
//	client ◄─ Sink           ◄─ leg ◄── Deliver, Consumed ─── (a Sink)      ◄─
//
// For the leader's channel a subscription is a consumer like any other; the leader's lease and epoch apply to it as to
// all. When the connection between the nodes ends, the leader closes its consumer, so that other consumers get at once
// what it had in flight. When leadership moves, the client's node subscribes at the next leader, which delivers again
// what was in flight. If the client's node becomes a leader itself, it is the node of one of the legs, and its frames
// take a queue instead of a connection (loopback).
//
// Deliveries must not fill the connection, which replication uses too. So a subscription has at most remoteWindowBytes
// of messages under way, and the client's node returns that credit when the client's sink has room.
const (
	remoteWindowBytes = 1 << 20
	maxDeliverBytes   = 64 << 10               // of one Deliver frame, unless a single message is longer
	maxConsumeBytes   = 32 << 10               // of one Consume frame
	maxUnsentBytes    = 1 << 20                // of Consume entries that wait for a full connection; more are dropped
	remoteAnswerTime  = time.Second            // the longest that Subscribe waits for the leaders' first answers
	remoteServeTime   = 500 * time.Millisecond // how long a subscription waits at a leader that does not serve yet
	rotationInterval  = 10 * time.Millisecond  // how often credits move between leaders, see Credit.Rotates
	maxTickCount      = 512                    // clients per tick; if there are more, they take turns
)

// RemoteLabel is the label of a consumer whose client is connected to another node.
type RemoteLabel struct {
	Node   string          `json:"-"`                // name of that node
	Text   string          `json:"text"`             // the client in a few words
	Client json.RawMessage `json:"client,omitempty"` // what that node tells about the client; nil: nothing
}

// String names the client and the node that it is connected to.
func (l RemoteLabel) String() string { return l.Text + " at " + l.Node }

// remotes holds this node's subscriptions at other nodes (legs, clients) and their subscriptions here (subs).
// Connections' readers, the ticker, consumers' methods and the store's news call it. mu guards the fields below it,
// except that ticked and stampTo belong to the ticker and counts are atomics. It is a leaf. A crash leaves nothing: the
// other side sees the connection end.
type remotes struct {
	cn *clusterNode

	mu       lock.Mutex[lock.Remotes]
	next     uint64          // request id of the newest leg
	legs     map[uint64]*leg // this node is the client's node
	clients  []*remoteConsumer
	subs     map[subscriptionKey]*subscription // this node is the leader
	stamps   map[replicate.NodeID]uint64       // last Stamp of each node on its present connection
	stampTo  []replicate.NodeID                // scratch of sendStamps
	fences   map[fenceKey]*fencing
	rotating bool // rotateCredits runs
	shut     bool

	counts remoteCounts
	ticked int // index of the first client of the last tick

	loopback        []loopedFrame // frames from this node to itself
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

// send sends one frame without waiting. Frames to this node itself are queued and never refused. The caller may hold
// subscription.mu or remoteConsumer.mu.
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

// runLoopback handles the frames of this node to itself, in order, until there are none. No lock is held: the sender of
// a frame may hold the lock that its handler takes.
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

// sendReliably sends a short frame. If the connection's queue is full, a goroutine sends it later.
func (rs *remotes) sendReliably(to replicate.NodeID, f *netproto.Frame) {
	if to == rs.cn.self.ID {
		_ = rs.send(to, f)
		return
	}
	rs.cn.peers.Reply(to, f)
}

// handleFrame handles the frames of types Subscribe to Fenced, and Stamp. It runs on the connection's reader and does
// not wait.
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
		rs.cn.log.Error("a frame of a node was refused; the connection is made anew", "peer", from, "error", err)
		rs.cn.net.Disconnect(from, err)
	}
}

// leg returns the leg with this request id, if it leads to that node.
func (rs *remotes) leg(from replicate.NodeID, id uint64) *leg {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if l := rs.legs[id]; l != nil && l.Node == from {
		return l
	}
	return nil
}

// all returns the clients of this node that other nodes serve.
func (rs *remotes) all() []*remoteConsumer {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Clone(rs.clients)
}

// refresh makes every client subscribe at the present leaders.
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

// leaders returns the nodes that lead a partition of t, as far as this node knows, in ascending order.
func (t *Topic) leaders() (all []replicate.NodeID) {
	for _, pt := range t.partitions() {
		if to := replicate.NodeID(pt.rep.target.Load()); to != 0 && !slices.Contains(all, to) {
			all = append(all, to)
		}
	}
	slices.Sort(all)
	return all
}

// servesAny says whether this node's channels may deliver messages of any partition of t.
func (t *Topic) servesAny() bool {
	for _, pt := range t.partitions() {
		if pt.rep.serves.Load() {
			return true
		}
	}
	return false
}

// tick sends stamps, repeats fences, and makes clients retry what no event triggers. The ticker calls it every 50 ms.
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

// rotateCredits moves credits between the legs of clients that have fewer credits than leaders, until there are no such
// clients. One goroutine runs it at a time.
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
		for _, r := range rs.all() { // a client may have begun to rotate meanwhile, and found rotating set
			any = r.rotateCredit() || any
		}
		if !any || !rs.startRotation() {
			return
		}
	}
}

// startRotation says whether the caller is to run rotateCredits.
func (rs *remotes) startRotation() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.rotating || rs.shut {
		return false
	}
	rs.rotating = true
	return true
}

// peerLost handles the end of the connection to a node: it ends the subscriptions of that node's clients, and the legs
// of this node's clients to it.
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

// endTopic fails the clients of a topic that is deleted.
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

// failedCalls maps the entries of a Consume frame to the methods of a Consumer.
var failedCalls = map[wire.ConsumeKind]FailedCall{
	wire.ConsumeFinish: FailedFinish, wire.ConsumeRequeue: FailedRequeue, wire.ConsumeTouch: FailedTouch,
}
