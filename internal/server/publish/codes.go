package publish

import (
	"errors"

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

// YouzanCode returns youzan's code for an error that its clients treat specially, or "" for other errors.
func YouzanCode(err error) string {
	for _, x := range []struct {
		code string
		errs []error
	}{
		{CodeTopicMissing, []error{errs.ErrNoPartition, errs.ErrNoTopic, errs.ErrAutoCreateOff}},
		{CodeNotLeader, []error{errs.ErrNoLeader, errs.ErrMoved}},
		{CodeNotWritable, []error{errs.ErrNoQuorum, errs.ErrNoSpace, errs.ErrReadOnly, errs.ErrDisk}},
		{CodeBadExt, []error{errs.ErrHeaders}},
	} {
		for _, e := range x.errs {
			if errors.Is(err, e) {
				return x.code
			}
		}
	}
	return ""
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
	switch {
	case errors.Is(err, errs.ErrFenced):
		return CodeFenced
	case errors.Is(err, errs.ErrSequence):
		return CodeSequence
	case errors.Is(err, errs.ErrUnknownProducer):
		return CodeUnknownProducer
	case errors.Is(err, errs.ErrProducerOwner):
		return CodeProducerOwner
	}
	return ""
}
