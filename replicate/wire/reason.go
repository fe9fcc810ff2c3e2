package wire

import "strconv"

// Reason is the number of an error in an answer to another node. Package internal/node/reason maps errors to numbers.
// No receiver interprets the text of an answer, except in answers of nodes that send no number.
//
// A number never changes its meaning: a new error gets the next number, and the number of a removed error is not used
// again. If the receiver of a refusal does not know the number, the answer is still a refusal; only the reason is lost.
//
// This table does not have the code of a Reject, which tells a replica's leader what to do (replicate.RejectCode), nor
// the statuses of a HelloAck or a Goodbye, which are netproto's.
type Reason uint8

// The numbers. The error itself documents what it means for the requester.
const (
	// ReasonUnknown: the request was done, or was not, or will be. It also stands for every error that has no number.
	ReasonUnknown Reason = 0
	// ReasonNoSpace: the leader's disk is full.
	ReasonNoSpace Reason = 1
	// ReasonReadOnly: the partition accepts no new messages.
	ReasonReadOnly Reason = 2
	// ReasonDeadline: the put waited for room at the leader until its deadline.
	ReasonDeadline Reason = 3
	// ReasonOverloaded: too many bytes wait at the leader. A ForwardAck also says so in its status, and its receiver
	// uses the status.
	ReasonOverloaded Reason = 4
	// ReasonDisk: the leader's disk failed a write or flush.
	ReasonDisk Reason = 5
	// ReasonDeleted: the topic or channel was deleted.
	ReasonDeleted Reason = 6
	// ReasonMessageTooBig: a message is larger than the leader accepts.
	ReasonMessageTooBig Reason = 7
	// ReasonBatchTooBig: the messages of a put are together larger than the leader accepts.
	ReasonBatchTooBig Reason = 8
	// ReasonDeferTooLong: the delay of a put is longer than the leader accepts.
	ReasonDeferTooLong Reason = 9
	// ReasonEmptyMessage: a message is empty.
	ReasonEmptyMessage Reason = 10
	// ReasonNoQuorum: fewer replicas are in sync than min_isr demands.
	ReasonNoQuorum Reason = 11
	// ReasonNoLeader: the node does not lead the partition. A ForwardAck also says so in its status.
	ReasonNoLeader Reason = 12
	// ReasonHeaders: the leader refuses the headers of a put.
	ReasonHeaders Reason = 13
	// ReasonQuota: the topic holds as many unconfirmed bytes or messages as its quota allows.
	ReasonQuota Reason = 14
	// ReasonStateFull: there is no room for another deferred message or confirmation out of order.
	ReasonStateFull Reason = 15
	// ReasonMoved: the node no longer serves the channel, because another node leads.
	ReasonMoved Reason = 16
	// ReasonNoChannel: there is no such channel.
	ReasonNoChannel Reason = 17
	// ReasonTooManyClients: the channel has as many consumers as it may have.
	ReasonTooManyClients Reason = 18
	// ReasonNotInFlight: the message is not in flight.
	ReasonNotInFlight Reason = 19
	// ReasonNotOwner: the message is in flight to another client.
	ReasonNotOwner Reason = 20
	// ReasonVersion: the settings have changed since the requester read them.
	ReasonVersion Reason = 21
	// ReasonSettings: the settings are not valid.
	ReasonSettings Reason = 22
	// ReasonFenced: the batch is of an earlier epoch of its producer.
	ReasonFenced Reason = 23
	// ReasonSequence: there is a gap or an overlap in the batches of the producer.
	ReasonSequence Reason = 24
	// ReasonUnknownProducer: the partition does not know the producer.
	ReasonUnknownProducer Reason = 25

	// ReasonTooManyProducers: the partition knows as many named producers as it may.
	ReasonTooManyProducers Reason = 26

	// ReasonNoInodes: the file system of the leader's data directory has no inodes left.
	ReasonNoInodes Reason = 27

	// ReasonProducerOwner: the producer's name belongs to another identity.
	ReasonProducerOwner Reason = 28

	// ReasonCount is one more than the highest number.
	ReasonCount = 29
)

// Answer is a kind of answer that carries a Reason.
type Answer uint8

