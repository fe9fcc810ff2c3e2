package engine

import (
	"errors"
	"strings"

	"penstock/replicate/wire"
)

// An error goes to another node as a number: wire.Reason has the numbers, and says which kinds of answers carry which.
// Here each number is mapped to its error. Only operationErrorOf looks at the text of an error.

// reasonLevel is the feature level from which a ForwardOpAck carries a number. Below it, only the text identifies the
// error. Versions without numbers ignore the field, so that one of them may be in a cluster of any level.
const reasonLevel = 2

// errorsByReason maps each number to its error.
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

// numberOf returns the number of err in a kind of answer; 0 if that kind has none for it.
func numberOf(answer wire.Answer, err error) uint8 {
	for r, known := range errorsByReason {
		if n, ok := wire.Reason(r).Number(answer); ok && errors.Is(err, known) {
			return n
		}
	}
	return 0
}

// putErrorOf returns why a leader did not store a forwarded put, or may not have stored it.
func putErrorOf(number uint8) error {
	r, _ := wire.ReasonOf(wire.AnswerPut, uint32(number)) // an unknown number is ReasonUnknown
	return errorsByReason[r]
}

// subscriptionErrorOf returns why a leader refused a subscription, ended it, or refused a consumer's call. An unknown
// number is treated as a move of the leadership: the client's node subscribes at the present leaders.
func subscriptionErrorOf(number uint8) error {
	if r, ok := wire.ReasonOf(wire.AnswerSubscription, uint32(number)); ok {
		return errorsByReason[r]
	}
	return ErrMoved
}

// operationError is an operation's error at another node.
type operationError struct {
	text string // its text at that node
	err  error  // one of errorsByReason
}

func (e *operationError) Error() string { return e.text }
func (e *operationError) Unwrap() error { return e.err }

// operationErrorOf returns the error of a ForwardOpAck, with its text unchanged. An error without a number is none that
// callers compare with; or it came from a node that sends no numbers, and then the text begins with that of a known
// error.
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
