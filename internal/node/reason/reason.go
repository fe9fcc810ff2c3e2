// Package reason maps the errors that callers act on to the numbers that stand for them between nodes, and back.
// wire.Reason defines the numbers, and which kinds of answers carry which of them. The packages that answer other nodes
// call it, for forwarded puts, consumers of other nodes, and operations on all leaders. It has no state.
package reason

import (
	"errors"
	"strings"

	"penstock/internal/node/errs"
	"penstock/replicate/wire"
)

// byNumber maps each number to its error.
var byNumber = [wire.ReasonCount]error{
	wire.ReasonUnknown:        errs.ErrUnknown,
	wire.ReasonNoSpace:        errs.ErrNoSpace,
	wire.ReasonReadOnly:       errs.ErrReadOnly,
	wire.ReasonDeadline:       errs.ErrDeadline,
	wire.ReasonOverloaded:     errs.ErrOverloaded,
	wire.ReasonDisk:           errs.ErrDisk,
	wire.ReasonDeleted:        errs.ErrDeleted,
	wire.ReasonMessageTooBig:  errs.ErrMessageTooBig,
	wire.ReasonBatchTooBig:    errs.ErrBatchTooBig,
	wire.ReasonDeferTooLong:   errs.ErrDeferTooLong,
	wire.ReasonEmptyMessage:   errs.ErrEmptyMessage,
	wire.ReasonNoQuorum:       errs.ErrNoQuorum,
	wire.ReasonNoLeader:       errs.ErrNoLeader,
	wire.ReasonHeaders:        errs.ErrHeaders,
	wire.ReasonQuota:          errs.ErrQuota,
	wire.ReasonStateFull:      errs.ErrStateFull,
	wire.ReasonMoved:          errs.ErrMoved,
	wire.ReasonNoChannel:      errs.ErrNoChannel,
	wire.ReasonTooManyClients: errs.ErrTooManyClients,
	wire.ReasonNotInFlight:    errs.ErrNotInFlight,
	wire.ReasonNotOwner:       errs.ErrNotOwner,
	wire.ReasonVersion:        errs.ErrVersion,
	wire.ReasonSettings:       errs.ErrSettings,

	wire.ReasonFenced:          errs.ErrFenced,
	wire.ReasonSequence:        errs.ErrSequence,
	wire.ReasonUnknownProducer: errs.ErrUnknownProducer,

	wire.ReasonTooManyProducers: errs.ErrTooManyProducers,
	wire.ReasonProducerOwner:    errs.ErrProducerOwner,

	wire.ReasonNoInodes: errs.ErrNoInodes, // an ErrNoSpace, too
}

// Number returns the number of err in a kind of answer, or 0 if that kind has no number for it. If err is several known
// errors, of which one is a kind of another, it is the number of the narrower one.
func Number(answer wire.Answer, err error) (number uint8) {
	var found error
	for r, known := range byNumber {
		n, ok := wire.Reason(r).Number(answer)
		if ok && errors.Is(err, known) && (found == nil || errors.Is(known, found)) {
			found, number = known, n
		}
	}
	return number
}

// OfPut returns the reason for which a leader did not store a forwarded put, or may not have stored it. text is what
// the leader says of it; empty: no more than the reason does, or the leader's version is older.
func OfPut(number uint8, text string) error {
	r, _ := wire.ReasonOf(wire.AnswerPut, uint32(number)) // an unknown number is ReasonUnknown
	if text != "" {
		return &remoteError{text, byNumber[r]}
	}
	return byNumber[r]
}

// TextOfPut returns the text for OfPut; empty: err says no more than its number.
func TextOfPut(number uint8, err error) string {
	text := err.Error()
	if text == OfPut(number, "").Error() {
		return ""
	}
	return text
}

// OfSubscription returns the reason for which a leader refused a subscription, ended it, or refused a consumer's call.
// An unknown number is treated as a move of the leadership: the client's node then subscribes at the current leaders.
func OfSubscription(number uint8) error {
	if r, ok := wire.ReasonOf(wire.AnswerSubscription, uint32(number)); ok {
		return byNumber[r]
	}
	return errs.ErrMoved
}

// remoteError is the error of an operation or a put at another node.
type remoteError struct {
	text string // the text of the error at that node
	err  error  // one of byNumber
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.err }

// OfOperation returns the error of a ForwardOpAck, with its text unchanged. An error without a number is either one
// that callers do not compare with, or it came from a node that sends no numbers. In the second case the text begins
// with the text of a known error. No other code looks at the text of an error.
func OfOperation(number uint32, text string) error {
	if r, ok := wire.ReasonOf(wire.AnswerOperation, number); ok {
		return &remoteError{text, byNumber[r]}
	}
	if number == 0 {
		for r, known := range byNumber {
			_, carried := wire.Reason(r).Number(wire.AnswerOperation)
			if carried && strings.HasPrefix(text, known.Error()) {
				return &remoteError{text, known}
			}
		}
	}
	return errors.New(text)
}
