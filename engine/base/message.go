package base

import (
	"time"

	"penstock/engine/core"
	"penstock/segment"
)

// ID names a message: its partition and its number there. It stays the same across
// redelivery, restart and failover. String gives NSQ's 16 hex digits.
type ID = core.ID

// Header is one name and value of a message's headers. Names are compared byte by byte.
type Header = segment.KV

const (
	// MaxHeaderCount is the most headers that a message can have.
	MaxHeaderCount = segment.MaxHeaderCount
	// MaxHeaderNameBytes is the longest name of a header. Options.MaxHeaderBytes bounds all names and values of a message
	// together.
	MaxHeaderNameBytes = 256
	// ReservedHeaders is the prefix of the names that only the engine writes.
	ReservedHeaders = "penstock-"
	// KeyHeader is the header that holds a message's key.
	KeyHeader = "key"
)

// Outgoing is a message to be published, with everything that a message can have.
type Outgoing struct {
	Body    []byte
	Headers []Header
	// Key is stored as the header KeyHeader and chooses the partition: see Topic.PartitionFor. If it is nil, a header of
	// that name is the key; without one, the message goes to any partition.
	Key   []byte
	Delay time.Duration // before the first delivery; 0: none
}

// Delivery is one message on its way to a consumer. Body and Headers are borrowed: they are valid until the call that
// got the Delivery returns.
type Delivery struct {
	ID        ID
	Timestamp int64  // when the message was published, ns since 1970
	Attempts  uint16 // deliveries so far, this one included; saturates at 32767
	Body      []byte
	Headers   []Header // in the order in which they were published; nil: none
	// Until is set for a message of an ordered channel that another node leads: the client must get the message before
	// this time. A Sink that may hand it over later must be a HeldSink.
	Until Deadline

	// Serial and Epoch name the delivery between nodes: core.Result.Serial and the leader's epoch. The engine sets them
	// for ordered channels only; 0: none.
	Serial uint64
	Epoch  segment.Epoch
}

// Sink receives a Consumer's messages. Methods are called by one goroutine at a time.
type Sink interface {
	// Deliver takes one message. It must copy Body and Headers, must not block and must not call the Consumer. It returns
	// false if the sink is full after this message: no more come until Consumer.Unblock.
	Deliver(d *Delivery) bool
	// Flush ends a run of Deliver calls: nothing more is ready now. It must not block and must not call the Consumer. The
	// channel's lock is not held.
	Flush()
	// Closed says that the consumer has ended: the channel or topic was deleted, the engine closed, or the node no longer
	// leads (ErrMoved). It is called at most once.
	Closed(err error)
}

// ConsumerOptions are one subscriber's choices; the zero value is NSQ's default.
type ConsumerOptions struct {
	MsgTimeout time.Duration // redelivery after this without FIN or TOUCH; 0: Options.MsgTimeout
	SampleRate int           // percent of messages to deliver, 1..99; 0: all
	Label      any           // shown in statistics: the protocol server's client description
	// Only messages of this partition, which this node must lead; nil: all partitions. Messages of other partitions wait
	// for other consumers.
	Partition *uint32
	// Only messages whose header TagHeader has this value. "": messages without a tag, and those whose tag no consumer
	// asks for.
	Tag string
	// MaxInFlightBytes is the bound of a Sink that counts unfinished bytes; 0: there is none. For channels on this node
	// only the Sink's answer stops deliveries. Leaders on other nodes share the bound: each may have one message in flight
	// beyond its share.
	MaxInFlightBytes int64
}
