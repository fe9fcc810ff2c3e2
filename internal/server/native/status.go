package native

import (
	"context"
	"errors"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/netproto"
)

// statuses says which status tells a client of an error of the engine. netproto says what the client must do then. An
// error of none of them is StatusInternal: its outcome is unknown.
var statuses = []struct {
	status netproto.Status
	errs   []error
}{
	{netproto.StatusOldEpoch, []error{node.ErrFenced}},
	{netproto.StatusGap, []error{node.ErrSequence}},
	{netproto.StatusDiverged, []error{node.ErrUnknownProducer}},
	{netproto.StatusUnproven, []error{errRevoked, node.ErrProducerOwner}},
	// A partition that this node does not know may be known elsewhere, because the topic has just grown.
	{netproto.StatusNotLeader, []error{node.ErrNoLeader, node.ErrMoved, node.ErrDeleted, node.ErrNoPartition}},
	{netproto.StatusFull, []error{
		node.ErrOverloaded, node.ErrDeadline, node.ErrNoSpace, node.ErrQuota, node.ErrStateFull,
		node.ErrTooManyTopics, node.ErrTooManyPartitions, node.ErrFewInodes,
		node.ErrTooManyChans, node.ErrTooManyClients,
	}},
	{netproto.StatusOverloaded, []error{node.ErrNoQuorum, meta.ErrTooFewNodes, meta.ErrUnavailable}},
	{netproto.StatusClosed, []error{context.Canceled}},
	{netproto.StatusTooBig, []error{node.ErrMessageTooBig, node.ErrBatchTooBig, node.ErrHeaderBytes}},
	{netproto.StatusRejected, []error{
		node.ErrTopicName, node.ErrNoTopic, node.ErrAutoCreateOff, node.ErrTopicOptions, node.ErrEmptyMessage,
		node.ErrDeferTooLong, node.ErrHeaders, node.ErrStart, node.ErrProducerName, node.ErrProducerLevel,
		node.ErrProducerTenure, node.ErrTooManyProducers, errBatch,
		node.ErrChannelName, node.ErrNoChannel, node.ErrSeek, node.ErrFromLevel, node.ErrOptions,
	}},
	{netproto.StatusUnknown, []error{node.ErrUnknown, node.ErrDisk, node.ErrDiskHung, node.ErrClosed}},
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
