package engine

import (
	"errors"
	"strings"

	"penstock/replicate/wire"
)

// An error that goes to another node goes as its number: wire.Reason has the numbers, and which answers carry which of
// them. Here each number is bound to its error. Nothing but operationErrorOf looks at an error's text.

// reasonLevel is the feature level from which a ForwardOpAck carries a number. At the first level the text alone says
// what it is. Versions that know no numbers ignore it, so that one of them may be among the nodes of any level.
const reasonLevel = 2

// errorsByReason are the errors that the numbers mean.
var errorsByReason = [wire.ReasonCount]error{
	wire.ReasonUnknown:        ErrUnknown,
	wire.ReasonNoSpace:        ErrNoSpace,
	wire.ReasonReadOnly:       ErrReadOnly,
	wire.ReasonDeadline:       ErrDeadline,
	wire.ReasonOverloaded:     ErrOverloaded,
	wire.ReasonDisk:           ErrDisk,
	wire.ReasonDeleted:        ErrDeleted,
	wire.ReasonMessageTooBig:  ErrMessageTooBig,
	wire.ReasonBatchTooBig:    ErrBatchTooBig,
	wire.ReasonDeferTooLong:   ErrDeferTooLong,
	wire.ReasonEmptyMessage:   ErrEmptyMessage,
	wire.ReasonNoQuorum:       ErrNoQuorum,
	wire.ReasonNoLeader:       ErrNoLeader,
	wire.ReasonHeaders:        ErrHeaders,
	wire.ReasonQuota:          ErrQuota,
	wire.ReasonStateFull:      ErrStateFull,
	wire.ReasonMoved:          ErrMoved,
	wire.ReasonNoChannel:      ErrNoChannel,
	wire.ReasonTooManyClients: ErrTooManyClients,
	wire.ReasonNotInFlight:    ErrNotInFlight,
	wire.ReasonNotOwner:       ErrNotOwner,
	wire.ReasonVersion:        ErrVersion,
	wire.ReasonSettings:       ErrSettings,
}

// numberOf is the number of err in an answer; 0 if such an answer has none for it.
func numberOf(answer wire.Answer, err error) uint8 {
	for r, known := range errorsByReason {
		if n, ok := wire.Reason(r).Number(answer); ok && errors.Is(err, known) {
			return n
		}
	}
	return 0
}

// putErrorOf is why a leader did not store a forwarded put, or may not have.
func putErrorOf(number uint8) error {
	r, _ := wire.ReasonOf(wire.AnswerPut, uint32(number)) // an unknown number is ReasonUnknown
	return errorsByReason[r]
}

// subscriptionErrorOf is why a leader refused a subscription, or ended it, or refused what a consumer did. A number
// that this version does not know sends the client's node to the leaders of now, as if leadership had moved.
func subscriptionErrorOf(number uint8) error {
	if r, ok := wire.ReasonOf(wire.AnswerSubscription, uint32(number)); ok {
		return errorsByReason[r]
	}
	return ErrMoved
}

// operationError is why another node refused an operation.
type operationError struct {
	text string // as that node says it
	err  error  // one of errorsByReason
}

func (e *operationError) Error() string { return e.text }
func (e *operationError) Unwrap() error { return e.err }

// operationErrorOf is the error of a ForwardOpAck. Its text stays as it came. What has no number is no error that
// callers ask for; or a node answered that sends no numbers, and then a known error is what the text begins with.
func operationErrorOf(number uint32, text string) error {
	if r, ok := wire.ReasonOf(wire.AnswerOperation, number); ok {
		return &operationError{text, errorsByReason[r]}
	}
	if number == 0 {
		for r, known := range errorsByReason {
			_, carried := wire.Reason(r).Number(wire.AnswerOperation)
			if carried && strings.HasPrefix(text, known.Error()) {
				return &operationError{text, known}
			}
		}
	}
	return errors.New(text)
}
