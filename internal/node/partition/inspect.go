package partition

import (
	"slices"

	"penstock/internal/node/fold"
	"penstock/replicate"
	"penstock/segment"
)

// Marks is the part of a copy's state that a simulation checks after every step. Values can be compared with ==.
type Marks struct {
	ID        segment.Identity
	Leads     bool          // puts go to this node's inbox
	Serves    bool          // channels may deliver
	Stuck     bool          // the copy is closed, or stopped for good
	Opened    bool          // this process has opened the copy at least once, so Durable counts
	Cutting   bool          // its log is being cut
	Epoch     segment.Epoch // epoch of the leader's machine, or the newest that the follower's machine knows
	MinISR    int
	ISR       int // number of members of the ISR at a leader; otherwise 0
	Committed segment.Position
	Durable   segment.Position
	End       segment.Position
	StartID   segment.MsgID  // id of the first message that the log may have
	StartAt   segment.Offset // offset of the first batch
	EndAt     segment.Offset
	Drops     int // how often this process has given the copy up
	Retired   int // how often this process has closed the copy because the node was not a replica any more
}

// View is the state of a copy that simulations see.
type View struct {
	Marks
	Topic    string
	Member   replicate.Member
	Start    segment.Position
	Visible  segment.MsgID
	Pending  int  // number of batches that are appended and not committed
	Compares bool // the copy leads, but is shortened: it must compare its log with others before it serves
	// Shortened says that the copy may lack what it acknowledged, so that it proves nothing to others that compare.
	Shortened bool
	Asks      bool // the copy compares, waits for another replica, and has logged that operators should help
	Channels  []ChannelView
	// LeaderStart is where the log of a leader began when that leader said that it had removed what this copy could not
	// read; 0: no leader has said so. What lies below is damaged or not, and nobody needs it.
	LeaderStart segment.Position
}

// ChannelView is the state of a channel in the fold of a partition's log.
type ChannelView struct {
	Name             string
	Start, Confirmed segment.MsgID
	Ranges           []fold.IDRange // ids above Confirmed that are confirmed
}

// Marks fills in v. The caller meets the conditions of View.
func (pt *Partition) Marks(v *Marks) {
	r := pt.replica
	*v = Marks{
		ID: pt.Identity(), Leads: r.pt.Leading.Load(), Serves: r.serves.Load(), MinISR: r.state.MinISR,
		Committed: r.committed(), Durable: r.durable, End: pt.machine.State().Next, Cutting: r.cut != nil, Drops: r.discards,
		Retired: r.retired, Opened: r.generation > 0,
	}
	v.StartAt, _, v.StartID = pt.Log().Start()
	v.EndAt, _, _ = pt.Log().End()
	switch {
	case r.leader != nil:
		v.Epoch, v.ISR, v.Stuck = r.leader.Epoch(), len(r.leader.ISR()), r.leader.Err() != nil
		v.MinISR = r.leader.MinISR() // the answer to a proposal may have told it of a newer row than r.state
	case r.follower != nil:
		v.Epoch, v.Stuck = r.follower.Epoch(), !r.follower.Electable()
	default:
		v.Stuck = true
	}
}

// View returns the state of the copy that simulations see. Either Replica.mu is held, or no task of the simulation
// runs.
func (pt *Partition) View() View {
	r := pt.replica
	v := View{
		Topic: pt.topic.Name, Visible: segment.MsgID(pt.visible.Load()), Pending: r.pending.Len(),
		LeaderStart: pt.LeaderStart(),
	}
	if !r.solo() {
		v.Member = r.node.member()
	}
	pt.Marks(&v.Marks)
	v.Shortened = r.leader != nil && r.leader.Shortened() || r.follower != nil && r.follower.Shortened()
	v.Compares = r.leader != nil && r.leader.Comparing()
	v.Asks = r.leader != nil && (r.blocked != 0 || r.comparing < 0)
	_, v.Start, _ = pt.log.Start()
	pt.fold.Each(func(cur *fold.Cursor) {
		v.Channels = append(v.Channels, ChannelView{cur.Name, cur.Start, cur.Confirmed, slices.Clone(cur.Ranges.Ranges())})
	})
	return v
}

// State is the full state of a copy on one node at one moment. Tests compare nodes by it.
type State struct {
	View
	State    segment.State // of the log, after everything in it
	Epochs   []replicate.EpochStart
	Cursors  []byte           // the state of the channels, encoded
	Delayed  int              // messages that wait for their time
	Acked    segment.Position // everything below is durable on this node; a follower acknowledges up to here
	Incoming int              // batches of the leader that are not in the log yet
	Exchange uint64           // see replicate.Follower.Exchange; 0: not a follower
	Needed   segment.MsgID    // every message below is confirmed by all durable channels, or carried by a control batch
	Logs     uint64           // how often the log was reset or cut
}

// State returns the state of the copy, which has a log. Only tests of the node call it. It takes Replica.mu.
func (pt *Partition) State() State {
	r := pt.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	c := State{
		View: pt.View(), State: pt.machine.State(), Epochs: slices.Clone(pt.epochs.Entries()),
		Cursors: pt.fold.Append(nil), Delayed: len(pt.fold.Deferred), Acked: r.durable, Incoming: len(r.incoming),
		Needed: pt.flush.Needed(), Logs: pt.flush.Reopens(),
	}
	pt.fold.Each(func(cur *fold.Cursor) { c.Delayed += len(cur.Requeued) })
	if f := r.follower; f != nil {
		c.Acked, c.Exchange = f.Log().Durable, f.Exchange()
	}
	return c
}

// DropReads releases batches that were read for other replicas and not sent, because the simulated process has ended.
func (pt *Partition) DropReads() { pt.replica.dropRead() }
