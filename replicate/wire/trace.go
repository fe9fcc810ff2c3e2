package wire

import (
	"time"

	"penstock/internal/node/fold"
	"penstock/segment"
)

// Trace tells the life of one message, as the log of its partition has it. It is the answer to an OpTrace, and of the
// HTTP API.
type Trace struct {
	ID        string           `json:"id"` // as clients see it
	Partition uint32           `json:"partition"`
	Number    segment.MsgID    `json:"number"`             // in the partition, from 0
	Stored    *TraceStored     `json:"stored,omitempty"`   // nil: the log has the message no more
	Channels  []TraceChannel   `json:"channels,omitempty"` // by name: what became of it in each of them
	Events    []TraceEvent     `json:"events,omitempty"`   // what the log says about it, in the log's order
	LogFrom   segment.MsgID    `json:"log_from"`           // older messages were removed from the log
	LogSince  time.Time        `json:"log_since,omitzero"` // when the oldest batch that was read was appended
	ReadBytes int64            `json:"read_bytes"`         // how much of the log was read
	Settled   bool             `json:"settled,omitempty"`  // reading ended early: all channels are done with it
	Cut       fold.TraceCutWhy `json:"cut,omitempty"`      // why reading ended before the log did
}

// TraceStored says where and when a message was stored.
type TraceStored struct {
	At        time.Time        `json:"at"`           // when its leader appended it, by that node's clock
	Published time.Time        `json:"published"`    // its timestamp
	Due       time.Time        `json:"due,omitzero"` // if it was published with a delay
	Offset    segment.Offset   `json:"offset"`       // of the batch in the log
	Batch     segment.Position `json:"batch"`        // number of the batch in the partition
	Index     uint32           `json:"index"`        // in the batch
	InBatch   uint32           `json:"in_batch"`     // messages of the batch
	Epoch     segment.Epoch    `json:"epoch"`
	Leader    string           `json:"leader,omitempty"` // the node that led in that epoch, if it is known
	BodyBytes int              `json:"body_bytes"`
	Headers   int              `json:"headers"`           // how many it has
	Carried   bool             `json:"carried,omitempty"` // a copy: what it was stored in first was removed
}

// TraceEvent is one thing that the log says about the message.
type TraceEvent struct {
	At       time.Time        `json:"at"`
	Kind     fold.TraceKind   `json:"kind"`
	Channel  string           `json:"channel,omitempty"`
	Due      time.Time        `json:"due,omitzero"`
	Attempts *uint16          `json:"attempts,omitempty"` // deliveries before it, if the log says how many
	Offset   segment.Offset   `json:"offset"`
	Batch    segment.Position `json:"batch"`
	Epoch    segment.Epoch    `json:"epoch"`
	Leader   string           `json:"leader,omitempty"`
	Open     bool             `json:"open,omitempty"` // not committed yet
}

// TraceChannel says what became of the message in one channel. What is not known is left out.
type TraceChannel struct {
	Channel         string          `json:"channel"`
	State           fold.TraceState `json:"state"`
	At              time.Time       `json:"at,omitzero"`              // when it came into that state
	Epoch           segment.Epoch   `json:"epoch,omitempty"`          // of the leader that wrote that
	Leader          string          `json:"leader,omitempty"`         // the node
	OlderThanLog    bool            `json:"older_than_log,omitempty"` // what says At is not in the log any more
	Attempts        *uint16         `json:"attempts,omitempty"`       // deliveries
	Due             time.Time       `json:"due,omitzero"`             // of the timeout or of the delivery
	Client          string          `json:"client,omitempty"`         // that has it in flight
	DeadLetterTopic string          `json:"dead_letter_topic,omitempty"`
	DeadLetterAt    time.Time       `json:"dead_letter_at,omitzero"` // when that topic had stored it
}
