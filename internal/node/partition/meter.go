package partition

import "penstock/replicate"

// Meter counts the copies of a node by what their partitions can do, for monitoring. A partition that this node leads
// is judged by its machine, any other one by the newest row. Each copy counts once.
type Meter struct {
	InSync          int // led here, and all replicas are in sync
	UnderReplicated int // led here, and a replica is not in sync
	BelowMinISR     int // led here, and too few replicas are healthy: nothing is committed
	Leaderless      int // nobody serves it, as far as this node knows: it counts as such while this node has no lease
	Following       int // another node leads it

	// Lags has the worst lag of each other node in the partitions led here, and the sum of the bytes.
	Lags map[replicate.NodeID]replicate.Lag
}

// Led returns how many partitions this node leads and serves.
func (m *Meter) Led() int { return m.InSync + m.UnderReplicated + m.BelowMinISR }

// Meter counts all copies of the node. It takes each Replica.mu, and waits for nothing else.
func (cn *Env) Meter() *Meter {
	m := &Meter{Lags: map[replicate.NodeID]replicate.Lag{}}
	for _, pt := range cn.store.Partitions() {
		pt.replica.addTo(m)
	}
	return m
}

func (r *Replica) addTo(m *Meter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.active() {
		return
	}
	leader := replicate.NodeID(r.target.Load())
	switch l := r.leader; {
	case !r.node.Leased():
		m.Leaderless++
	case l == nil && leader != 0 && leader != r.node.Self.ID && r.node.IsLive(leader):
		m.Following++
	case l == nil || !l.Serving():
		m.Leaderless++
	case !l.HasQuorum():
		m.BelowMinISR++
	case len(l.ISR()) < len(r.state.Replicas):
		m.UnderReplicated++
	default:
		m.InSync++
	}
	if r.leader == nil {
		return
	}
	now := r.node.Now()
	for i := range r.leader.Progress() {
		lag := r.leader.Lag(&r.leader.Progress()[i], now)
		sum := m.Lags[lag.Node]
		m.Lags[lag.Node] = replicate.Lag{Node: lag.Node, Ns: max(sum.Ns, lag.Ns), Bytes: sum.Bytes + lag.Bytes}
	}
}
