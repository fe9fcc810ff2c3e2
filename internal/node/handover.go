package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/partition"
	"penstock/replicate"
)

// balance hands leaderships of this node to the preferred leaders, at most maxBalanceCount every balanceInterval. So a
// node that was away gets its leaderships back, a replica that is to be removed gives its leadership away, a node whose
// clock differs gives all of them away, and what an operator has ordered (meta.Partition.TransferTo) happens. It runs
// on a goroutine of its own.
func (cn *clusterNode) balance() {
	for cn.e.host.Pause(balanceInterval, cn.Ctx.Done()) {
		snap := cn.Rows.Snapshot()
		for left, parts := maxBalanceCount, cn.e.store.Partitions(); left > 0 && len(parts) > 0; parts = parts[1:] {
			pt := parts[0]
			if !pt.Serves() || cn.Leaving.Load() {
				continue
			}
			row := snap.Partitions.Get(pt.Identity())
			if row == nil {
				continue
			}
			to := cn.opts.PreferredLeader(snap, pt.Identity())
			if to != 0 && to != cn.Self.ID && (row.TransferTo() == to || cn.convenient(snap, row, pt, to)) {
				left--
				cn.HandOverPartition(pt, to)
			}
		}
	}
}

// convenient says whether this node may hand a partition over to node to, which nobody has ordered: all replicas are in
// sync, and to does not come back from a broken network, unless the replica here has to go. If a move takes it away and
// the new one is in sync, no other replica is waited for: one may be dead for good. Nor is it if the clock of this node
// differs: each delay that it stores meanwhile may be wrong.
func (cn *clusterNode) convenient(
	s *meta.Snapshot, row *meta.Partition, pt *partition.Partition, to replicate.NodeID,
) bool {
	own := s.Nodes[cn.Self.ID]
	inSync := len(row.State.ISR) == len(row.State.Replicas) || own != nil && own.ClockDiffers
	return replaced(s, row, cn.Self.ID) || inSync &&
		!(pt.Replica().WasStranded(to, s.Nodes) && stays(s, row, cn.Self.ID))
}

// replaced says whether a move takes the replica on a node away, and the one that stays in its place is in the ISR.
func replaced(s *meta.Snapshot, row *meta.Partition, node replicate.NodeID) bool {
	m := s.Moves[row.ID]
	stays := m.To
	if node == m.To {
		stays = m.From
	}
	return s.Goes(row.ID) == node &&
		replicate.HasNode(row.State.ISR, stays)
}

// stays says whether the topic is to keep its replica on a node: the replica is among the first Topic.Replicas of the
// row, no move takes it away, and the node is not being drained. balance moves the leadership of a replica that does
// not stay even to a node that was stranded before, because otherwise the leadership would delay the move or the drain.
func stays(s *meta.Snapshot, row *meta.Partition, node replicate.NodeID) bool {
	t, n := s.Topics[row.ID.Topic], s.Nodes[node]
	at := slices.Index(row.State.Replicas, node)
	return n != nil && !n.Draining && t != nil && at >= 0 && at < t.Replicas && s.Goes(row.ID) != node
}

// handOver hands every leadership of this node to another replica in the ISR. No accepted put is lost or fails because
// of that. handOver returns when this node leads no partition that another node could lead, or when ctx ends. If
// another call is running, it first waits for the end of that.
func (cn *clusterNode) handOver(ctx context.Context) error {
	return cn.handOverSome(ctx, func(*partition.Partition) bool { return true })
}

// drain is handOver for a node that goes on: it keeps what only nodes could lead that would hand it back at once.
func (cn *clusterNode) drain(ctx context.Context) error {
	wanted := func(pt *partition.Partition) bool {
		if cn.opts.PreferredLeader == nil {
			return true
		}
		to := cn.opts.PreferredLeader(cn.Rows.Snapshot(), pt.Identity())
		return to != 0 && to != cn.Self.ID
	}
	if !slices.ContainsFunc(cn.e.store.Partitions(), func(pt *partition.Partition) bool {
		return pt.Leading.Load() && wanted(pt)
	}) {
		return nil
	}
	return cn.handOverSome(ctx, wanted)
}

func (cn *clusterNode) handOverSome(ctx context.Context, wanted func(*partition.Partition) bool) error {
	if err := cn.Await(ctx, func() bool { return cn.Leaving.CompareAndSwap(false, true) }); err != nil {
		return err
	}
	defer cn.e.news.Raise() // another call may wait for the end of this one
	defer cn.Leaving.Store(false)
	cn.confirm(ctx, cn.e.catalog.Topics())
	err := cn.Await(ctx, func() bool {
		left := 0
		for _, pt := range cn.e.store.Partitions() {
			switch {
			case !pt.Leading.Load():
			case !wanted(pt):
				cn.Keep(pt) // it was wanted a moment ago: its writes may be paused
			case cn.TryHandOver(ctx, pt, 0):
				left++
			}
		}
		return left == 0
	})
	return cmp.Or(err, ctx.Err())
}

// confirmPatience is how long a hand-over waits until confirmations are committed.
const confirmPatience = 500 * time.Millisecond

func (cn *clusterNode) Confirm(ctx context.Context, topic uuid.UUID) {
	if t, ok := cn.e.catalog.LookupTopicID(topic); ok {
		cn.confirm(ctx, []*Topic{t})
	}
}

// confirm has all written that consumers here have finished so far, and waits until it is committed or refused, at most
// for confirmPatience. The new leader delivers again the messages that they finish later.
func (cn *clusterNode) confirm(ctx context.Context, topics []*Topic) {
	var left atomic.Int64
	left.Store(1)
	all := make(chan struct{})
	over := func(error) {
		if left.Add(-1) == 0 {
			close(all)
		}
	}
	for _, t := range topics {
		for _, c := range t.Channels() {
			if left.Add(1); c.Local().Confirm(over) {
				over(nil)
			}
		}
	}
	over(nil)
	cn.e.host.EitherUntil(cn.e.host.Mono()+confirmPatience, all, ctx.Done())
}

// Leave hands this node's leaderships over and deregisters the node, so that the other nodes go on at once. ctx bounds
// the hand-over; after an error the other nodes take over the remaining leaderships when this node's lease ends. Only
// the first call does something; later calls return its error. The caller calls Close next. From the first call on,
// HealthFacts says that the node is shutting down. On a single node, Leave does nothing else.
func (e *Engine) Leave(ctx context.Context) error {
	e.leaving.Store(true)
	return e.members.leaveCluster(ctx)
}

// leaveBeforeClose is Leave, for at most ClusterOptions.LeaveTimeout. It logs an error instead of returning it.
func (cn *clusterNode) leaveBeforeClose() {
	patience := cmp.Or(cn.e.current().Cluster.LeaveTimeout, 5*time.Second)
	ctx, cancel := cn.e.host.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := cn.leaveCluster(ctx); err != nil {
		cn.e.log.Warn("not everything could be handed over before the end; the others take it when the lease ends",
			"error", err)
	}
}

func (cn *clusterNode) leaveCluster(ctx context.Context) error {
	cn.leave.Do(func() {
		err := cn.handOver(ctx)
		cn.linger(ctx)
		cn.reportData(ctx)
		cn.leaveErr = errors.Join(err, cn.Rows.Leave(ctx))
	})
	return cn.leaveErr
}
