package engine

import (
	"penstock/clog"
	"penstock/internal/node/errs"
)

// Errors that programs act on. The text of each says what happened, what it means for the data, and what to do.
var (
	// After these a message may have been stored.
	ErrUnknown = errs.ErrUnknown // nobody has answered yet: it may be stored, or appear later
	ErrDisk    = errs.ErrDisk    // a write failed: the engine stores nothing more until it is opened again
	ErrClosed  = errs.ErrClosed

	// After these nothing was stored, and it may be tried again: at once, or when there is room.
	ErrOverloaded = errs.ErrOverloaded
	ErrDeadline   = errs.ErrDeadline // Options.PublishTimeout is over
	ErrNoSpace    = errs.ErrNoSpace  // the disk is full
	ErrQuota      = errs.ErrQuota    // of the topic
	ErrNoLeader   = errs.ErrNoLeader // of the partition, now
	ErrNoQuorum   = errs.ErrNoQuorum // too few replicas are in sync

	// After these nothing was stored, and trying again does not help.
	ErrEmptyMessage  = errs.ErrEmptyMessage
	ErrMessageTooBig = errs.ErrMessageTooBig
	ErrBatchTooBig   = errs.ErrBatchTooBig
	ErrBatchKeys     = errs.ErrBatchKeys // the messages of a batch belong to different partitions
	ErrHeaders       = errs.ErrHeaders   // reserved or too long names, or too many
	ErrDeferTooLong  = errs.ErrDeferTooLong
	ErrReadOnly      = errs.ErrReadOnly // the partition's log is damaged; a replica or a backup has it
	ErrDeleted       = errs.ErrDeleted  // the topic or channel is

	ErrOptions     = errs.ErrOptions
	ErrForgotten   = clog.ErrForgotten // messages that were answered OK are missing from the directory
	ErrNoTopic     = errs.ErrNoTopic
	ErrTopicName   = errs.ErrTopicName
	ErrChannelName = errs.ErrChannelName
	ErrNotInFlight = errs.ErrNotInFlight // the delivery is over: the message comes again, or was finished
	ErrNoPartition = errs.ErrNoPartition
)