// The field of each answer that carries the Reason.
const (
	AnswerPut          Answer = 1 << iota // ForwardAck: the ninth byte of its payload
	AnswerOperation                       // ForwardOpAck: stream of its header, from feature level 2 on; 0: none
	AnswerSubscription                    // Subscribed, Unserved, Consumed: with numbers of their own
)

// reasons says which answers may carry each Reason; any other answer carries number 0 instead. Subscriptions are older
// than the common numbers and have their own: field subscription.
var reasons = [ReasonCount]struct {
	name         string // in FORMAT.md
	in           Answer
	subscription uint8
}{
	ReasonUnknown:        {name: "Unknown", in: AnswerPut},
	ReasonNoSpace:        {name: "NoSpace", in: AnswerPut},
	ReasonReadOnly:       {name: "ReadOnly", in: AnswerPut},
	ReasonDeadline:       {name: "Deadline", in: AnswerPut},
	ReasonOverloaded:     {name: "Overloaded", in: AnswerPut},
	ReasonDisk:           {name: "Disk", in: AnswerPut | AnswerOperation},
	ReasonDeleted:        {name: "Deleted", in: AnswerPut | AnswerSubscription, subscription: 1},
	ReasonMessageTooBig:  {name: "MessageTooBig", in: AnswerPut},
	ReasonBatchTooBig:    {name: "BatchTooBig", in: AnswerPut},
	ReasonDeferTooLong:   {name: "DeferTooLong", in: AnswerPut},
	ReasonEmptyMessage:   {name: "EmptyMessage", in: AnswerPut},
	ReasonNoQuorum:       {name: "NoQuorum", in: AnswerPut},
	ReasonNoLeader:       {name: "NoLeader", in: AnswerPut},
	ReasonHeaders:        {name: "Headers", in: AnswerPut},
	ReasonQuota:          {name: "Quota", in: AnswerPut},
	ReasonStateFull:      {name: "StateFull", in: AnswerPut | AnswerSubscription, subscription: 6},
	ReasonMoved:          {name: "Moved", in: AnswerSubscription, subscription: 0},
	ReasonNoChannel:      {name: "NoChannel", in: AnswerOperation | AnswerSubscription, subscription: 2},
	ReasonTooManyClients: {name: "TooManyClients", in: AnswerSubscription, subscription: 3},
	ReasonNotInFlight:    {name: "NotInFlight", in: AnswerSubscription, subscription: 4},
	ReasonNotOwner:       {name: "NotOwner", in: AnswerSubscription, subscription: 5},
	ReasonVersion:        {name: "Version", in: AnswerOperation},
	ReasonSettings:       {name: "Settings", in: AnswerOperation},

	ReasonFenced:          {name: "Fenced", in: AnswerPut | AnswerOperation},
	ReasonSequence:        {name: "Sequence", in: AnswerPut},
	ReasonUnknownProducer: {name: "UnknownProducer", in: AnswerPut},

	ReasonTooManyProducers: {name: "TooManyProducers", in: AnswerOperation},

	ReasonNoInodes: {name: "NoInodes", in: AnswerPut},

	ReasonProducerOwner: {name: "ProducerOwner", in: AnswerPut | AnswerOperation},
}

// Number returns the number that stands for r in an answer of kind a, or false if such an answer never carries r.
func (r Reason) Number(a Answer) (n uint8, ok bool) {
	switch {
	case r >= ReasonCount || reasons[r].in&a == 0:
		return 0, false
	case a == AnswerSubscription:
		return reasons[r].subscription, true
	}
	return uint8(r), true
}

// ReasonOf returns the Reason that number n stands for in an answer of kind a, or false if this version knows none: a
// newer version may have one.
func ReasonOf(a Answer, n uint32) (Reason, bool) {
	for r := range Reason(ReasonCount) {
		if known, ok := r.Number(a); ok && uint32(known) == n {
			return r, true
		}
	}
	return ReasonUnknown, false
}

// String returns the name of r in FORMAT.md.
func (r Reason) String() string {
	if r < ReasonCount {
		return reasons[r].name
	}
	return "reason " + strconv.Itoa(int(r))
}
