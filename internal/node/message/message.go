// Package message has a message on its way through a node: what a program publishes (Outgoing), what a consumer gets
// (Delivery), and the interfaces through which it gets it (Sink and its kinds), with the options and statistics of a
// consumer. All packages that touch messages use it, and package node has its types under the names by which programs
// and servers use them. It knows no partition, channel or other node, does no I/O and starts no goroutine. It imports
// packages batch, errs, machine and segment.
package message

import (
	"time"

	"penstock/batch"
	"penstock/segment"
)

// ID names a message: its partition and its number there. It stays the same across
// redelivery, restart and failover. String gives NSQ's 16 hex digits.
type ID = batch.ID

// Header is one name and value of a message's headers. Names are compared byte by byte.
type Header = segment.KV

const (
	// MaxHeaderCount is the most headers that a message can be published with. The engine adds some to a dead letter.
	MaxHeaderCount = segment.MaxHeaderCount - batch.ReservedHeaderCount
	// MaxHeaderNameBytes is the length of the longest header name. Options.MaxHeaderBytes bounds the total of a
	// message's names and values.
	MaxHeaderNameBytes = 256
	// ReservedHeaders is the prefix of the header names that only the engine writes.
	ReservedHeaders = "penstock-"
	// OnlyChannelHeader names the only channel that gets the message.
	OnlyChannelHeader = ReservedHeaders + "channel"
	// KeyHeader is the header that holds a message's key.
	KeyHeader = "key"
)

// Outgoing is a message to be published, with all optional parts.
type Outgoing struct {
	Body    []byte
	Headers []Header
	// Key chooses the partition (see Topic.PartitionFor), and is stored as the header KeyHeader. If Key is nil, the
	// value of a header with that name is the key. Without a key, the message goes to any partition.
	Key   []byte
	Delay time.Duration // before the first delivery; 0: none
}

// Delivery is one message on its way to a consumer. Body and Headers are borrowed: they are valid only until the call
// that received the Delivery returns.
type Delivery struct {
	ID        ID
	Timestamp int64  // when the message was published, ns since 1970
	Attempts  uint16 // deliveries so far, this one included; saturates at 32767
	Body      []byte
	Headers   []Header // in the order in which they were published; nil: none
	// Until is set for a message of an ordered channel that another node leads: the client may get the message only
	// before this time. A Sink that may hand it over later must be a HeldSink.
	Until Deadline

	// Ordered says that the channel is ordered. A Sink whose client begins to handle the message later than Deliver
	// returns must be a HeldSink, if Until is set, or a PermitSink.
	Ordered bool

	// Serial and Epoch identify the delivery between nodes: they are delivery.Result.Serial and the leader's epoch. The
	// engine sets them only for ordered channels; 0: not set.
	Serial uint64
	Epoch  segment.Epoch

	// Number counts the deliveries to the Consumer, this one included. It is set by the node that leads the partition,
	// for consumers of this node: see Consumer.FinishThrough. 0: not set. A number may be missing between two
	// deliveries.
	Number uint64
}

// Sink receives a Consumer's messages. Methods are called by one goroutine at a time.
type Sink interface {
	// Deliver takes one message. It must copy Body and Headers, must not block and must not call the Consumer. It
	// returns false if the sink is full after this message: no more come until Consumer.Unblock.
	Deliver(d *Delivery) bool
	// Flush ends a run of Deliver calls: nothing more is ready now. It must not block and must not call the Consumer.
	// It is called without the channel's lock.
	Flush()
	// Closed says that the consumer has ended, because the channel or topic was deleted, the engine closed, or the node
	// no longer leads (ErrMoved). It is called at most once.
	Closed(err error)
}

// RunSink is a Sink that can take messages next to each other at once, which costs less than a Deliver for each. Most
// messages of a catch-up come so.
type RunSink interface {
	Sink
	// DeliverRun is Deliver for the messages of r, from the first on. It returns how many it took, and false if the sink
	// is full after them. With true it has taken all that r.Next returned, until that returned nil. It may keep neither
	// r nor what Next returns.
	DeliverRun(r *Run) (count int, room bool)
}

// Run is messages next to each other in a stored batch, at their first delivery. The engine makes it for a RunSink.
type Run struct {
	ID      ID     // of the first
	Number  uint64 // Delivery.Number of the first; those of the others follow
	Created int64  // from which Record.TimeDelta counts, ns since 1970
	Count   int    // at most so many

	Records *segment.RecordIter // at the first
	taken   int
}

// Next returns the next message; nil: there is none. The following call overwrites it.
func (r *Run) Next() *segment.Record {
	if r.taken == r.Count {
		return nil
	}
	r.taken++
	return r.Records.NextPlain()
}

// ConsumerOptions are the choices of one subscriber. The zero value is NSQ's default.
type ConsumerOptions struct {
	MsgTimeout time.Duration // see MsgTimeout; 0: Options.MsgTimeout
	SampleRate int           // percent of messages to deliver, 1..99; 0: all
	Label      any           // shown in statistics: the protocol server's client description
	// Partition limits delivery to the messages of this partition, which this node must lead; nil: all partitions.
	// Messages of other partitions wait for other consumers.
	Partition *uint32
	// Tag limits delivery to messages whose header TagHeader has this value. "": messages without a tag, and those
	// whose tag no consumer asks for.
	Tag string
	// MaxInFlightBytes is the limit of a Sink that counts unfinished bytes; 0: no limit. For channels on this node,
	// only the return value of Sink.Deliver stops deliveries. Leaders on other nodes divide the limit among them; each
	// may have one message in flight beyond its share.
	MaxInFlightBytes int64
}
