package wire

import "strconv"

// Reason is the number of an error in an answer to another node. Package engine/reason says which error each one is.
// Nothing looks at the text of an answer to learn what it means, but for answers of nodes that send no number.
//
// A number is for ever: a new error gets the next one, and the number of an error that is gone is not given again. An
// answer with a number that its receiver does not know refuses all the same; only why is lost.
//
// Not in this table: the code of a Reject, which tells a replica's leader what to do (replicate.RejectCode), and the
// statuses of a HelloAck or a Goodbye, which are netproto's.
type Reason uint8

// The numbers. What each means for the one who asked stands at the error itself.
const (
	// ReasonUnknown: it was done or not, or will be. It also stands for an error that has no number.
	ReasonUnknown Reason = 0
	// ReasonNoSpace: the leader's disk is full.
	ReasonNoSpace Reason = 1
	// ReasonReadOnly: the partition stores nothing new.
	ReasonReadOnly Reason = 2
	// ReasonDeadline: the put waited for room at the leader until its deadline.
	ReasonDeadline Reason = 3
	// ReasonOverloaded: too many bytes wait at the leader. A ForwardAck says so by its status, too, and that is what its
	// receiver goes by.
	ReasonOverloaded Reason = 4
	// ReasonDisk: the leader's disk failed a write or flush.
	ReasonDisk Reason = 5
	// ReasonDeleted: the topic or channel was deleted.
	ReasonDeleted Reason = 6
	// ReasonMessageTooBig: a message is larger than the leader takes.
	ReasonMessageTooBig Reason = 7
	// ReasonBatchTooBig: the messages of a put are larger together than the leader takes.
	ReasonBatchTooBig Reason = 8
	// ReasonDeferTooLong: the delay of a put is longer than the leader takes.
	ReasonDeferTooLong Reason = 9
	// ReasonEmptyMessage: a message has no byte.
	ReasonEmptyMessage Reason = 10
	// ReasonNoQuorum: fewer replicas are in sync than min_isr demands.
	ReasonNoQuorum Reason = 11
	// ReasonNoLeader: the node does not lead the partition. A ForwardAck says so by its status, too.
	ReasonNoLeader Reason = 12
	// ReasonHeaders: the leader refuses the headers of a put.
	ReasonHeaders Reason = 13
	// ReasonQuota: the topic keeps as much unconfirmed as its quota lets it.
	ReasonQuota Reason = 14
	// ReasonStateFull: there is no room for another deferred message or confirmation out of order.
	ReasonStateFull Reason = 15
	// ReasonMoved: the node serves the channel no more because another one leads.
	ReasonMoved Reason = 16
	// ReasonNoChannel: there is no such channel.
	ReasonNoChannel Reason = 17
	// ReasonTooManyClients: the channel has as many consumers as it may.
	ReasonTooManyClients Reason = 18
	// ReasonNotInFlight: the message is not in flight.
	ReasonNotInFlight Reason = 19
	// ReasonNotOwner: the message is in flight to another client.
	ReasonNotOwner Reason = 20
	// ReasonVersion: somebody else has changed the settings since they were read.
	ReasonVersion Reason = 21
	// ReasonSettings: the settings are not valid.
	ReasonSettings Reason = 22

	// ReasonCount is one more than the highest number.
	ReasonCount = 23
)

// Answer is a kind of answers that carry a Reason.
type Answer uint8

// Where a Reason stands in them.
const (
	AnswerPut          Answer = 1 << iota // ForwardAck: the ninth byte of its payload
	AnswerOperation                       // ForwardOpAck: stream of its header, from feature level 2 on; 0: none
	AnswerSubscription                    // Subscribed, Unserved, Consumed: by a number of their own
)

// reasons says in which answers each Reason may stand; all others are sent as number 0. Subscriptions are older than
// the common numbers: subscription is the number there.
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
}

// Number is how r stands in an answer of kind a; false if such an answer never gives it.
func (r Reason) Number(a Answer) (n uint8, ok bool) {
	switch {
	case r >= ReasonCount || reasons[r].in&a == 0:
		return 0, false
	case a == AnswerSubscription:
		return reasons[r].subscription, true
	}
	return uint8(r), true
}

// ReasonOf is the Reason that an answer of kind a gives by number n; false if it gives none by that number: a newer
// version may, later.
func ReasonOf(a Answer, n uint32) (Reason, bool) {
	for r := range Reason(ReasonCount) {
		if known, ok := r.Number(a); ok && uint32(known) == n {
			return r, true
		}
	}
	return ReasonUnknown, false
}

// String is the name of r in FORMAT.md.
func (r Reason) String() string {
	if r < ReasonCount {
		return reasons[r].name
	}
	return "reason " + strconv.Itoa(int(r))
}
