package wire

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// Operations for leaders (types 34 and 35 of netproto): a request about a topic, which each leader executes for the
// partitions that it leads, and its result. Both travel as JSON; the tags below are its names. A name or kind never
// changes its meaning. A receiver ignores names that it does not know, so a later version may add some. FORMAT.md has
// the tables.

// MaxOperationBytes is the longest ForwardOp: room for the numbers of all partitions of a topic.
const MaxOperationBytes = 1 << 20

// OperationKind says what an Operation does.
type OperationKind string

// The kinds. The comment at a kind names the fields that it uses besides Topic, Channel, Known and Partitions, and its
// result.
const (
	OpCreateChannel OperationKind = "create-channel" // Seek: where it starts, Settings: its settings; nil: nobody has said
	OpDeleteChannel OperationKind = "delete-channel" // Result: Deletion
	OpPauseChannel  OperationKind = "pause-channel"  // Flag: pause, else unpause. Result: true
	OpSkipChannel   OperationKind = "skip-channel"   // Flag: skip, else do not. Result: true
	OpEmptyChannel  OperationKind = "empty-channel"  // Result: true
	OpPauseTopic    OperationKind = "pause-topic"    // Flag: pause, else unpause
	OpEmptyTopic    OperationKind = "empty-topic"

	OpResolveSeek OperationKind = "where-to"  // Seek: find the positions that it means. Result: []batch.ID
	OpSeek        OperationKind = "seek"      // Targets. Result: true
	OpPeek        OperationKind = "peek"      // Peek. An empty Channel means the topic's log. Result: []PeekedMessage
	OpPending     OperationKind = "pending"   // Count. Result: []PendingMessage
	OpDeferred    OperationKind = "deferred"  // Count. Result: []PendingMessage
	OpConfirm     OperationKind = "confirm"   // IDs: confirm them, whichever consumer has them. Result: true
	OpRedrive     OperationKind = "redrive"   // Claim; Flag: take the claim, else give it back. Result: RedriveClaim
	OpSettings    OperationKind = "settings"  // Result: fold.ChannelSettings
	OpConfigure   OperationKind = "configure" // Settings; Flag: check their version. Result: fold.ChannelSettings
	// Flag: refuse if Known is above the receiver's. AgeMs: count what would be removed too early. Result: TopicState
	OpState  OperationKind = "state"
	OpVerify OperationKind = "verify" // Verify: one partition's copy, also at a follower. Result: VerifyAnswer
	OpFaults OperationKind = "faults" // of the node, without a topic. Result: []Fault
	// Producer, Tenure, Flag: it begins; in the one partition. Refused below feature level 3. Result: ProducerOpened
	OpOpenProducer OperationKind = "open-producer"
	OpTrace        OperationKind = "trace" // IDs: one message, of the one partition. Result: Trace
	OpAsk          OperationKind = "ask"   // Ask: a question to the node, without a topic. Result: its answer, JSON
	OpCopy         OperationKind = "copy"  // one partition's copy, also at a follower. Result: CopyAnswer
	OpClock        OperationKind = "clock" // of the node, without a topic. Result: ClockAnswer
	// Producer: only the one of this name; Count: how many at most. Result: ProducerList
	OpProducers      OperationKind = "producers"
	OpRemoveProducer OperationKind = "remove-producer" // Producer: its name. Result: how many were removed
)

// Operation is the payload of a ForwardOp. Executing it twice does no harm.
type Operation struct {
	Kind    OperationKind `json:"kind"`
	Topic   uuid.UUID     `json:"topic"`
	Channel string        `json:"channel,omitempty"`
	Flag    bool          `json:"flag,omitempty"`

	Seek     *SeekTo               `json:"seek,omitempty"`
	Targets  []batch.ID            `json:"targets,omitempty"` // new positions, at most one per partition
	IDs      []batch.ID            `json:"ids,omitempty"`
	Peek     *PeekRequest          `json:"peek,omitempty"`
	Count    int                   `json:"count,omitempty"`
	Verify   *VerifyRequest        `json:"verify,omitempty"`
	Settings *fold.ChannelSettings `json:"settings,omitempty"`
	Producer string                `json:"producer,omitempty"`
	Tenure   uint64                `json:"tenure,omitempty"`
	AgeMs    int64                 `json:"age_ms,omitempty"` // a retention by age that is to be set
	Claim    string                `json:"claim,omitempty"`  // who redrives: the claim is for one at a time
	Ask      json.RawMessage       `json:"ask,omitempty"`    // what it means is between the programs above the engine

	// Known is the number of partitions that the requesting node knows the topic to have. A receiver that knows of more
	// refuses a change.
	Known int `json:"known,omitempty"`

	// Partitions are the partitions that the requesting node believes the receiver leads. If the receiver does not lead
	// all of them, it refuses, and the requester looks up the leaders again.
	Partitions []uint32 `json:"partitions"`
}

