package native

import (
	"context"
	"errors"

	"penstock/engine"
	"penstock/internal/meta"
	"penstock/netproto"
)

// statuses says which status tells a client of an error of the engine. netproto says what the client must do then. An
// error of none of them is StatusInternal: its outcome is unknown.
var statuses = []struct {
	status netproto.Status
	errs   []error
}{
	{netproto.StatusOldEpoch, []error{engine.ErrFenced}},
	{netproto.StatusGap, []error{engine.ErrSequence}},
	{netproto.StatusDiverged, []error{engine.ErrUnknownProducer}},
	{netproto.StatusUnproven, []error{errRevoked, engine.ErrProducerOwner}},
	// A partition that this node does not know may be known elsewhere, because the topic has just grown.
	{netproto.StatusNotLeader, []error{engine.ErrNoLeader, engine.ErrMoved, engine.ErrDeleted, engine.ErrNoPartition}},
	{netproto.StatusFull, []error{
		engine.ErrOverloaded, engine.ErrDeadline, engine.ErrNoSpace, engine.ErrQuota, engine.ErrStateFull,
		engine.ErrTooManyTopics, engine.ErrTooManyPartitions, engine.ErrFewInodes,
		engine.ErrTooManyChans, engine.ErrTooManyClients,
	}},
	{netproto.StatusOverloaded, []error{engine.ErrNoQuorum, meta.ErrTooFewNodes, meta.ErrUnavailable}},
	{netproto.StatusClosed, []error{context.Canceled}},
	{netproto.StatusTooBig, []error{engine.ErrMessageTooBig, engine.ErrBatchTooBig, engine.ErrHeaderBytes}},
	{netproto.StatusRejected, []error{
		engine.ErrTopicName, engine.ErrNoTopic, engine.ErrAutoCreateOff, engine.ErrTopicOptions, engine.ErrEmptyMessage,
		engine.ErrDeferTooLong, engine.ErrHeaders, engine.ErrStart, engine.ErrProducerName, engine.ErrProducerLevel,
		engine.ErrProducerTenure, engine.ErrTooManyProducers, errBatch,
		engine.ErrChannelName, engine.ErrNoChannel, engine.ErrSeek, engine.ErrFromLevel, engine.ErrOptions,
	}},
	{netproto.StatusUnknown, []error{engine.ErrUnknown, engine.ErrDisk, engine.ErrDiskHung, engine.ErrClosed}},
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
