package node

import (
	"penstock/clog"
	"penstock/internal/node/base"
	"penstock/internal/node/fanout"
)

// GoneError is the ErrNoTopic or ErrNoChannel for a topic or channel that was deleted less than about 10 s ago. Its Ago
// is the time since the deletion.
type GoneError = fanout.GoneError

// LimitError is an error about a value that is above a limit. Its text has all three: value, limit and setting.
type LimitError = base.LimitError

// ErrForgotten says that the commit log of a single node lacks messages that were answered OK: files of it are gone, or
// an older state of the disk came back. Open returns it and has changed nothing. Whoever accepts the loss calls
// AcceptLoss. A node of a cluster starts instead, and gets what it lacks from the other replicas.
var ErrForgotten = clog.ErrForgotten

// forgottenHelp says what an operator can do about ErrForgotten.
const forgottenHelp = "messages that this node answered OK are missing: put the files back from where they were " +
	"moved to, mount what is not mounted, or restore a backup; to go on without what is missing, run: penstock accept-loss"

// Errors that callers act on, tested with errors.Is. The text of each is stable. It says what happened and what that
// means for the data; where it ends in "nothing was stored" or "nothing was changed", the request can be repeated
// without making a duplicate. See package base for the texts.
var (
	ErrOptions        = base.ErrOptions
	ErrClosed         = base.ErrClosed
	ErrTopicName      = base.ErrTopicName
	ErrChannelName    = base.ErrChannelName
	ErrNoTopic        = base.ErrNoTopic
	ErrNoChannel      = base.ErrNoChannel
	ErrDeleted        = base.ErrDeleted
	ErrEmptyMessage   = base.ErrEmptyMessage
	ErrMessageTooBig  = base.ErrMessageTooBig
	ErrBatchTooBig    = base.ErrBatchTooBig
	ErrDeferTooLong   = base.ErrDeferTooLong
	ErrTopicOptions   = base.ErrTopicOptions
	ErrTooManyTopics  = base.ErrTooManyTopics
	ErrShare          = base.ErrShare
	ErrTopicShare     = base.ErrTopicShare
	ErrPartitionShare = base.ErrPartitionShare
	ErrStateShare     = base.ErrStateShare
	ErrStoredShare    = base.ErrStoredShare
	ErrTooManyChans   = base.ErrTooManyChans
	ErrOverloaded     = base.ErrOverloaded
	ErrDeadline       = base.ErrDeadline
	ErrNoSpace        = base.ErrNoSpace
	ErrNoInodes       = base.ErrNoInodes // an ErrNoSpace
	ErrFewInodes      = base.ErrFewInodes
	ErrQuota          = base.ErrQuota
	ErrDisk           = base.ErrDisk
	ErrDiskHung       = base.ErrDiskHung
	ErrReadOnly       = base.ErrReadOnly
	ErrAutoCreateOff  = base.ErrAutoCreateOff
	ErrTooManyClients = base.ErrTooManyClients
	ErrNoLeader       = base.ErrNoLeader
	ErrNoQuorum       = base.ErrNoQuorum
	ErrUnknown        = base.ErrUnknown
	ErrMoved          = base.ErrMoved
	ErrNotInFlight    = base.ErrNotInFlight
	ErrNotOwner       = base.ErrNotOwner
	ErrNotServed      = base.ErrNotServed
	ErrHeaders        = base.ErrHeaders
	ErrHeaderBytes    = base.ErrHeaderBytes
	ErrInflation      = base.ErrInflation
	ErrBatchKeys      = base.ErrBatchKeys
	ErrVersion        = base.ErrVersion
	ErrStateFull      = base.ErrStateFull
	ErrGapsFull       = base.ErrGapsFull
	ErrDeferRetention = base.ErrDeferRetention
	ErrSeek           = base.ErrSeek
	ErrFromLevel      = base.ErrFromLevel
	ErrPartitionLevel = base.ErrPartitionLevel
	ErrStart          = base.ErrStart
	ErrNoPartition    = base.ErrNoPartition
	ErrSettings       = base.ErrSettings

	ErrTooManyPartitions = base.ErrTooManyPartitions

	ErrChannelExists    = base.ErrChannelExists
	ErrFenced           = base.ErrFenced
	ErrSequence         = base.ErrSequence
	ErrUnknownProducer  = base.ErrUnknownProducer
	ErrTooManyProducers = base.ErrTooManyProducers
	ErrProducerOwner    = base.ErrProducerOwner
	ErrProducerTenure   = base.ErrProducerTenure
	ErrProducerName     = base.ErrProducerName
	ErrProducerLevel    = base.ErrProducerLevel
	ErrNoProducer       = base.ErrNoProducer
)
