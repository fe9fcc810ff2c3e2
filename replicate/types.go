package replicate

import (
	"github.com/google/uuid"

	"penstock/segment"
)

// NodeID names a node of the cluster for ever, whatever process runs it. 0 is nobody.
type NodeID uint32

// Member is a replica as the ISR counts it: a node together with the disk that holds its promises. A node that
// comes back with another disk is another Member, and so is in no ISR (P10).
type Member struct {
	Node  NodeID
	Store uuid.UUID
}

// MaxReplicaCount bounds the replicas of a partition.
const MaxReplicaCount = 16

// State is a partition's row in the metadata store. The store changes it only by compare-and-swap on Epoch and
// Version; every change raises Version, a new leader raises Epoch too. Slices are borrowed for the call.
type State struct {
	Epoch    segment.Epoch
	Version  uint64
	Leader   NodeID
	Boot     uuid.UUID // of the process that leads: one epoch is one incarnation (P3)
	MinISR   int
	Replicas []NodeID
	ISR      []Member
}

// Batch is what the machines must know of a sealed batch. The bytes travel beside it.
type Batch struct {
	Position segment.Position
	FirstID  segment.MsgID
	Offset   segment.Offset
	Epoch    segment.Epoch
	Bytes    int // of the whole batch, header included
	Count    uint32
	PrevCRC  uint32
	CRC      uint32
}

// End is the offset behind the batch.
func (b *Batch) End() segment.Offset { return b.Offset + segment.Offset(b.Bytes) }

// NextID is the id that follows the batch's last message.
func (b *Batch) NextID() segment.MsgID { return b.FirstID + segment.MsgID(b.Count) }

// advance moves the end of a log past b. Where its segment lies is the caller's business: the machine's own mark says
// that none is begun.
func advance(end *segment.State, b *Batch) {
	end.Segment, end.SegmentBase, end.SegmentCapacity = 0, b.End(), 0
	end.Next, end.NextID, end.End = b.Position+1, b.NextID(), b.End()
	end.LastCRC, end.Epoch = b.CRC, b.Epoch
}

// Log is what a machine starts from and what it leaves to its successor when the role changes.
//
//	Start.Next <= Committed <= End.Next, Durable <= End.Next
type Log struct {
	Start      segment.State // before the first batch that is kept
	End        segment.State // after the last one that was appended
	Durable    segment.Position
	Committed  segment.Position // a lower bound is enough
	Epoch      segment.Epoch    // the newest heard of, at least End.Epoch
	Generation uint64           // raised by every cut; completions of syncs carry it
	Epochs     []EpochStart     // the leader-epoch table; copied
	// StrandedUntil is before when no leader here gives up because it is stranded, on the clock of Step's now; see
	// stranded.go.
	StrandedUntil int64
	Shortened     bool // recovery cut its end, and nobody knows whether that was acknowledged; see compare.go
}

// MessageKind says what one replica tells another. The fields that a kind uses stand behind it; Epoch and Request are
// in all.
type MessageKind uint8

// The messages. Leader to follower: Probe … Heartbeat. Follower to leader: Report … Resync. Either way: Fetch, Range.
const (
	_            MessageKind = iota
	MsgProbe                 // what does your log hold?
	MsgMatch                 // Position, Boot, Generation: our logs are equal below Position; cut the rest and follow
	MsgReset                 // Log, Epochs, Boot, Generation: nothing in common is left here; begin anew at Log
	MsgAppend                // Position, Until, FirstID, NextID, Committed, Batches: PutMessagesOnReplica
	MsgHeartbeat             // Position (everything below was sent), Committed
	MsgReport                // Boot, Generation, Store, Start, Log, Epochs, Damaged: the answer to Probe
	MsgAck                   // Position, Offset, Committed, Damaged: all below Position is durable here, in this epoch
	MsgGap                   // Position, Offset: the end of this log, and something behind it is missing; go on from there
	MsgReject                // Code, Position: nothing was done
	MsgResync                // Position: there is no exchange; probe me. Request names the frame that said so, or 0
	MsgFetch                 // Position, Until: send these batches again, mine are damaged
	MsgRange                 // Position, Until, Start, Batches: the answer to Fetch, perhaps less of it
)

// RejectCode says why a follower refuses.
type RejectCode uint8

const (
	_              RejectCode = iota
	RejectEpoch               // Message.Epoch is newer than the sender's: refresh from the store (B6)
	RejectArgument            // first id, next id or count do not fit the batches: nothing was written (B10)
	RejectDamaged             // the replica refuses to serve: Follower.Err
	// the node has no copy of the partition: the engine says so, no machine does; feature level 2
	RejectAbsent
)

// Message is what travels between the machines of one partition. Slices are borrowed: a receiver that keeps them
// copies.
type Message struct {
	Kind       MessageKind
	Code       RejectCode
	Damaged    bool
	Epoch      segment.Epoch
	Request    uint64 // the exchange that the message belongs to; numbered by the leader, from 1 in each epoch
	Generation uint64 // of the follower's log, when it reported
	Boot       uuid.UUID
	Store      uuid.UUID
	Position   segment.Position
	Until      segment.Position
	Start      segment.Position
	Committed  segment.Position
	Offset     segment.Offset
	FirstID    segment.MsgID
	NextID     segment.MsgID
	Log        segment.State
	Batches    []Batch
	Epochs     []EpochStart
}
