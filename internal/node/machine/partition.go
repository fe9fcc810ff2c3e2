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

// Partition decides what may be appended to the log of one partition, and where. It is a state machine without I/O,
// clock or goroutine. The committer calls it, with Replica.mu held, in the order in which things happen. It does not
// know what is durable or committed (package replicate does). A crash loses it; recovery makes one of the state of the
// log that it finds.
type Partition struct {
	state   segment.State
	sizes   segment.Sizes
	placed  Placement     // result of the last Place, which Appended makes true
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

// SetFull says that the disk is full, and what puts are answered because of it. With nil it has room again.
func (p *Partition) SetFull(err error) { p.full = err }

// Corrupt makes the log read-only, because stored data is corrupt. The first fault stays.
func (p *Partition) Corrupt(err error) {
	if p.fault == nil {
		p.fault = err
	}
}

// Poison makes the log read-only, because the disk failed a write. It replaces any other fault.
func (p *Partition) Poison(err error) { p.fault = err }

// Lead says that the cluster granted an epoch, which begins with the next batch.
func (p *Partition) Lead(epoch segment.Epoch) {
	if epoch <= p.state.Epoch {
		panic(fmt.Sprintf("BUG: epoch %d was granted to a log that has epoch %d", epoch, p.state.Epoch))
	}
	p.granted, p.started = epoch, false
}

// Follow sets the end of the log, after a leader's batch was stored or the log was cut.
func (p *Partition) Follow(st segment.State) { p.state, p.started, p.placing = st, false, false }

// Admit says whether count messages, or a control entry, may be appended: nil or the error that answers the put.
func (p *Partition) Admit(count uint32, control bool) error {
	switch {
	case p.fault != nil:
		return p.fault
	case p.full != nil && !control:
		// Control entries are still appended: confirmations let retention free space.
		return p.full
	case uint64(p.state.NextID)+uint64(count) > uint64(segment.MaxMsgID):
		return ErrReadOnly
	}
	return nil
}

// Place decides where a batch of so many bytes goes that is about to be sealed. If another batch must be appended
// before it, Place returns the purpose of that one, and no placement. A checkpoint leaves room in its segment for the
// batch that follows it, of nextBytes. Place changes nothing in the log's state: the caller may find that the group has
// no room, and ask again later.
func (p *Partition) Place(purpose Purpose, bytes, nextBytes int) (first Purpose, at Placement) {
	st := p.state
	switch purpose {
	case PurposeData:
		if !p.started {
			return PurposeEpochStart, Placement{}
		}
		if !fits(&st, bytes) {
			return PurposeCheckpoint, Placement{}
		}
	case PurposeEpochStart:
		st.Epoch = p.NextEpoch()
		p.sizes.Place(&st, bytes)
	case PurposeCheckpoint:
		if st.SegmentCapacity != 0 {
			st.SegmentCapacity = int64(st.End - st.SegmentBase) // full, so that sizes.Place begins the next segment
		}
		p.sizes.Place(&st, bytes+nextBytes)
	}
	p.placed = Placement{
		Position: st.Next, FirstID: st.NextID, Offset: st.End, Epoch: st.Epoch, PrevCRC: st.LastCRC,
		Segment: st.Segment, SegmentBase: st.SegmentBase, SegmentCapacity: st.SegmentCapacity,
	}
	p.placing = true
	return purpose, p.placed
}

// fits says whether the batch fits into the segment that contains End. Nothing fits into a segment that was not begun:
// the first batch of a log is an epoch start, with which sizes.Place begins a segment.
func fits(st *segment.State, batchBytes int) bool {
	return int64(st.End-st.SegmentBase)+int64(batchBytes) <= st.SegmentCapacity
}

// Appended says that the batch that was placed last was sealed. It advances the log's state past it.
func (p *Partition) Appended(purpose Purpose, bytes int, count, crc uint32) {
	if !p.placing || p.placed.Position != p.state.Next {
		panic("BUG: a batch was appended that was not placed")
	}
	p.placing = false
	p.state.Epoch = p.placed.Epoch
	p.state.Segment, p.state.SegmentBase, p.state.SegmentCapacity = p.placed.Segment, p.placed.SegmentBase,
		p.placed.SegmentCapacity
	p.state.Next++
	p.state.NextID += segment.MsgID(count)
	p.state.End += segment.Offset(bytes)
	p.state.LastCRC = crc
	if purpose == PurposeEpochStart {
		p.started = true
	}
}
