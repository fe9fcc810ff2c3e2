package core

import (
	"errors"
	"fmt"

	"penstock/segment"
)

// Errors of the partition's decisions, tested with errors.Is.
var (
	ErrNoSpace = errors.New(
		"engine: the disk is full: publishing is refused, consuming goes on; free space and publishing resumes by itself")
	ErrPoisoned = errors.New("engine: the disk failed a write or flush: nothing more is stored until the node is " +
		"restarted; messages answered OK before are safe, this one's fate is unknown")
	ErrReadOnly = errors.New("engine: the partition stores nothing new, because stored data is corrupt or its ids are " +
		"used up: what can be read is still served; the log says more")
)

// Purpose says what a batch to be placed is for. It decides what must stand before it.
type Purpose uint8

const (
	PurposeData       Purpose = iota // messages, or control entries about channels
	PurposeEpochStart                // the first batch of this incarnation
	PurposeCheckpoint                // the first batch of a segment: all cursors, so that a segment stands alone
)

// PartitionEventKind is what happened to a partition.
type PartitionEventKind uint8

const (
	_            PartitionEventKind = iota
	PartitionPut                    // a request reached the head of the inbox: may it be appended? Count, Control
	// a batch of Bytes (and, for a checkpoint, NextBytes behind it) is about to be sealed: where?
	PartitionPlace
	PartitionAppend // the batch placed last was sealed: Bytes, Count, CRC
	PartitionSpace  // the disk is full (Flag) or has room again
	PartitionFault  // Err: corruption makes it read-only; a disk fault (Flag) poisons it
	PartitionLead   // Epoch: the next batch begins this epoch, which the cluster granted
	PartitionFollow // State: the log ends so now; another node's leader placed its batches, or it was cut
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

// Placement is where a batch goes and what its leader's part says.
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
	First     Purpose   // after Place: PurposeData, or what must be appended before the batch
	Placement Placement // after Place with First == PurposeData, or for the other purposes
}

// Partition decides what may be appended to the log of one partition and where it goes: a state machine without I/O,
// clock or goroutine. Its owner feeds it events in the order in which they happen. What is durable and committed is not
// its business (package replicate).
type Partition struct {
	state   segment.State
	sizes   segment.Sizes
	placed  Placement // what Place decided last and Append will make true
	placing bool
	granted segment.Epoch // by the cluster; 0: the one after the last
	started bool          // this incarnation's epoch-start batch was appended
	noSpace bool
	fault   error
}

// NewPartition continues a log at st.
func NewPartition(st segment.State, sizes segment.Sizes) *Partition {
	return &Partition{state: st, sizes: sizes}
}

// State is the log after everything appended.
func (p *Partition) State() segment.State { return p.state }

// NextEpoch is the epoch that the next incarnation's batches carry.
func (p *Partition) NextEpoch() segment.Epoch {
	if p.granted != 0 {
		return p.granted
	}
	return p.state.Epoch + 1
}

// Fault is nil, or why the partition takes no more writes.
func (p *Partition) Fault() error { return p.fault }

// Step is the machine's only door.
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
		p.noSpace = ev.Flag
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

func (p *Partition) admit(ev *PartitionEvent) error {
	switch {
	case p.fault != nil:
		return p.fault
	case p.noSpace && !ev.Control:
		// Confirmations go on: they are what lets retention free space.
		return ErrNoSpace
	case uint64(p.state.NextID)+uint64(ev.Count) > uint64(segment.MaxMsgID):
		return ErrReadOnly
	}
	return nil
}

// place decides where the next batch goes, without moving anything: the caller may find that the
// group has no room and ask again later.
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
			st.SegmentCapacity = int64(st.End - st.SegmentBase) // full: Place moves on
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

// fits says whether a batch can follow in the segment that End lies in. A segment not begun fits
// nothing: the first batch of a log is an epoch start, and Place begins the segment with it.
func fits(st *segment.State, batchBytes int) bool {
	return int64(st.End-st.SegmentBase)+int64(batchBytes) <= st.SegmentCapacity
}

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
