package server

import (
	"errors"

	"penstock/internal/node"
)

// youzan's error codes. After the first three its clients look the topic up again.
const (
	codeTopicMissing = "E_TOPIC_NOT_EXIST"
	codeNotLeader    = "E_FAILED_ON_NOT_LEADER"
	codeNotWritable  = "E_FAILED_ON_NOT_WRITABLE"
	codeOrderNeeded  = "E_SUB_ORDER_IS_MUST"
	codeBadExt       = "E_INVALID_JSON_HEADER"
)

// youzanCode returns youzan's code for an error that its clients treat specially, or "" for other errors.
func youzanCode(err error) string {
	for _, x := range []struct {
		code string
		errs []error
	}{
		{codeTopicMissing, []error{node.ErrNoPartition, node.ErrNoTopic, node.ErrAutoCreateOff}},
		{codeNotLeader, []error{node.ErrNoLeader, node.ErrMoved}},
		{codeNotWritable, []error{node.ErrNoQuorum, node.ErrNoSpace, node.ErrReadOnly, node.ErrDisk}},
		{codeBadExt, []error{node.ErrHeaders}},
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
	codeFenced          = "E_PRODUCER_FENCED"   // the epoch is an earlier one
	codeSequence        = "E_PRODUCER_SEQUENCE" // a gap or an overlap
	codeUnknownProducer = "E_PRODUCER_UNKNOWN"  // never opened in the partition, or forgotten there
	codeProducerOwner   = "E_PRODUCER_OWNER"    // the name belongs to another identity there
)

// producerCode returns the code of an error of the rules of producers, or "" for other errors.
func producerCode(err error) string {
	switch {
	case errors.Is(err, node.ErrFenced):
		return codeFenced
	case errors.Is(err, node.ErrSequence):
		return codeSequence
	case errors.Is(err, node.ErrUnknownProducer):
		return codeUnknownProducer
	case errors.Is(err, node.ErrProducerOwner):
		return codeProducerOwner
	}
	return ""
}
