package replicate

import "penstock/segment"

// EventKind says what happened. The comment at a kind names the fields that it uses.
type EventKind uint8

// The events. Leader and Follower each document which they take; any other panics as a BUG.
const (
	_ EventKind = iota
	// Time passed; sent at least every Config.HeartbeatNs. For a leader, Live lists the nodes that the store says are
	// alive, and LagMaxNs, unless it is 0, and CatchUpBytesPerSec replace those of the Config.
	EvTick
	EvMessage  // Node, Message
	EvState    // State, Damaged: the row in the store, from a watch, a read or a proposal's answer, in any order
	EvDurable  // Position, Generation: everything below Position is on stable storage here
	EvTrimmed  // Log: retention moved the start of the log there
	EvFault    // Err: a write or flush failed; final
	EvCorrupt  // Position, Until: these stored batches do not read back
	EvRepaired // Position, Until: they read again, and the repair is durable
	EvAppended // leader: Batches, not empty: they were appended at the end of the log, in this order
	EvPut      // leader: may a batch be appended now? ActRefuse says why not
	EvLease    // leader: DeadlineNs: the node may serve until then
	// Node, Request, Position, Until, Offset, Epoch, CRC, Purpose: the answer to ActRead; Offset is where batch Until
	// begins, Epoch and CRC are those of the last batch that was read. Until == Position: the read failed for now. A
	// follower takes only those of ReadRepair.
	EvRead
	// leader: Node, Request, Position, Until: an ActSend was not sent from batch Position on, because memory no longer
	// has the batches below Until.
	EvEvicted
	EvPeerDown // leader: Node: its connection is closed, and its address refuses new ones
	// follower: Again: the log can neither be cut nor repaired in place, so this copy begins anew from the leader's
	// log. Again: its device may still read the log later, see anew.go.
	EvUnusable
	EvTruncated // follower: Generation, Log: the cut is done, or the reset is on stable storage; the log ends at Log
)

// Event is the input of a Step. Everything it points to is read only during the Step.
type Event struct {
	Kind       EventKind
	Node       NodeID
	Message    *Message
	State      *State
	Batches    []Batch
	Position   segment.Position
	Until      segment.Position
	Offset     segment.Offset
	Log        segment.State
	Generation uint64
	Request    uint64
	Live       []NodeID
	Epoch      segment.Epoch
	CRC        uint32
	Purpose    Purpose
	Again      bool
	Damaged    bool  // EvState: the store's row counts this replica as damaged
	DeadlineNs int64 // on the clock of Step's now
	LagMaxNs   int64
	// CatchUpBytesPerSec as in Config
	CatchUpBytesPerSec int64
	Err                error
}

// ActionKind says what the engine must do. The comment at a kind names the fields that it uses.
type ActionKind uint8

// The actions. The engine does them in order.
const (
	_ ActionKind = iota
	// Node, Message: send the message. For MsgAppend and MsgRange the sender fills in Batches [Position, Until) with
	// their bytes, FirstID and NextID: those that this Step's EvRead brought, or else those in memory. Sending never
	// waits for the disk: if memory does not have the batches, the engine answers EvEvicted.
	ActSend
	ActCommit  // Position: everything below is committed: answer, show, deliver
	ActRefresh // read the partition's state from the store and pass it on as EvState
	ActDamaged // Err: the replica is not electable; report it to the store. Err nil: it is healthy again
	ActRepair  // Message: write its Batches over the damaged ones, sync, then EvRepaired
	// Position: the leader's retention removed everything below Position, so this replica forgets its damage there.
	// Remove these batches as far as they are committed, then EvTrimmed.
	ActTrim
	ActStartEpoch // leader: append the epoch-start batch before anything else, then EvAppended
	// Node, Request, Position, Bytes, Count, DelayNs, Purpose: after DelayNs, read a range of at most Bytes and Count,
	// but at least one batch, then EvRead with the same Purpose.
	ActRead
	ActPropose // leader: State (Epoch, Version, ISR): compare-and-swap the ISR; pass the outcome on as EvState
	ActRefuse  // leader: Err: why no batch may be appended now
	// leader: Node, Position, State (Epoch, Version, Leader, Boot): make Node the leader. Its log ends at Position, and
	// has what this leader's log lacks.
	ActHandOver
	// leader: Node, Flag, State (Epoch, Version, Leader, Boot): make Node the leader, or any replica that the store
	// chooses if Node is 0, because this leader reaches too few members. Flag: this is the first such request, not a
	// repetition.
	ActGiveUp
	ActServe    // leader: Flag: whether deliveries and confirmations are allowed
	ActStepDown // leader: Err: final; the outcome of batches above Committed is unknown
	ActAppend   // follower: Message, Position: append its batches from Position on, same bytes, same offsets
	ActTruncate // follower: Position, Generation: cut the log to end at Position, then EvTruncated
	// follower: Log, Generation, Flag: drop the log and begin at Log, then EvTruncated. Flag: the leader had all of the
	// log that is dropped
	ActReset
	// follower: Err: an operator chose a leader that lacks what this log has committed. Give the log up, keep aside what
	// it has, then EvUnusable.
	ActDiscard
)

// Purpose says what the batches of an ActRead are for.
type Purpose uint8