// Looks says whether the operation changes nothing wherever it is executed.
func (op *Operation) Looks() bool {
	switch op.Kind {
	case OpResolveSeek, OpPeek, OpPending, OpDeferred, OpSettings, OpTrace, OpFaults, OpCopy, OpClock, OpProducers:
		return true
	}
	return false
}

// About says whether the operation concerns partition.
func (op *Operation) About(partition uint32) bool { return slices.Contains(op.Partitions, partition) }

// EncodeOperation returns the payload of a ForwardOp.
func EncodeOperation(op *Operation) ([]byte, error) { return json.Marshal(op) }

// DecodeOperation reads the payload of a ForwardOp. Its Kind may be one that this version does not know.
func DecodeOperation(p []byte) (op Operation, err error) {
	if len(p) > MaxOperationBytes {
		return op, invalid("a ForwardOp of %d bytes", len(p))
	}
	if err := json.Unmarshal(p, &op); err != nil {
		return op, invalid("a ForwardOp: %v", err)
	}
	return op, nil
}

// EncodeResult returns the payload of a ForwardOpAck that reports success, unless err is set, which it returns. An
// operation without a result has no payload.
func EncodeResult(result any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

// DecodeResult reads a result. result must point to the type that the operation's kind documents.
func DecodeResult(p []byte, result any) error { return json.Unmarshal(p, result) }

// SeekKind says where a channel continues to read.
type SeekKind string

// The kinds of SeekTo.
const (
	SeekBeginning SeekKind = "beginning" // at the oldest message that is stored
	SeekEnd       SeekKind = "end"       // at the next message that is published
	SeekID        SeekKind = "id"        // at SeekTo.ID, in its partition only
	SeekTime      SeekKind = "time"      // at the first batch stored at or after SeekTo.Time
	SeekChannel   SeekKind = "channel"   // only of a channel that is created: where SeekTo.Channel stands
	SeekCount     SeekKind = "count"     // SeekTo.Count messages from the oldest unconfirmed one, in each partition
)

// SeekTo is a place in a topic. A place before the oldest message or behind the newest one is moved to that end.
type SeekTo struct {
	Kind  SeekKind  `json:"kind"`
	ID    batch.ID  `json:"id,omitempty"`
	Time  time.Time `json:"time,omitzero"`
	Count int64     `json:"count,omitempty"` // forward if positive, back if negative
	// Channel is of a channel that is created: in partitions that ID is not in, it starts where this one stands.
	Channel string `json:"channel,omitempty"`
}

// PeekRequest says which messages an OpPeek lists.
type PeekRequest struct {
	From  batch.ID `json:"from,omitempty"`
	Count int      `json:"count"`
	// For Redrive: list only dead letters of this topic and channel, from Next[partition] on, with whole bodies.
	OriginTopic   string     `json:"origin_topic,omitempty"`
	OriginChannel string     `json:"origin_channel,omitempty"`
	Next          []batch.ID `json:"next,omitempty"`
	// Since: in a topic's log, begin where that time's batches begin. Older nodes do not look at it.
	Since time.Time `json:"since,omitzero"`
}

// PeekedMessage is a copy of a stored message.
type PeekedMessage struct {
	ID        batch.ID     `json:"id"`
	Timestamp time.Time    `json:"timestamp"`    // when it was published
	Due       time.Time    `json:"due,omitzero"` // of a message that was published with a delay
	Headers   []segment.KV `json:"headers,omitempty"`
	Body      []byte       `json:"body"`
	BodyBytes int          `json:"body_bytes"` // length of the whole body; with Truncated, Body is only its beginning
	Truncated bool         `json:"truncated,omitempty"`
}

// PendingMessage is a message that a consumer has in flight, or that is deferred.
type PendingMessage struct {
	ID       batch.ID  `json:"id"`
	Since    time.Time `json:"since,omitzero"` // in flight: when it was delivered
	Due      time.Time `json:"due,omitzero"`   // when it times out (in flight), or is delivered (deferred)
	Attempts uint16    `json:"attempts"`       // deliveries so far
	// Client is the consumer's ConsumerOptions.Label, if that is a string or has a String method.
	Client string `json:"client,omitempty"`
}

// ProducerOpened is a leader's answer to OpOpenProducer.
type ProducerOpened struct {
	ID       uint64 `json:"id"`
	Epoch    uint32 `json:"epoch"`
	Sequence uint32 `json:"sequence"` // of the next message
	Tenure   uint64 `json:"tenure,omitempty"`
}

// ProducerList is a leader's answer to OpProducers: those with a name, sorted by it.
type ProducerList struct {
	Producers []KnownProducer `json:"producers"`
	Nameless  int             `json:"nameless,omitempty"` // how many have no name
	More      bool            `json:"more,omitempty"`     // there are more than the list may have
}

// KnownProducer is what one partition knows of a producer.
type KnownProducer struct {
	Name      string    `json:"name"`            // as people see it, see fold.KnownProducer.Shown
	Owner     string    `json:"owner,omitempty"` // whose it is, see fold/owner.go
	Partition uint32    `json:"partition"`
	Epoch     uint32    `json:"epoch"`
	Tenure    uint64    `json:"tenure,omitempty"`
	Sequence  uint32    `json:"sequence"` // of its next message
	Used      time.Time `json:"used"`     // when it was used last, by the times of the log
}

// RedriveClaim is an answer to OpRedrive, of the leader of partition 0.
type RedriveClaim struct {
	Taken   bool `json:"taken"`             // false: another one has the claim
	Skipped bool `json:"skipped,omitempty"` // the channel skips its messages
}

// Deletion is a leader's answer to OpDeleteChannel.
type Deletion struct {
	Deleted bool  `json:"deleted,omitempty"`
	Gone    bool  `json:"gone,omitempty"` // it was deleted a moment ago
	AgoMs   int64 `json:"ago_ms,omitempty"`
}

// TopicState is the state that all partitions of a topic share.
type TopicState struct {
	Paused   bool           `json:"paused,omitempty"`
	Channels []ChannelState `json:"channels,omitempty"`
	// Early counts the delayed messages that a retention of AgeMs could remove before they are due, in the partitions
	// of the operation. The last is due at LastDueMs.
	Early     int   `json:"early,omitempty"`
	LastDueMs int64 `json:"last_due_ms,omitempty"` // unix ms
	// Ephemeral counts the channels that only the sender has, in its memory. Older versions leave it 0.
	Ephemeral int `json:"ephemeral,omitempty"`
}

// ChannelState is a channel in a TopicState.
type ChannelState struct {
	Name     string               `json:"name"`
	Paused   bool                 `json:"paused,omitempty"`
	Skipped  bool                 `json:"skipped,omitempty"`
	Settings fold.ChannelSettings `json:"settings"`
}

// VerifyRequest asks for a piece of a partition's copy.
type VerifyRequest struct {
	At  segment.Offset `json:"at"`
	To  segment.Offset `json:"to,omitempty"` // 0: to the end of what is committed
	Max int            `json:"max"`
}

// VerifyAnswer is what one node's copy has there.
type VerifyAnswer struct {
	Start     segment.Offset `json:"start"` // of the copy
	Committed segment.Offset `json:"committed"`
	Next      segment.Offset `json:"next"`
	Sum       uint32         `json:"sum"` // of the bytes from At to Next
	First     segment.MsgID  `json:"first"`
	Count     uint32         `json:"count"`
	Damaged   segment.Offset `json:"damaged,omitempty"` // the end of the damaged range that begins at At
	Bad       bool           `json:"bad,omitempty"`     // damage in [BadFrom, BadTo), at At or at Next; it may be
	BadFrom   segment.Offset `json:"bad_from,omitempty"`
	BadTo     segment.Offset `json:"bad_to,omitempty"` // repaired before anybody asks again
}

// CopyAnswer is what one node knows of its copy of a partition.
type CopyAnswer struct {
	End       segment.Position `json:"end"`     // of the next batch
	NextID    segment.MsgID    `json:"next_id"` // of the next message
	Epoch     segment.Epoch    `json:"epoch"`   // of the last batch
	Committed segment.Position `json:"committed"`
	Written   time.Time        `json:"written,omitzero"` // when a leader appended the last batch, by its clock
	Leads     bool             `json:"leads,omitempty"`
	Damaged   bool             `json:"damaged,omitempty"`
	Contested bool             `json:"contested,omitempty"`
	Shortened bool             `json:"shortened,omitempty"`
}

// ClockAnswer is what a node's clock says when it executes an OpClock.
type ClockAnswer struct {
	NowNs int64 `json:"now_ns"` // ns since 1970, by the clock that append times and delays are stored by
}

// Fault is one kind of trouble that a node has now, or has had since its start.
type Fault struct {
	Name  string `json:"name"`  // as in StorageStats' JSON
	Count int64  `json:"count"` // how often it happened, or how many things have it now
	Words string `json:"words"` // what it means
}
