package node

import (
	"penstock/clog"
	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/topic"
)

// GoneError is the ErrNoTopic or ErrNoChannel for a topic or channel that was deleted less than about 10 s ago. Its Ago
// is the time since the deletion.
type GoneError = fanout.GoneError

// LimitError is an error about a value that is above a limit. Its text has all three: value, limit and setting.
type LimitError = errs.LimitError

// ErrForgotten says that the commit log of a single node lacks messages that were answered OK: files of it are gone, or
// an older state of the disk came back. Open returns it and has changed nothing. Whoever accepts the loss calls
// AcceptLoss. A node of a cluster starts instead, and gets what it lacks from the other replicas.
var ErrForgotten = clog.ErrForgotten

// forgottenHelp says what an operator can do about ErrForgotten.
const forgottenHelp = "messages that this node answered OK are missing: put the files back from where they were " +
	"moved to, mount what is not mounted, or restore a backup; to go on without what is missing, run: penstock accept-loss"

// Errors that callers act on, tested with errors.Is. The text of each is stable. It says what happened and what that
// means for the data; where it ends in "nothing was stored" or "nothing was changed", the request can be repeated
// without making a duplicate. See package errs for the texts.
var (
	ErrOptions        = errs.ErrOptions
	ErrClosed         = errs.ErrClosed
	ErrTopicName      = errs.ErrTopicName
	ErrChannelName    = errs.ErrChannelName
	ErrNoTopic        = errs.ErrNoTopic
	ErrNoChannel      = errs.ErrNoChannel
	ErrDeleted        = errs.ErrDeleted
	ErrEmptyMessage   = errs.ErrEmptyMessage
	ErrMessageTooBig  = errs.ErrMessageTooBig
	ErrBatchTooBig    = errs.ErrBatchTooBig
	ErrDeferTooLong   = errs.ErrDeferTooLong
	ErrTopicOptions   = errs.ErrTopicOptions
	ErrTooManyTopics  = errs.ErrTooManyTopics
	ErrShare          = errs.ErrShare
	ErrTopicShare     = errs.ErrTopicShare
	ErrPartitionShare = errs.ErrPartitionShare
	ErrStateShare     = errs.ErrStateShare
	ErrStoredShare    = errs.ErrStoredShare
	ErrTooManyChans   = errs.ErrTooManyChans
	ErrOverloaded     = errs.ErrOverloaded
	ErrDeadline       = errs.ErrDeadline
	ErrNoSpace        = errs.ErrNoSpace
	ErrNoInodes       = errs.ErrNoInodes // an ErrNoSpace
	ErrFewInodes      = errs.ErrFewInodes
	ErrQuota          = errs.ErrQuota
	ErrDisk           = errs.ErrDisk
	ErrDiskHung       = errs.ErrDiskHung
	ErrReadOnly       = errs.ErrReadOnly
	ErrAutoCreateOff  = errs.ErrAutoCreateOff
	ErrTooManyClients = errs.ErrTooManyClients
	ErrNoLeader       = errs.ErrNoLeader
	ErrNoQuorum       = errs.ErrNoQuorum
	ErrUnknown        = errs.ErrUnknown
	ErrMoved          = errs.ErrMoved
	ErrNotInFlight    = errs.ErrNotInFlight
	ErrNotOwner       = errs.ErrNotOwner
	ErrNotServed      = errs.ErrNotServed
	ErrHeaders        = errs.ErrHeaders
	ErrHeaderBytes    = errs.ErrHeaderBytes
	ErrInflation      = errs.ErrInflation
	ErrBatchKeys      = errs.ErrBatchKeys
	ErrVersion        = errs.ErrVersion
	ErrStateFull      = errs.ErrStateFull
	ErrGapsFull       = errs.ErrGapsFull
	ErrDeferRetention = errs.ErrDeferRetention
	ErrSeek           = errs.ErrSeek
	ErrFromLevel      = errs.ErrFromLevel
	ErrPartitionLevel = errs.ErrPartitionLevel
	ErrStart          = errs.ErrStart
	ErrNoPartition    = errs.ErrNoPartition
	ErrSettings       = errs.ErrSettings

	ErrTooManyPartitions = errs.ErrTooManyPartitions

	ErrChannelExists    = errs.ErrChannelExists
	ErrFenced           = errs.ErrFenced
	ErrSequence         = errs.ErrSequence
	ErrUnknownProducer  = errs.ErrUnknownProducer
	ErrTooManyProducers = errs.ErrTooManyProducers
	ErrProducerOwner    = errs.ErrProducerOwner
	ErrProducerTenure   = errs.ErrProducerTenure
	ErrProducerName     = errs.ErrProducerName
	ErrProducerLevel    = errs.ErrProducerLevel
	ErrNoProducer       = errs.ErrNoProducer

	ErrTopicSettings = topic.ErrTopicSettings
	ErrRedriving     = topic.ErrRedriving
	ErrRedriveSkips  = topic.ErrRedriveSkips
	ErrNoMessage     = topic.ErrNoMessage
)
