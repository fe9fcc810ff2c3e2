package node

import (
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/internal/node/partition"
)

// ClusterMeter is what monitoring reads of a node in a cluster.
type ClusterMeter struct {
	partition.Meter
	Store      health.Store
	Leased     bool          // the metadata store has extended this node's lease: the node may serve
	LeaseLeft  time.Duration // until the lease ends; 0: it has ended
	Controller bool          // this node is the controller, by the newest snapshot, if it has a lease
	Peers      []PeerMeter   // the other nodes of the newest snapshot
	Unreached  int           // living nodes to which there has been no connection for longer than a lease

	// Connections that were accepted from other nodes and did not come about: the peer did not prove that it belongs to
	// the cluster; its handshake was not over when MaxHandshakes newer ones began; anything else, also probes.
	Unproven, Crowded, Incomplete uint64
	LinesLeftOut                  uint64 // that these caused, and of which the log has only the number
}

// PeerMeter is another node, as this one sees it.
type PeerMeter struct {
	Name     string
	Up       bool          // there is a connection
	Lag      time.Duration // of the partitions led here, the longest that it has lacked something
	LagBytes int64         // what it lacks in all of these
	// ClockAhead is how far this node's clock is ahead of that of the other; below 0: behind. nil: it is not known.
	ClockAhead *time.Duration
}

// ClusterMeter returns the present numbers, or nil on a single node. It takes a lock of each replica, and waits neither
// for the disk nor for other nodes.
func (e *Engine) ClusterMeter() *ClusterMeter {
	if e.cluster == nil {
		return nil
	}
	return e.cluster.meter()
}

func (cn *clusterNode) meter() *ClusterMeter {
	view := cn.view()
	m := &ClusterMeter{Meter: *cn.Meter(), Leased: cn.Leased(), Store: view.Store}
	if m.Leased {
		m.LeaseLeft = time.Duration(max(0, cn.Until()-cn.Now()))
	}
	s := cn.Net.Stats()
	m.Unproven, m.Crowded, m.LinesLeftOut = s.Unproven, s.Crowded, s.LinesLeftOut
	m.Incomplete = s.AcceptFailed - min(s.AcceptFailed, s.Unproven+s.Crowded)
	snap := cn.snapshot()
	if snap == nil {
		return m
	}
	unreached, _ := view.Unreached(snap)
	m.Unreached = len(unreached)
	m.Controller = m.Leased && snap.Controller == cn.Self.ID
	cn.countLacking(m, snap)
	clocks := cn.clockSamples()
	for id, n := range snap.Nodes {
		if id == cn.Self.ID {
			continue
		}
		lag := m.Lags[id]
		p := PeerMeter{Name: n.Name, Up: cn.Net.Connected(id), Lag: time.Duration(lag.Ns), LagBytes: lag.Bytes}
		if ahead, ok := clocks[id]; ok {
			p.ClockAhead = &ahead
		}
		m.Peers = append(m.Peers, p)
	}
	return m
}

// countLacking counts the partitions as under-replicated that are led here and in sync, but have fewer replicas than
// their topics want and there are nodes.
func (cn *clusterNode) countLacking(m *ClusterMeter, snap *meta.Snapshot) {
	for _, t := range snap.Topics {
		for n := range t.Partitions {
			p := snap.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(n)})
			if p == nil || p.State.Leader != cn.Self.ID || m.InSync == 0 || len(p.State.ISR) < len(p.State.Replicas) {
				continue
			}
			if health.Lacks(snap, p) {
				m.InSync--
				m.UnderReplicated++
			}
		}
	}
}

// describe fills in the statistics that only a node of a cluster has.
func (cn *clusterNode) describe(out *StorageStats) {
	n := cn.Counts()
	out.Shortened, out.Yielded, out.ComparingWaits = n.Shortened, n.Yielded, n.ComparingWaits
	out.Dropped, out.Losses, out.Blocked = n.Dropped, n.Losses, n.Blocked
	cn.describeCopies(out)
	out.OlderMetadata = int(cn.olderMetadata.Load())
	out.UnknownTopics = len(cn.topics.unknown.names())
	if cn.opts.StoreState != nil {
		state := cn.opts.StoreState()
		out.StoreMembersApart = len(state.Apart)
		if state.Fault != "" {
			out.StoreMemberFailed = 1
		}
	}
	if snap := cn.snapshot(); snap != nil {
		view := cn.view()
		unreached, _ := view.Unreached(snap)
		out.NodesUnconnected = len(unreached)
	}
	if cn.olderDirectory.Load() {
		out.OlderDirectory = 1
	}
	out.ForwardedUnknown = cn.forward.Unknown()
	r := cn.remotes.Stats()
	out.RemoteExpired, out.RemoteStale, out.RemoteLateFence = r.Expired, r.Stale, r.LateFences
}
