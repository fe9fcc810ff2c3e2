package replicate

import (
	"slices"

	"github.com/google/uuid"

	"penstock/segment"
)

// NodeID names a node of the cluster for ever, whatever process runs it. 0 is nobody.
type NodeID uint32

// Member is a replica as the ISR counts it: a node together with the disk that holds its promises. A node that comes
// back with another disk is another Member, and therefore in no ISR (P10).
type Member struct {
	Node  NodeID
	Store uuid.UUID
}

// HasNode says whether one of the members is on node n, with whatever disk.
func HasNode(members []Member, n NodeID) bool {
	return slices.ContainsFunc(members, func(m Member) bool { return m.Node == n })
}

// MaxReplicaCount bounds the replicas of a partition.
const MaxReplicaCount = 16

// State is a partition's row in the metadata store. The store changes it only by compare-and-swap on Epoch and Version.
// Every change raises Version; a new leader also raises Epoch. Slices are borrowed for the call.
type State struct {
	Epoch    segment.Epoch
	Version  uint64
	Leader   NodeID
	Boot     uuid.UUID // of the process that leads: one epoch is one incarnation (P3)
	MinISR   int
	Replicas []NodeID
	ISR      []Member
	// Short are members of the ISR that were seen to end below what they had acknowledged: see short.go. None of them
	// is elected.
	Short []Member
	// Forced is the last epoch for which an operator chose the leader, whatever its log lacks. It is 0 if there was none.
	Forced segment.Epoch
	// Restored, if not 0, is above every epoch from before the cluster's metadata was restored from a backup. Logs that
	// end below it may be of different moments: see compare.go.
	Restored segment.Epoch
}

// Batch is the metadata of a sealed batch that the machines need. The bytes travel beside it.
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

// End returns the offset behind the batch.
func (b *Batch) End() segment.Offset { return b.Offset + segment.Offset(b.Bytes) }

// NextID returns the id that follows the batch's last message.
func (b *Batch) NextID() segment.MsgID { return b.FirstID + segment.MsgID(b.Count) }

// advance moves the end of a log past b. The caller knows which segment holds the batch; the machine's own mark has no
// segment.
func advance(end *segment.State, b *Batch) {
	end.Segment, end.SegmentBase, end.SegmentCapacity = 0, b.End(), 0
	end.Next, end.NextID, end.End = b.Position+1, b.NextID(), b.End()
	end.LastCRC, end.Epoch = b.CRC, b.Epoch
}

// Log is the state that a machine starts from, and that it leaves to its successor when the role changes.
//
//	Start.Next <= Committed <= End.Next, Durable <= End.Next
type Log struct {
	Start      segment.State // before the first batch that is kept
	End        segment.State // behind the last batch that was appended
	Durable    segment.Position
	Committed  segment.Position // a lower bound is enough
	Epoch      segment.Epoch    // the newest epoch heard of, at least End.Epoch
	Generation uint64           // raised by every cut; a completed sync names the one it began in
	Epochs     []EpochStart     // the leader-epoch table; copied
	// StrandedUntil is the earliest time, on the clock of Step's now, at which a leader of this copy may again give up
	// because it is stranded; see stranded.go.
	StrandedUntil int64
	Shortened     bool // it may lack batches that this replica had acknowledged; see compare.go
	Recovered     bool // this process read it back from its disk, and has not shown yet that nothing is missing
}

// MessageKind says what one replica tells another. The comment behind a kind names the fields that it uses; every
// message has Epoch and Request.
type MessageKind uint8

// Parentheses: only from feature level 4 on. Until of a Report: everything below is durable.
//
// The messages. From leader to follower: Probe … Heartbeat. From follower to leader: Report … Resync. Both ways: Fetch,
// Range.
const (
	_            MessageKind = iota
	MsgProbe                 // what does your log hold?
	MsgMatch                 // Position, Boot, Generation: our logs are equal below Position; cut the rest and follow
	MsgReset                 // Log, Epochs, Boot, Generation: the logs share nothing that is kept; begin anew at Log
	MsgAppend                // Position, Until, FirstID, NextID, Committed, Batches: PutMessagesOnReplica
	MsgHeartbeat             // Position (everything below was sent), Committed
	MsgReport                // Boot, Generation, Store, Start, Log, Epochs, Damaged (Until, Committed, Shortened)
	MsgAck                   // Position, Offset, Committed, Damaged: batches below Position are durable, in this epoch
	MsgGap                   // Position, Offset: my log ends here and batches behind it are missing; go on from here
	MsgReject                // Code, Position: the message was refused and changed nothing
	MsgResync                // Position: I have no exchange; probe me. Request names the frame that showed it, or 0
	MsgFetch                 // Position, Until: send these batches again, mine are damaged
	MsgRange                 // Position, Until, Start, Batches: the answer to Fetch, perhaps only a part
)

// RejectCode says why a follower refuses a message.
type RejectCode uint8

const (
	_              RejectCode = iota
	RejectEpoch               // the reject's Epoch is newer than the refused message's: refresh from the store (B6)
	RejectArgument            // first id, next id or count do not fit the batches: nothing was written (B10)
	RejectDamaged             // the replica refuses to follow: Follower.Err
	// The node has no copy of the partition. The engine sends this, no machine does; needs feature level 2.
	RejectAbsent
)

// Message travels between the machines of one partition. Slices are borrowed: a receiver that keeps them must copy
// them.
type Message struct {
	Kind       MessageKind
	Code       RejectCode
	Damaged    bool
	Shortened  bool // the log may lack batches that this replica had acknowledged
	Epoch      segment.Epoch
	Request    uint64 // the exchange that the message belongs to; the leader numbers them, from 1 in each epoch
	Generation uint64 // of the follower's log, at its report
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
