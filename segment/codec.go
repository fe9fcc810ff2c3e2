package segment

import "penstock/batch"

// What a log stores are batches, and package batch has their codec. It is a package of its own because clients seal
// and read batches too, on systems for which this package cannot be built. The types and constants keep their names
// here, so that code about logs needs one package for logs and what lies in them. Functions have no second name, since
// one that calls the other might cost a call per message: callers use those of package batch.

// The numbers of messages, batches and leaderships.
type (
	MsgID    = batch.MsgID
	Position = batch.Position
	Epoch    = batch.Epoch
)

// MaxMsgID is the largest id that a partition can give out.
const MaxMsgID = batch.MaxMsgID

// Batches and what they hold.
type (
	Header     = batch.Header
	Codec      = batch.Codec
	Flags      = batch.Flags
	BatchIter  = batch.BatchIter
	Record     = batch.Record
	KV         = batch.KV
	RecordIter = batch.RecordIter
	Place      = batch.Place
)

// Constants of the batch layout.
const (
	HeaderBytes    = batch.HeaderBytes
	MaxBatchBytes  = batch.MaxBatchBytes
	BatchVersion   = batch.BatchVersion
	MaxHeaderCount = batch.MaxHeaderCount

	CodecNone = batch.CodecNone

	FlagControl = batch.FlagControl
	FlagHeaders = batch.FlagHeaders
	FlagDefer   = batch.FlagDefer
)

// Errors of decoding a batch, tested with errors.Is.
var (
	ErrInvalid   = batch.ErrInvalid
	ErrUnwritten = batch.ErrUnwritten
)
