package engine

import (
	"penstock/engine/core"
	"penstock/replicate"
	"penstock/segment"
)

// PartitionView is what a simulation looks at of a partition's copy on one node.
type PartitionView struct {
	ID        segment.Identity
	Topic     string
	Leads     bool          // puts go to its inbox
	Serves    bool          // channels may deliver
	Stuck     bool          // the copy is closed, or stopped for good
	Cutting   bool          // its log is being cut
	Epoch     segment.Epoch // of the leader's machine, or the newest that the follower's has heard of
	Member    replicate.Member
	MinISR    int
	ISR       int // members, of a leader
	Start     segment.Position
	Committed segment.Position
	Durable   segment.Position
	End       segment.Position
	Visible   segment.MsgID
	Pending   int // batches that are appended and not committed
	Channels  []ChannelView
}

// ChannelView is a channel in the fold of a partition's log.
type ChannelView struct {
	Name             string
	Start, Confirmed segment.MsgID
}

// Partitions shows the copies that this node has.
func (m *Manual) Partitions() []PartitionView {
	if m.e == nil || m.e.cluster == nil {
		return nil
	}
	var all []PartitionView
	for _, pt := range m.e.partitionList() {
		r := pt.rep
		if r == nil {
			continue
		}
		v := PartitionView{
			ID: pt.identity(), Topic: pt.t.name, Leads: r.leads.Load(), Serves: r.serves.Load(), Member: m.e.cluster.member(), MinISR: r.state.MinISR,
			Committed: r.committed(), Durable: r.durable, End: pt.machine.State().Next, Visible: segment.MsgID(pt.visible.Load()), Pending: r.pending.n, Cutting: r.cut != nil,
		}
		_, v.Start, _ = pt.log.Start()
		switch {
		case r.leader != nil:
			v.Epoch, v.ISR, v.Stuck = r.leader.Epoch(), len(r.leader.ISR()), r.leader.Err() != nil
		case r.follower != nil:
			v.Epoch, v.Stuck = r.follower.Epoch(), !r.follower.Electable()
		default:
			v.Stuck = true
		}
		pt.fold.Each(func(cur *core.Cursor) {
			v.Channels = append(v.Channels, ChannelView{cur.Name, cur.Start, cur.Confirmed})
		})
		all = append(all, v)
	}
	return all
}

// ReadLog shows the batches of a copy from the beginning of its log on, with the place of each, until visit says false.
func (m *Manual) ReadLog(id segment.Identity, visit func(at segment.Offset, h *segment.Header, body []byte) bool) error {
	for _, pt := range m.e.partitionList() {
		if pt.identity() != id {
			continue
		}
		at, _, _ := pt.log.Start()
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
	}
	return nil
}
