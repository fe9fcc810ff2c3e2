package partition

import (
	"errors"
	"slices"

	"penstock/internal/node/errs"
	"penstock/replicate"
	"penstock/segment"
)

// role says what a replica does. Replica.mu guards it. follow, lead, shut, OpenRecovered and OpenAgain change it.
// roleSolo never changes.
//
//	roleIdle ──open──► roleFollower ◄──changeRole, stepDown──► roleLeader
//	   ▲                    └────────────shut─────────┬────────────┘
//	   └────OpenAgain──── roleClosed ◄────────────────┴──────► roleEnded
type role uint8

const (
	// roleIdle: the node has no copy yet, or the copy's log could not be opened.
	roleIdle role = iota
	roleFollower
	roleLeader
	// roleSolo is the role of a single node's replica. It leads and serves for its whole life, without a machine. The
	// node alone is the quorum: the replica admits everything (sealInbox), sends to nobody (appended), and commits what
	// is durable here (durableUpTo).
	roleSolo
	// roleClosed: the copy is not needed here, or it cannot be read from its beginning. It takes no part, and may be
	// opened again.
	roleClosed
	// roleEnded: the topic was deleted, the cluster does not know it, or the engine closes. The copy is closed for the
	// rest of this process. A new copy would not know what is committed, and its log may not be writable any more.
	roleEnded
)

// solo says whether this is the replica of a single node. That never changes, so any goroutine may call it without a
// lock.
func (r *Replica) solo() bool { return r.node == nil }

// active says whether the copy takes part in replication. mu is held.
func (r *Replica) active() bool { return r.role == roleFollower || r.role == roleLeader }

// isClosed says whether the copy was closed. mu is held.
func (r *Replica) isClosed() bool { return r.role == roleClosed || r.role == roleEnded }

// follow makes the replica a follower, with a machine that knows its log. mu is held.
func (r *Replica) follow(f *replicate.Follower) {
	r.role, r.leader, r.follower = roleFollower, nil, f
}

// lead makes the replica the leader. mu is held.
func (r *Replica) lead(l *replicate.Leader) {
	r.role, r.leader, r.follower = roleLeader, l, nil
}

// newSolo returns the replica of a single node. Its log is whole, and ends where the machine of pt says.
func newSolo(pt *Partition) *Replica {
	r := &Replica{pt: pt, role: roleSolo, durable: pt.machine.State().Next}
	r.pending.Clear()
	r.target.Store(uint32(soloNode))
	pt.Leading.Store(true)
	r.serves.Store(true)
	return r
}

// changeRole makes this replica the leader if the store says so. It does nothing if the store named another process
// (Boot), if this epoch was already led or seen, or if this copy must not be elected. mu is held.
func (r *Replica) changeRole() {
	st := &r.state
	if r.leader != nil || r.follower == nil || st.Leader != r.node.Self.ID || st.Boot != r.node.Self.Boot ||
		st.Epoch <= r.ledEpoch {
		return
	}
	if r.follower.Epoch() > st.Epoch || !r.follower.Electable() || r.pt.epochs.Last() >= st.Epoch ||
		r.pt.WhyUnread() != nil || !slices.Contains(st.ISR, r.node.member()) {
		return
	}
	log := r.follower.Log()
	if n := len(log.Epochs); n > 0 && log.Epochs[n-1].Epoch >= st.Epoch {
		return
	}
	r.ledEpoch = st.Epoch
	r.counted = replicate.LeaderCounts{}
	cfg := r.node.replication
	cfg.LagMaxNs, cfg.CatchUpBytesPerSec = r.node.rates()
	cfg.ListShort = r.node.store.Feature() >= marksLevel
	r.lead(replicate.NewLeader(cfg, r.node.member(), r.node.Self.Boot, log, st, r.node.Now()))
	r.node.store.counters.LeaderChanges.Add(1)
	r.pending.Clear()
	r.startEpoch, r.granted, r.stalled, r.writesPaused = false, false, nil, false
	r.setLeads(true)
	r.feed = append(r.feed, replicate.Event{Kind: replicate.EvLease, DeadlineNs: r.node.Until()},
		replicate.Event{Kind: replicate.EvTick})
	for _, m := range st.ISR { // do not wait for members that are known to be down, often the old leader
		if m.Node != r.node.Self.ID && (r.node.above.HasExited(m.Node) || !r.node.IsLive(m.Node)) {
			r.feed = append(r.feed, replicate.Event{Kind: replicate.EvPeerDown, Node: m.Node})
		}
	}
	r.node.Log.Info("leads a partition",
		"topic", r.pt.topic.Name, "partition", r.pt.number, "epoch", st.Epoch,
		"live_isr", r.node.names(r.node.present(st.ISR)), "isr", r.node.names(st.ISR))
}

