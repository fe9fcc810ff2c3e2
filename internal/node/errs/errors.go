// Package errs has the errors on which callers of the node act: the errors themselves, and the types of those that
// carry more than a text. Everything below internal/node returns them, and package node has them under the names by
// which programs and servers use them. Package reason has their numbers between nodes. It imports only package machine.
package errs

import (
	"errors"
	"fmt"
	"time"

	"penstock/internal/node/delivery"
	"penstock/internal/node/fold"
	"penstock/internal/node/machine"
)

// Errors that callers act on, to be tested with errors.Is. Each text is stable.
var (
	ErrOptions   = errors.New("engine: the options contradict each other")
	ErrClosed    = errors.New("engine: closed")
	ErrTopicName = errors.New("engine: a topic name has 1 to 64 of the characters a-z A-Z 0-9 . _ - and may end in " +
		"#ephemeral; nothing was made or stored")
	ErrChannelName = errors.New("engine: a channel name has 1 to 64 of the characters a-z A-Z 0-9 . _ - and may end in " +
		"#ephemeral; nothing was made")
	ErrNoTopic   = errors.New("engine: there is no such topic; nothing was changed")
	ErrNoChannel = errors.New("engine: there is no such channel; nothing was changed")
	ErrDeleted   = errors.New("engine: the topic or channel was deleted: nothing of it is kept; create it again " +
		"to go on")
	ErrEmptyMessage  = errors.New("engine: a message must have at least one byte; nothing was stored")
	ErrMessageTooBig = errors.New("engine: the message is larger than MaxMessageBytes; nothing was stored")
	ErrBatchTooBig   = errors.New("engine: the batch is larger than MaxBatchBytes; nothing was stored")
	ErrNoProducer    = errors.New("engine: no partition knows a producer of this name; nothing was changed")
	// ErrProducerShare is ErrTooManyProducers because one owner has MaxOwnedProducers of them.
	ErrProducerShare error = &kindError{"engine: too many names of producers belong to this token in the partition; " +
		"nothing was changed: use fewer names, wait until some were unused for 7 days, or remove those that no program " +
		"uses any more (penstock producer remove)", ErrTooManyProducers}
	// ErrInflation is ErrBatchTooBig because of MaxInflationRatio.
	ErrInflation error = &kindError{"engine: the compressed batch becomes much larger when it is decompressed than its " +
		"size allows; nothing was stored, send it less compressed", ErrBatchTooBig}
	ErrDeferTooLong = errors.New("engine: the delay is negative or longer than MaxDefer; nothing was stored")
	// ErrDeferRetention is ErrDeferTooLong because the topic's retention by age would remove the message before.
	ErrDeferRetention = fmt.Errorf("%w", ErrDeferTooLong)
	ErrTopicOptions   = errors.New("engine: the topic cannot be made as asked for; nothing was made")
	ErrTooManyTopics  = errors.New("engine: there are as many topics as MaxTopics allows: nothing was made; delete one " +
		"or raise the limit")
	ErrTooManyPartitions = errors.New("engine: the topics have as many partitions as MaxPartitions allows: nothing was " +
		"made; delete a topic or raise the limit")
	ErrTooManyChans = errors.New("engine: the topic has as many channels as MaxChannels allows: nothing was made; " +
		"delete one or raise the limit")
	ErrOverloaded = errors.New("engine: too many bytes are waiting to be stored; nothing of this request was stored, " +
		"try again later")
	ErrDeadline = errors.New("engine: the request waited longer than its deadline; nothing of it was stored")
	ErrNoSpace  = machine.ErrNoSpace
	ErrNoInodes = machine.ErrNoInodes
	// ErrFewInodes says that a topic was not made.
	ErrFewInodes = errors.New("engine: the file system of the data directory has so few inodes left that the topics " +
		"which exist may need all of them: nothing was made; delete topics, or remove other files there")
	ErrQuota = errors.New("engine: the topic has as many bytes or messages as its quota lets it keep unconfirmed: " +
		"publishing is refused, consuming goes on; nothing was stored, confirm, raise the quota or try again later")
	ErrDisk = machine.ErrPoisoned
	// ErrGround is the ErrDisk of a node whose files were taken away. It promises nothing about what was answered before.
	ErrGround error = groundError{}
	// ErrDiskHung says that a write has not returned for a long time.
	ErrDiskHung = errors.New("engine: the disk does not answer: what waits for it is stored or not, nobody knows; look " +
		"at the device, and end this process if it does not come back")
	ErrReadOnly      = machine.ErrReadOnly
	ErrAutoCreateOff = errors.New("engine: there is no such topic or channel, and automatic creation is off: nothing " +
		"was stored; create it first")
	ErrTooManyClients = delivery.ErrTooManyConsumers
	ErrNoLeader       = errors.New("engine: no node leads the partition just now; nothing was stored, try again")
	ErrNoQuorum       = errors.New("engine: fewer replicas are in sync than min_isr demands; nothing was stored, try " +
		"again when a node is back")
	ErrUnknown = errors.New("engine: the outcome is unknown: the messages may have been stored, or may appear later; " +
		"publish again if a duplicate does no harm")
	ErrMoved       = errors.New("engine: another node leads the partition now; connect to it")
	ErrNotInFlight = delivery.ErrNotInFlight
	ErrNotOwner    = delivery.ErrNotOwner
	ErrHeaders     = errors.New("engine: the headers are refused; nothing was stored")
	// ErrHeaderBytes is ErrHeaders because of MaxHeaderBytes.
	ErrHeaderBytes = fmt.Errorf("%w", ErrHeaders)
	ErrBatchKeys   = errors.New("engine: the messages of one batch have keys of different partitions, or different " +
		"delays; nothing was stored, publish them apart")
	// ErrVersion says that the settings have changed since the caller read them.
	ErrVersion = errors.New("engine: the settings were changed by somebody else meanwhile: read them again; nothing " +
		"was changed")
	// ErrStateFull says that a request was refused because of MaxStateBytes, MaxRanges or a partition's limit.
	ErrStateFull = errors.New("engine: delayed messages and confirmations out of order take as much room as a " +
		"node (MaxStateBytes) or a partition (MaxRanges) may use for them: nothing is deferred and no channel is " +
		"made; nothing of this request was stored, everything else goes on; finish messages or raise the limit")
	// ErrGapsFull is ErrStateFull because one more delay could stop the delivery of messages without a delay.
	ErrGapsFull = fmt.Errorf("%w", ErrStateFull)
	// ErrSeek says that a SeekTo is not valid; nothing was changed.
	ErrSeek = errors.New("engine: a channel can go to the beginning, the end, an id, a time or by a count; " +
		"nothing was changed")
	// ErrChannelExists says that a channel that is to be made is there already.
	ErrChannelExists = errors.New("engine: there is a channel of that name already; nothing was changed")
	// ErrFromLevel says that a channel's start cannot be named at this feature level.
	ErrFromLevel = errors.New("engine: to say where a channel starts needs feature level 3 in a cluster, because older " +
		"leaders would not look at it; nothing was made, upgrade the cluster first")
	// ErrPartitionLevel says that a consumer of one partition cannot be served at this feature level.
	ErrPartitionLevel = errors.New("engine: to consume one partition wherever it is led needs feature level 3 in a " +
		"cluster, because older leaders would send the messages of all; nothing was changed, upgrade the cluster first")
	// ErrStart says that a Start is not valid.
	ErrStart = errors.New("engine: a reader begins at the oldest or the newest message, at an id of its partition, or " +
		"at a time; nothing was read")
	// Reasons why a batch of a producer is refused.
	ErrFenced           = fold.ErrFenced
	ErrSequence         = fold.ErrSequence
	ErrUnknownProducer  = fold.ErrUnknownProducer
	ErrTooManyProducers = fold.ErrTooManyProducers
	ErrProducerOwner    = fold.ErrProducerOwner
	ErrProducerTenure   = fold.ErrProducerTenure
	ErrProducerName     = errors.New("engine: a producer's name has at most 255 bytes of UTF-8; nothing was changed")
	// ErrProducerLevel says that producers cannot be opened at this feature level.
	ErrProducerLevel = errors.New("engine: producers need feature level 3, because older versions cannot read what is " +
		"stored about them; nothing was changed, raise the data directory (penstock upgrade) or the cluster (penstock " +
		"cluster upgrade)")
	// ErrNoPartition says that the topic has no partition with that number.
	ErrNoPartition = errors.New("engine: the topic has no such partition; nothing was changed")
	// ErrSettings is wrapped by errors that describe what is wrong with the settings of a channel.
	ErrSettings = fold.ErrSettings
)

