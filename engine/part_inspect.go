package engine

import (
	"slices"

	"penstock/engine/core"
	"penstock/replicate"
	"penstock/segment"
)

// PartitionMarks is the state of a partition's copy on one node that a simulation checks after every step. Values can
// be compared with ==.
type PartitionMarks struct {
	ID        segment.Identity
	Leads     bool          // puts go to this node's inbox
	Serves    bool          // channels may deliver
	Stuck     bool          // the copy is closed, or stopped for good
	Cutting   bool          // its log is being cut
	Epoch     segment.Epoch // of the leader's machine, or the newest that the follower's machine knows
	MinISR    int
	ISR       int // its number of members, at a leader; else 0
	Committed segment.Position
	Durable   segment.Position
	End       segment.Position
	StartID   segment.MsgID  // id of the first message that the log may have
	StartAt   segment.Offset // offset of the first batch
	EndAt     segment.Offset
	Drops     int // how often this process has given the copy up
}

// PartitionView is the whole state of a copy that simulations can see.
type PartitionView struct {
	PartitionMarks
	Topic    string
	Member   replicate.Member
	Start    segment.Position
	Visible  segment.MsgID
	Pending  int  // batches that are appended and not committed
	Compares bool // it leads, recovery had cut its log, and it serves only after it has compared its log with the others
	Asks     bool // it compares, waits for another replica, and has asked operators for help
	Channels []ChannelView
}

// ChannelView is the state of a channel in the fold of a partition's log.
type ChannelView struct {
	Name             string
	Start, Confirmed segment.MsgID
	Ranges           []core.IDRange // confirmed above Confirmed
}

// marks fills in v. Only a simulation calls it, while no task runs.
func (pt *partition) marks(v *PartitionMarks) {
	r := pt.rep
	*v = PartitionMarks{
		ID: pt.Identity(), Leads: r.pt.Leading.Load(), Serves: r.serves.Load(), MinISR: r.state.MinISR,
		Committed: r.committed(), Durable: r.durable, End: pt.machine.State().Next, Cutting: r.cut != nil, Drops: r.discards,
	}
	v.StartAt, _, v.StartID = pt.Log().Start()
	v.EndAt, _, _ = pt.Log().End()
	switch {
	case r.leader != nil:
		v.Epoch, v.ISR, v.Stuck = r.leader.Epoch(), len(r.leader.ISR()), r.leader.Err() != nil
	case r.follower != nil:
		v.Epoch, v.Stuck = r.follower.Epoch(), !r.follower.Electable()
	default:
		v.Stuck = true
	}
}

// view returns the whole state of the copy. Only a simulation calls it, while no task runs.
func (pt *partition) view() PartitionView {
	r := pt.rep
	v := PartitionView{
		Topic: pt.t.name, Member: r.cn.member(), Visible: segment.MsgID(pt.visible.Load()), Pending: r.pending.n,
	}
	pt.marks(&v.PartitionMarks)
	v.Compares = r.leader != nil && r.leader.Comparing()
	v.Asks = r.leader != nil && (r.blocked != 0 || r.comparing < 0)
	_, v.Start, _ = pt.log.Start()
	pt.fold.Each(func(cur *core.Cursor) {
		v.Channels = append(v.Channels, ChannelView{cur.Name, cur.Start, cur.Confirmed, slices.Clone(cur.Ranges.Ranges())})
	})
	return v
}

// dropReads releases what was read for followers and is not sent, because the simulated process has ended.
func (pt *partition) dropReads() {
	for _, rd := range pt.rep.reads {
		rd.out.Release()
	}
}

// readLog calls visit with the offset and the content of each batch of the log, in order, until visit returns false. It
// begins at offset from, or at the start of the log if that is later.
func (pt *partition) readLog(
	from segment.Offset, visit func(at segment.Offset, h *segment.Header, body []byte) bool,
) error {
	at, _, _ := pt.log.Start()
	at = max(at, from)
	end, _, _ := pt.log.End()
	for at < end {
		var v segment.View
		if err := pt.log.View(&v, at, refoldBytes); err != nil {
			return err
		}
		var it segment.BatchIter
		it.Reset(v.Bytes())
		for h, body, ok := it.Next(); ok; h, body, ok = it.Next() {
			if !visit(at, h, body) {
				v.Release()
				return nil
			}
			at += segment.Offset(h.Size())
		}
		v.Release()
		if err := it.Err(); err != nil {
			return err
		}
	}
	return nil
}
