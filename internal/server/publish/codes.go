package publish

import (
	"errors"
	"slices"

	"penstock/internal/node/errs"
)

// youzan's error codes. After the first three its clients look the topic up again.
const (
	CodeTopicMissing = "E_TOPIC_NOT_EXIST"
	CodeNotLeader    = "E_FAILED_ON_NOT_LEADER"
	CodeNotWritable  = "E_FAILED_ON_NOT_WRITABLE"
	CodeOrderNeeded  = "E_SUB_ORDER_IS_MUST"
	CodeBadExt       = "E_INVALID_JSON_HEADER"
)

// codes has the errors of each code.
type codes []struct {
	code string
	errs []error
}

// of returns the code of an error, or "".
func (all codes) of(err error) string {
	for _, x := range all {
		if isAny(err, x.errs) {
			return x.code
		}
	}
	return ""
}

// isAny reports whether err is one of the errors.
func isAny(err error, all []error) bool {
	return slices.ContainsFunc(all, func(e error) bool { return errors.Is(err, e) })
}

// YouzanCode returns youzan's code for an error that its clients treat specially, or "" for other errors.
func YouzanCode(err error) string {
	return codes{
		{CodeTopicMissing, []error{errs.ErrNoPartition, errs.ErrNoTopic, errs.ErrAutoCreateOff}},
		{CodeNotLeader, []error{errs.ErrNoLeader, errs.ErrMoved}},
		{CodeNotWritable, []error{errs.ErrNoQuorum, errs.ErrNoSpace, errs.ErrReadOnly, errs.ErrDisk}},
		{CodeBadExt, []error{errs.ErrHeaders}},
	}.of(err)
}

// Codes of the answers to publishers that number their messages. Nothing of the command was stored, and the connection
// goes on.
const (
	CodeFenced          = "E_PRODUCER_FENCED"   // the epoch is an earlier one
	CodeSequence        = "E_PRODUCER_SEQUENCE" // a gap or an overlap
	CodeUnknownProducer = "E_PRODUCER_UNKNOWN"  // never opened in the partition, or forgotten there
	CodeProducerOwner   = "E_PRODUCER_OWNER"    // the name belongs to another identity there
)

// ProducerCode returns the code of an error of the rules of producers, or "" for other errors.
func ProducerCode(err error) string {
	return codes{
		{CodeFenced, []error{errs.ErrFenced}},
		{CodeSequence, []error{errs.ErrSequence}},
		{CodeUnknownProducer, []error{errs.ErrUnknownProducer}},
		{CodeProducerOwner, []error{errs.ErrProducerOwner}},
	}.of(err)
}