// GapsError is an ErrGapsFull that says of how many delayed messages one more would be too many.
type GapsError struct{ Waiting, Limit, MaxRanges int }

func (e *GapsError) Error() string {
	return fmt.Sprintf("engine: %d delayed messages wait between others in the partition, of the %d that max-ranges "+
		"%d leaves to them: with more, a channel could deliver nothing new until they come due; nothing of this "+
		"request was stored, everything else goes on; finish some, use no delay, or raise max-ranges",
		e.Waiting, e.Limit, e.MaxRanges)
}

func (e *GapsError) Unwrap() error { return ErrGapsFull }

// RetentionError is an ErrDeferRetention that names the delay and the retention.
type RetentionError struct{ Delay, Age time.Duration }

func (e *RetentionError) Error() string {
	return fmt.Sprintf("engine: a delay of %v is not shorter than the %v for which retention-age keeps messages of the "+
		"topic: the message would be removed before it is due; nothing was stored, use a shorter delay or raise "+
		"retention-age", e.Delay, e.Age)
}

func (e *RetentionError) Unwrap() error { return ErrDeferRetention }

type groundError struct{}

func (groundError) Error() string {
	return "engine: files of the data directory were taken away under the running node: nothing more is answered OK " +
		"until it is restarted; this message's fate is unknown, and what was answered before may be gone from this disk"
}

func (groundError) Unwrap() error { return ErrDisk }

// kindError is an error with a text of its own that is a kind of another error.
type kindError struct {
	text string
	of   error
}

func (e *kindError) Error() string { return e.text }
func (e *kindError) Unwrap() error { return e.of }