// setLeads opens the inbox to puts, or closes it. mu is held. It takes Inbox.mu, because Inbox.Enter reads Leading
// under that lock.
func (r *Replica) setLeads(on bool) {
	r.pt.SetLeads(on)
}

// setServing computes serves and serveEpoch. Channels deliver from here only if the leader has its lease, and
// everything that was in the log when the epoch began is committed. mu is held.
func (r *Replica) setServing() {
	epoch := segment.Epoch(0)
	switch {
	case r.leader == nil || !r.leader.Serving() || !r.pending.Opened:
		r.serveFrom = 0
	case r.serving() == 0 && r.serveFrom == 0:
		r.serveFrom = r.pt.machine.State().Next
		fallthrough
	default:
		if r.committed() >= r.serveFrom {
			epoch = r.leader.Epoch()
		}
	}
	if epoch > 1 && epoch != r.servedIn {
		// An ephemeral channel that was at another leader has had what is there, as far as this node can know. Before
		// the first epoch there was nothing.
		r.servedIn = epoch
		r.pt.notePassed(min(r.pt.visible.Load(), r.pt.pausedFrom.Load()))
	}
	r.serves.Store(epoch != 0)
	if segment.Epoch(r.serveEpoch.Swap(uint64(epoch))) != epoch {
		r.out.role = true
	}
}

// serving returns the epoch in which channels deliver from this node, or 0 if they do not.
func (p *published) serving() segment.Epoch { return segment.Epoch(p.serveEpoch.Load()) }

// stepDown replaces a leader that stopped by a follower. The outcome of batches that were appended and not committed is
// unknown: the next leader decides about them. Puts that wait in the inbox were not stored, and go to the next leader.
// mu is held.
func (r *Replica) stepDown() {
	why := r.leader.Err()
	r.node.Log.Info("leads a partition no more",
		"topic", r.pt.topic.Name, "partition", r.pt.number, "epoch", r.leader.Epoch(), "why", why)
	r.count()
	disk := errors.Is(why, replicate.ErrDisk)
	r.node.above.Freeze(r.pt)
	r.setLeads(false)
	if disk {
		r.fail(r.pending.Drain(), diskRefusal(why))
	} else {
		r.fail(r.pending.Drain(), errs.ErrUnknown)
	}
	log := r.leader.Log()
	r.follow(replicate.NewFollower(r.node.replication, r.node.member(), r.node.Self.Boot, log))
	r.startEpoch, r.stalled, r.writesPaused = false, nil, false
	r.setServing()
	r.out.reroute = true
	r.damaged = nil
	bad := r.isolated()
	if r.feed = append(r.feed, bad...); len(bad) == 0 {
		r.correctDamaged(r.row.Load())
	}
	if disk {
		r.feed = append(r.feed, replicate.Event{Kind: replicate.EvFault, Err: why})
	}
	r.feed = append(r.feed, replicate.Event{Kind: replicate.EvState, State: &r.state})
}

// count adds the counts of the leader's machine since the last call to the engine's counters. mu is held.
func (r *Replica) count() {
	c, n := r.node.store.counters, r.leader.Counts()
	if n == r.counted {
		return
	}
	c.ISRChanges.Add(n.ISRChanges - r.counted.ISRChanges)
	c.ISRHeldBack.Add(n.ISRHeldBack - r.counted.ISRHeldBack)
	c.AbsentReplicas.Add(n.Absences - r.counted.Absences)
	c.Stranded.Add(n.Stranded - r.counted.Stranded)
	if lost := n.Losses - r.counted.Losses; lost > 0 {
		r.node.losses.Add(lost)
		r.node.Log.Error("the end of a partition's log may be lost: recovery shortened this copy, every other replica "+
			"was asked, and none has more or all that was known to be committed. The partition goes on with the longest "+
			"copy that there is", "topic", r.pt.topic.Name, "partition", r.pt.number,
			"epoch", r.leader.Epoch(), "end", r.leader.Log().End.Next)
	}
	r.counted = n
}

// fencedAbove says whether the leader of an epoch above this one has asked for a fence. That leader may be delivering
// already, although this node has not heard of it from the store.
func (p *published) fencedAbove(epoch segment.Epoch) bool {
	return segment.Epoch(p.fenced.Load()) > epoch
}

// NewestEpoch returns the newest epoch of the partition that this node has heard of. The node hands over to its clients
// nothing that the leader of an older epoch delivered.
func (p *published) NewestEpoch() segment.Epoch {
	epoch := segment.Epoch(p.fenced.Load())
	if row := p.row.Load(); row != nil {
		epoch = max(epoch, row.State.Epoch)
	}
	return epoch
}

// soloNode is the value of Replica.target on a single node.
const soloNode replicate.NodeID = 1
