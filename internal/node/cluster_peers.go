package node

import (
	"errors"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/partition"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// Up implements peer.Handler: a connection to a node has begun.
func (cn *clusterNode) Up(node replicate.NodeID, _ uuid.UUID) {
	cn.exitedMu.Lock()
	delete(cn.exited, node)
	delete(cn.clocks.asks, node) // it may be another process, with another clock
	cn.exitedMu.Unlock()
	cn.forward.Wake()
	cn.remotes.Refresh()
}

// Down implements peer.Handler: the connection to a node has ended. refused says that its process has ended, too: the
// node's host answered and refused a new connection.
func (cn *clusterNode) Down(node replicate.NodeID, boot uuid.UUID, refused bool) {
	cn.forward.PeerLost(node, refused)
	cn.ops.PeerLost(node)
	cn.remotes.PeerLost(node)
	if cn.Ctx.Err() != nil {
		return
	}
	if !refused { // replicate/peer has logged that the connection ended
		return
	}
	cn.Log.Warn("the process of a node has ended", "peer", cn.NodeName(node))
	cn.exitedMu.Lock()
	cn.exited[node] = cn.Now()
	cn.exitedMu.Unlock()
	cn.Spawn(func() { cn.reportDown(node, boot) })
	cn.peerDown(node)
}

// peerDown tells the leaders on this node that another node is down, so that they need not wait for a timeout to learn
// that.
func (cn *clusterNode) peerDown(node replicate.NodeID) {
	for _, pt := range cn.e.store.Partitions() {
		if pt.Leading.Load() {
			pt.Replica().PeerDown(node)
		}
	}
}

// reportDown tells the store that the process of a node has ended. It retries until the store has recorded that or the
// node connects again. The first attempts may fail, because this node may have been connected to the member of etcd
// that ended with that process. It runs on a goroutine of its own.
func (cn *clusterNode) reportDown(node replicate.NodeID, boot uuid.UUID) {
	for told := false; cn.HasExited(node) && cn.Ctx.Err() == nil; {
		ctx, cancel := cn.e.host.WithTimeout(cn.Ctx, partition.StoreTimeout)
		err := cn.Rows.ReportDown(ctx, node, boot)
		cancel()
		if err == nil || errors.Is(err, meta.ErrNotFound) {
			return
		}
		if !told {
			told = true
			cn.Log.Warn("the store could not be told yet that a node is gone", "peer", node, "error", err)
		}
		cn.Pause(tickInterval)
	}
}

// listenTicks is how many ticks of tickInterval are between two looks at what was heard.
const listenTicks = 10

// heardOf is when a node was last heard of, and how long it has been there without a connection.
type heardOf struct {
	received uint64 // see peer.Net.Received
	at       int64  // by Now
	boot     uuid.UUID
	linked   int64 // when process boot was connected, or not alive by its row, or not known yet, by Now
}

// listen notes which nodes were heard of since it last ran: something arrived over the connection, or, while there is
// none, the store has extended the node's lease. It also notes since when a living node has had no connection.
func (cn *clusterNode) listen() {
	snap := cn.snapshot()
	now := cn.Now()
	age, lease := cn.Heard()
	cn.exitedMu.Lock()
	defer cn.exitedMu.Unlock()
	for id, n := range snapshotNodes(snap) {
		was, known := cn.heard[id]
		received, connected := cn.Net.Received(id)
		is := was
		switch {
		case !known || connected && received != was.received:
			is.received, is.at = received, now
		case !connected && n.Live && age <= lease: // the store has heard of it since its lease was extended last
			is.received, is.at = received, max(was.at, now-int64(age)-int64(lease))
		}
		if !n.Live || n.Boot != was.boot || cn.Net.Connected(id) {
			is.boot, is.linked = n.Boot, now
		}
		cn.heard[id] = is
	}
	for id := range cn.heard {
		if snapshotNodes(snap)[id] == nil {
			delete(cn.heard, id)
		}
	}
}

// HasExited says whether the process of a node is known to have ended.
func (cn *clusterNode) HasExited(node replicate.NodeID) bool {
	cn.exitedMu.Lock()
	defer cn.exitedMu.Unlock()
	_, ended := cn.exited[node]
	return ended
}

// Frames implements peer.Handler. It passes a burst of frames to replicas and to the handlers of requests, and wakes
// the committer once per partition at the end. The connection's reader calls it, and the frames that follow wait: so
// Frames never waits for the disk.
func (cn *clusterNode) Frames(from replicate.NodeID, _ uuid.UUID, burst []netproto.Received) {
	d := cn.decoders.Get().(*wire.Decoder)
	defer cn.decoders.Put(d)
	var some [32]*partition.Partition
	work := some[:0]
	for i := range burst {
		f := &burst[i]
		if _, ok := wire.Kind(f.Header.Type); !ok {
			if pt := cn.request(from, f); pt != nil && (len(work) == 0 || work[len(work)-1] != pt) {
				work = append(work, pt)
			}
			continue
		}
		if err := d.Decode(&f.Header, f.Payload); err != nil {
			cn.Log.Error("a frame of a node was refused; the connection is made anew", "peer", from, "error", err)
			cn.Net.Disconnect(from, err)
			return
		}
		pt, took := cn.topics.partition(d.ID), false
		if pt != nil {
			var has bool
			if has, took = pt.Replica().Receive(from, d, f.Buf); has {
				work = append(work, pt)
			}
		}
		if !took && cn.Ctx.Err() == nil {
			cn.answerAbsent(from, d.ID, &d.Message)
		}
	}
	for _, pt := range work {
		pt.Announce(false)
	}
}

// request handles a frame that is not about replication. It returns the partition whose inbox got a put from the frame,
// or nil.
func (cn *clusterNode) request(from replicate.NodeID, f *netproto.Received) *partition.Partition {
	switch f.Header.Type {
	case netproto.TypeForwardPut:
		if pt, ok := cn.forward.HandlePut(from, f).(*partition.Partition); ok {
			return pt
		}
	case netproto.TypeForwardAck:
		cn.forward.HandleAck(from, f)
	case netproto.TypeForwardOp:
		cn.ops.HandleRequest(from, f)
	case netproto.TypeForwardOpAck:
		cn.ops.HandleAck(f)
	case netproto.TypeSubscribe, netproto.TypeSubscribed, netproto.TypeConsume, netproto.TypeConsumed,
		netproto.TypeDeliver, netproto.TypeUnsubscribe, netproto.TypeUnserved, netproto.TypeStamp,
		netproto.TypeDeliverHeld, netproto.TypeFence, netproto.TypeFenced:
		cn.remotes.HandleFrame(from, &f.Header, f.Payload)
	default:
		cn.Log.Warn("a node sent a frame that this version does not know", "peer", from, "type", f.Header.Type)
	}
	return nil
}