const (
	ReadCatchUp Purpose = iota // they are sent to Node
	ReadRepair                 // they replace batches that Node cannot read
	ReadCompare                // only the epoch and the checksum of the batch are needed
)

// Action is one output of a Step. Everything it points to is borrowed until the machine's next Step.
type Action struct {
	Kind       ActionKind
	Flag       bool
	Purpose    Purpose
	Node       NodeID
	Count      int
	Bytes      int64
	Position   segment.Position
	Request    uint64
	Generation uint64
	DelayNs    int64
	Log        segment.State
	State      State
	Message    Message
	Err        error
}

// Actions is the output of a Step, reused from Step to Step so that none of them allocates.
type Actions struct {
	List []Action
}

func (a *Actions) reset() { a.List = a.List[:0] }

func (a *Actions) add(kind ActionKind) *Action {
	if len(a.List) == cap(a.List) {
		a.List = append(a.List, Action{})
	} else {
		a.List = a.List[:len(a.List)+1]
	}
	act := &a.List[len(a.List)-1]
	*act = Action{Kind: kind}
	return act
}

// Config bounds a machine and sets its times. A zero field means the default named beside it.
type Config struct {
	MaxWindowCount     int   // batches in flight to one follower; DefaultMaxWindowCount
	MaxWindowBytes     int64 // bytes in flight to one follower, one batch excepted; DefaultMaxWindowBytes
	MaxSendBytes       int64 // bytes of one append frame, one batch excepted; DefaultMaxSendBytes
	MaxRangeBytes      int64 // bytes of one catch-up range, one batch excepted; DefaultMaxRangeBytes
	MaxRangesInFlight  int   // catch-up ranges sent and not acknowledged; DefaultMaxRangesInFlight
	CatchUpBytesPerSec int64 // to one follower, evenly spread, beyond newly appended bytes; 0 = unlimited
	MaxPendingCount    int   // batches appended and not committed; DefaultMaxPendingCount
	MaxPendingBytes    int64 // bytes appended and not committed, one batch excepted; DefaultMaxPendingBytes
	MaxISRJoins        int   // joins per ISRWindowNs; DefaultMaxISRJoins
	ListShort          bool  // rows list short members: needs feature level 4

	LagMaxNs    int64 // a member of the ISR that is behind for this long is proposed for removal; DefaultLagMaxNs
	HeartbeatNs int64 // between messages to a follower that lacks something; DefaultHeartbeatNs
	RetryNs     int64 // after which an unanswered request is sent again; DefaultRetryNs
	// CompareNs is how long a leader whose log was shortened waits for the ends of all members' logs; DefaultCompareNs.
	CompareNs   int64
	JoinNs      int64 // how long a follower that is about to join may hold Committed back; DefaultJoinNs
	ISRWindowNs int64 // the window in which changes of the ISR are counted; DefaultISRWindowNs

	StrandedNs      int64 // a leader gives up if too few members answer for this long; DefaultStrandedNs
	StrandedEveryNs int64 // the least time between two times that one copy gives up; DefaultStrandedEveryNs
}

// Defaults of Config.
const (
	DefaultMaxWindowCount    = 1024
	DefaultMaxWindowBytes    = 16 << 20
	DefaultMaxSendBytes      = 1 << 20
	DefaultMaxRangeBytes     = 1 << 20
	DefaultMaxRangesInFlight = 8
	DefaultMaxPendingCount   = 4096
	DefaultMaxPendingBytes   = 64 << 20
	DefaultMaxISRJoins       = 8
	DefaultISRWindowNs       = 30_000_000_000
	DefaultLagMaxNs          = 2_000_000_000
	DefaultHeartbeatNs       = 100_000_000
	DefaultRetryNs           = 500_000_000
	DefaultJoinNs            = 200_000_000
	DefaultCompareNs         = 5_000_000_000
	DefaultStrandedNs        = 5_000_000_000
	DefaultStrandedEveryNs   = 180_000_000_000
)

func orDefault[T int | int64](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c Config) withDefaults() Config {
	orDefault(&c.MaxWindowCount, DefaultMaxWindowCount)
	orDefault(&c.MaxWindowBytes, DefaultMaxWindowBytes)
	orDefault(&c.MaxSendBytes, DefaultMaxSendBytes)
	orDefault(&c.MaxRangeBytes, DefaultMaxRangeBytes)
	orDefault(&c.MaxRangesInFlight, DefaultMaxRangesInFlight)
	orDefault(&c.MaxPendingCount, DefaultMaxPendingCount)
	orDefault(&c.MaxPendingBytes, DefaultMaxPendingBytes)
	orDefault(&c.MaxISRJoins, DefaultMaxISRJoins)
	orDefault(&c.ISRWindowNs, DefaultISRWindowNs)
	orDefault(&c.LagMaxNs, DefaultLagMaxNs)
	orDefault(&c.HeartbeatNs, DefaultHeartbeatNs)
	orDefault(&c.RetryNs, DefaultRetryNs)
	orDefault(&c.JoinNs, DefaultJoinNs)
	orDefault(&c.CompareNs, DefaultCompareNs)
	orDefault(&c.StrandedNs, DefaultStrandedNs)
	orDefault(&c.StrandedEveryNs, DefaultStrandedEveryNs)
	return c
}
