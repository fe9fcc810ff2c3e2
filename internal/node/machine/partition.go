package machine

import (
	"errors"
	"fmt"

	"penstock/segment"
)

// Errors of the partition's decisions, tested with errors.Is.
var (
	ErrNoSpace = errors.New(
		"engine: the disk is full: publishing is refused, consuming goes on; free space and publishing resumes by itself")
	// ErrNoInodes is an ErrNoSpace, too.
	ErrNoInodes error = noInodes{}
	ErrPoisoned       = errors.New("engine: the disk failed a write or flush: nothing more is stored until the node is " +
		"restarted; messages answered OK before are safe, this one's fate is unknown")
	ErrReadOnly = errors.New("engine: the partition stores nothing new, because stored data is corrupt or its ids are " +
		"used up: what can be read is still served; the log says more")
)

type noInodes struct{}

func (noInodes) Error() string {
	return "engine: the file system of the data directory has no inodes left, which every file needs, whatever its " +
		"size: publishing is refused, consuming goes on; remove files there that nobody needs, and publishing resumes by " +
		"itself"
}

func (noInodes) Unwrap() error { return ErrNoSpace }

// Purpose says what a batch is for. It decides which batches must come before it.
type Purpose uint8

const (
	PurposeData       Purpose = iota // messages, or control entries about channels
	PurposeEpochStart                // the first batch of an epoch
	PurposeCheckpoint                // the first batch of a segment: the whole fold, so that a segment stands alone
)

// PartitionEventKind is what happened to a partition.
type PartitionEventKind uint8

const (
	_            PartitionEventKind = iota
	PartitionPut                    // a put is at the head of the inbox: may it be appended? Count, Control
	// Purpose, Bytes, NextBytes: a batch of Bytes is about to be sealed, and after a checkpoint one of NextBytes: where
	// does it go?
	PartitionPlace
	PartitionAppend // the batch that was placed last was sealed: Bytes, Count, CRC, Purpose
	PartitionSpace  // the disk is full (Err: what puts are answered), or has room again (nil)
	PartitionFault  // Err: stored data is corrupt, which makes the log read-only; Flag: a disk fault poisons it
	PartitionLead   // Epoch: the cluster granted this epoch, which begins with the next batch
	PartitionFollow // State: the new end of the log, after a leader's batches were stored or the log was cut
)

// PartitionEvent is the input of Partition.Step; only the fields of its kind are used.
type PartitionEvent struct {
	Kind      PartitionEventKind
	Purpose   Purpose
	Control   bool
	Flag      bool
	Count     uint32
	CRC       uint32
	Bytes     int
	NextBytes int
	Epoch     segment.Epoch
	State     segment.State
	Err       error
}

// Placement says where a batch goes, and what its header's leader part says (segment.Header).
type Placement struct {
	Position        segment.Position
	FirstID         segment.MsgID
	Offset          segment.Offset
	Epoch           segment.Epoch
	PrevCRC         uint32
	Segment         uint32
	SegmentBase     segment.Offset
	SegmentCapacity int64
}

// PartitionResult is the output of Partition.Step.
type PartitionResult struct {
	Err       error
	First     Purpose   // after Place: PurposeData, or the purpose of the batch that must be appended first
	Placement Placement // after Place, unless First names another batch
}

// Partition decides what may be appended to the log of one partition, and where. It is a state machine without I/O,
// clock or goroutine. Its owner steps it with events in the order in which they happen. It does not know what is
// durable or committed (package replicate does).
type Partition struct {
	state   segment.State
	sizes   segment.Sizes
	placed  Placement     // result of the last Place, which Append makes true
	placing bool          // placed is valid
	granted segment.Epoch // by the cluster; 0: the next epoch is the last one plus 1
	started bool          // the epoch-start batch of the current epoch was appended
	full    error         // nil, or why only control entries may be appended
	fault   error         // nil, or why nothing may be appended
}

// NewPartition returns a machine for a log that ends at st.
func NewPartition(st segment.State, sizes segment.Sizes) *Partition {
	return &Partition{state: st, sizes: sizes}
}

// State returns the state of the log after all appended batches.
func (p *Partition) State() segment.State { return p.state }

