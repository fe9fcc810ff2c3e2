package engine

import "penstock/internal/node"

// Errors that programs act on. The text of each says what happened, what it means for the data, and what to do.
var (
	// After these a message may have been stored.
	ErrUnknown = node.ErrUnknown // nobody has answered yet: it may be stored, or appear later
	ErrDisk    = node.ErrDisk    // a write failed: the engine stores nothing more until it is opened again
	ErrClosed  = node.ErrClosed

	// After these nothing was stored, and it may be tried again: at once, or when there is room.
	ErrOverloaded = node.ErrOverloaded
	ErrDeadline   = node.ErrDeadline // Options.PublishTimeout is over
	ErrNoSpace    = node.ErrNoSpace  // the disk is full
	ErrQuota      = node.ErrQuota    // of the topic
	ErrNoLeader   = node.ErrNoLeader // of the partition, now
	ErrNoQuorum   = node.ErrNoQuorum // too few replicas are in sync

	// After these nothing was stored, and trying again does not help.
	ErrEmptyMessage  = node.ErrEmptyMessage
	ErrMessageTooBig = node.ErrMessageTooBig
	ErrBatchTooBig   = node.ErrBatchTooBig
	ErrBatchKeys     = node.ErrBatchKeys // the messages of a batch belong to different partitions
	ErrHeaders       = node.ErrHeaders   // reserved or too long names, or too many
	ErrDeferTooLong  = node.ErrDeferTooLong
	ErrReadOnly      = node.ErrReadOnly // the partition's log is damaged; a replica or a backup has it
	ErrDeleted       = node.ErrDeleted  // the topic or channel is

	ErrOptions     = node.ErrOptions
	ErrForgotten   = node.ErrForgotten // messages that were answered OK are missing from the directory
	ErrNoTopic     = node.ErrNoTopic
	ErrTopicName   = node.ErrTopicName
	ErrChannelName = node.ErrChannelName
	ErrNotInFlight = node.ErrNotInFlight // the delivery is over: the message comes again, or was finished
	ErrNoPartition = node.ErrNoPartition
)
