package native

import (
	"context"
	"errors"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/netproto"
)

// statuses says which status tells a client of an error of the engine. netproto says what the client must do then. An
// error of none of them is StatusInternal: its outcome is unknown.
var statuses = []struct {
	status netproto.Status
	errs   []error
}{
	{netproto.StatusOldEpoch, []error{errs.ErrFenced}},
	{netproto.StatusGap, []error{errs.ErrSequence}},
	{netproto.StatusDiverged, []error{errs.ErrUnknownProducer}},
	{netproto.StatusUnproven, []error{errRevoked, errs.ErrProducerOwner}},
	// A partition that this node does not know may be known elsewhere, because the topic has just grown.
	{netproto.StatusNotLeader, []error{errs.ErrNoLeader, errs.ErrMoved, errs.ErrDeleted, errs.ErrNoPartition}},
	{netproto.StatusFull, []error{
		errs.ErrOverloaded, errs.ErrDeadline, errs.ErrNoSpace, errs.ErrQuota, errs.ErrStateFull,
		errs.ErrTooManyTopics, errs.ErrTooManyPartitions, errs.ErrFewInodes,
		errs.ErrTooManyChans, errs.ErrTooManyClients,
	}},
	{netproto.StatusOverloaded, []error{errs.ErrNoQuorum, meta.ErrTooFewNodes, meta.ErrUnavailable}},
	{netproto.StatusClosed, []error{context.Canceled}},
	{netproto.StatusTooBig, []error{errs.ErrMessageTooBig, errs.ErrBatchTooBig, errs.ErrHeaderBytes}},
	{netproto.StatusRejected, []error{
		errs.ErrTopicName, errs.ErrNoTopic, errs.ErrAutoCreateOff, errs.ErrTopicOptions, errs.ErrEmptyMessage,
		errs.ErrDeferTooLong, errs.ErrHeaders, errs.ErrStart, errs.ErrProducerName, errs.ErrProducerLevel,
		errs.ErrProducerTenure, errs.ErrTooManyProducers, errBatch,
		errs.ErrChannelName, errs.ErrNoChannel, errs.ErrSeek, errs.ErrFromLevel, errs.ErrOptions,
	}},
	{netproto.StatusUnknown, []error{errs.ErrUnknown, errs.ErrDisk, errs.ErrDiskHung, errs.ErrClosed}},
}

func statusOf(err error) netproto.Status {
	if err == nil {
		return netproto.StatusOK
	}
	for _, s := range statuses {
		for _, e := range s.errs {
			if errors.Is(err, e) {
				return s.status
			}
		}
	}
	return netproto.StatusInternal
}