// NextEpoch returns the epoch that begins when this node appends its first batch as the leader.
func (p *Partition) NextEpoch() segment.Epoch {
	if p.granted != 0 {
		return p.granted
	}
	return p.state.Epoch + 1
}

// Fault says why the partition takes no more writes; nil: it does.
func (p *Partition) Fault() error { return p.fault }

// Step is the only way to change the machine.
func (p *Partition) Step(ev *PartitionEvent, res *PartitionResult) {
	*res = PartitionResult{}
	switch ev.Kind {
	case PartitionPut:
		res.Err = p.admit(ev)
	case PartitionPlace:
		p.place(ev, res)
	case PartitionAppend:
		p.appended(ev)
	case PartitionSpace:
		p.full = ev.Err
	case PartitionFault:
		if p.fault == nil || ev.Flag {
			p.fault = ev.Err
		}
	case PartitionLead:
		if ev.Epoch <= p.state.Epoch {
			panic(fmt.Sprintf("BUG: epoch %d was granted to a log that has epoch %d", ev.Epoch, p.state.Epoch))
		}
		p.granted, p.started = ev.Epoch, false
	case PartitionFollow:
		p.state, p.started, p.placing = ev.State, false, false
	default:
		panic(fmt.Sprintf("BUG: partition event %d", ev.Kind))
	}
}

// admit says whether a put may be appended: nil or the error that answers it.
func (p *Partition) admit(ev *PartitionEvent) error {
	switch {
	case p.fault != nil:
		return p.fault
	case p.full != nil && !ev.Control:
		// Control entries are still appended: confirmations let retention free space.
		return p.full
	case uint64(p.state.NextID)+uint64(ev.Count) > uint64(segment.MaxMsgID):
		return ErrReadOnly
	}
	return nil
}

// place decides where the next batch goes. It changes nothing in the log's state: the caller may find that the group
// has no room, and ask again later.
func (p *Partition) place(ev *PartitionEvent, res *PartitionResult) {
	st := p.state
	roll := !fits(&st, ev.Bytes)
	switch ev.Purpose {
	case PurposeData:
		if !p.started {
			res.First = PurposeEpochStart
			return
		}
		if roll {
			res.First = PurposeCheckpoint
			return
		}
	case PurposeEpochStart:
		st.Epoch = p.NextEpoch()
		p.sizes.Place(&st, ev.Bytes)
	case PurposeCheckpoint:
		if st.SegmentCapacity != 0 {
			st.SegmentCapacity = int64(st.End - st.SegmentBase) // full, so that sizes.Place begins the next segment
		}
		p.sizes.Place(&st, ev.Bytes+ev.NextBytes)
	}
	p.placed = Placement{
		Position: st.Next, FirstID: st.NextID, Offset: st.End, Epoch: st.Epoch, PrevCRC: st.LastCRC,
		Segment: st.Segment, SegmentBase: st.SegmentBase, SegmentCapacity: st.SegmentCapacity,
	}
	p.placing = true
	res.First, res.Placement = ev.Purpose, p.placed
}

// fits says whether the batch fits into the segment that contains End. Nothing fits into a segment that was not begun:
// the first batch of a log is an epoch start, with which sizes.Place begins a segment.
func fits(st *segment.State, batchBytes int) bool {
	return int64(st.End-st.SegmentBase)+int64(batchBytes) <= st.SegmentCapacity
}

// appended advances the log's state past the batch that was placed last.
func (p *Partition) appended(ev *PartitionEvent) {
	if !p.placing || p.placed.Position != p.state.Next {
		panic("BUG: a batch was appended that was not placed")
	}
	p.placing = false
	p.state.Epoch = p.placed.Epoch
	p.state.Segment, p.state.SegmentBase, p.state.SegmentCapacity = p.placed.Segment, p.placed.SegmentBase,
		p.placed.SegmentCapacity
	p.state.Next++
	p.state.NextID += segment.MsgID(ev.Count)
	p.state.End += segment.Offset(ev.Bytes)
	p.state.LastCRC = ev.CRC
	if ev.Purpose == PurposeEpochStart {
		p.started = true
	}
}
