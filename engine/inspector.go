package engine

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"penstock/engine/core"
	"penstock/engine/host"
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

// Inspector opens an engine in a simulation and reads its state, from the moment when it begins to open. Only the
// goroutine that steps the engine's host may call its methods.
type Inspector struct {
	host  *host.Stepped
	e     *Engine        // nil: Open has not been called
	marks PartitionMarks // scratch of EachMarks
}

// NewInspector makes an Inspector for an engine on h.
func NewInspector(h *host.Stepped) *Inspector { return &Inspector{host: h} }

// Open is engine.Open on the simulated host. One of the host's tasks must call it.
//
// Tasks call Options.Cluster.Store, which may wait. The instants that it gives to Registration.Lease are
// time.Unix(0, World.Instant()).
func (i *Inspector) Open(ctx context.Context, o Options) (*Engine, error) {
	return openEngine(ctx, o, i.host, func(e *Engine) { i.e = e })
}

// Kill ends the engine as a killed process ends: see host.Stepped.Kill. It returns an error if something still uses
// memory that only the end of a process would free.
func (i *Inspector) Kill() error {
	i.host.Kill()
	e := i.e
	if e == nil {
		return nil
	}
	for _, t := range e.Topics() {
		for _, c := range t.Channels() {
			c.local.ReleaseView()
		}
	}
	for _, pt := range e.partitionList() {
		for _, rd := range pt.rep.reads {
			rd.out.Release()
		}
	}
	_ = e.release() // the simulation has replaced the disk
	if e.arena != nil {
		return e.arena.Close()
	}
	return nil
}

// TopicID returns the topic's UUID, which differs from that of an earlier topic with the same name.
func (i *Inspector) TopicID(t *Topic) uuid.UUID { return t.uuid }

// Disk returns this node's view of its disk, and the number of writes that have completed.
func (i *Inspector) Disk() (state core.DiskState, done uint64) {
	_, done = i.e.pulse.Counts()
	return i.e.disks.now(), done
}

// EachMarks calls visit with the marks of each copy on this node, in the order in which the node got them. visit
// borrows the marks. EachMarks allocates nothing.
func (i *Inspector) EachMarks(visit func(*PartitionMarks)) {
	if i.e == nil {
		return
	}
	for _, pt := range i.e.partitionList() {
		pt.marks(&i.marks)
		visit(&i.marks)
	}
}

// marks fills in v.
func (pt *partition) marks(v *PartitionMarks) {
	r := pt.rep
	*v = PartitionMarks{
		ID: pt.identity(), Leads: r.pt.Leading.Load(), Serves: r.serves.Load(), MinISR: r.state.MinISR,
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

// Partitions returns the copies on this node.
func (i *Inspector) Partitions() []PartitionView {
	if i.e == nil {
		return nil
	}
	var all []PartitionView
	for _, pt := range i.e.partitionList() {
		r := pt.rep
		v := PartitionView{
			Topic: pt.t.name, Member: i.e.cluster.member(), Visible: segment.MsgID(pt.visible.Load()), Pending: r.pending.n,
		}
		pt.marks(&v.PartitionMarks)
		v.Compares = r.leader != nil && r.leader.Comparing()
		v.Asks = r.leader != nil && (r.blocked != 0 || r.comparing < 0)
		_, v.Start, _ = pt.Log().Start()
		pt.fold.Each(func(cur *core.Cursor) {
			v.Channels = append(v.Channels, ChannelView{cur.Name, cur.Start, cur.Confirmed, slices.Clone(cur.Ranges.Ranges())})
		})
		all = append(all, v)
	}
	return all
}

// ReadLog calls visit with the offset and the content of each batch of a copy, in order, until visit returns false. It
// begins at offset from, or at the start of the log if that is later.
func (i *Inspector) ReadLog(
	id segment.Identity, from segment.Offset, visit func(at segment.Offset, h *segment.Header, body []byte) bool,
) error {
	for _, pt := range i.e.partitionList() {
		if pt.identity() != id {
			continue
		}
		at, _, _ := pt.Log().Start()
		at = max(at, from)
		end, _, _ := pt.Log().End()
		for at < end {
			var v segment.View
			if err := pt.Log().View(&v, at, refoldBytes); err != nil {
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
