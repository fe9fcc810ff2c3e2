package wire

import (
	"fmt"
	"strconv"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

const (
	// MaxRunCount bounds the runs of a frame. A sender ends its frame before the batch that would begin one more run;
	// with segments of a MiB and more, a frame never comes near the bound.
	MaxRunCount = 64
	// MaxBatchCount bounds the batches of a frame, and with them the size of a Decoder.
	MaxBatchCount = 4096

	// CommonBytes is the length of the part that begins every head and says whose message it is.
	CommonBytes = 40
	runBytes    = 24
	stateBytes  = 56

	// MaxBatchHeadBytes is the longest head before batches: that of an append with MaxRunCount runs.
	MaxBatchHeadBytes = CommonBytes + 6*8 + MaxRunCount*runBytes
	// MaxHeadBytes is the longest head of all: a report with the largest leader-epoch table.
	MaxHeadBytes = CommonBytes + 4*8 + 2*16 + stateBytes + replicate.MaxEpochTableBytes
)

// Offsets in the common part of a head; FORMAT.md has the table.
const (
	offTopic     = 0
	offPartition = 16
	offCode      = 20
	offFlags     = 21
	offRunCount  = 22
	offReserved  = 23
	offEpoch     = 24
	offRequest   = 32
)

// Offsets in a run.
const (
	offRunSegment  = 0
	offRunBytes    = 4
	offRunBase     = 8
	offRunCapacity = 16
)

// Offsets in an encoded segment.State.
const (
	offStateNext     = 0
	offStateNextID   = 8
	offStateEnd      = 16
	offStateEpoch    = 24
	offStateBase     = 32
	offStateCapacity = 40
	offStateLastCRC  = 48
	offStateSegment  = 52
)

// Flags in the common part of a head.
const (
	flagDamaged   = 1 << 0
	flagMarked    = 1 << 1 // of a Report: it has the fields until and committed, too
	flagShortened = 1 << 2 // only with flagMarked
)

// marked says whether m is written as a marked Report. Senders below feature level 4 leave these fields out of m.
func marked(m *replicate.Message) bool {
	return m.Kind == replicate.MsgReport && (m.Shortened || m.Committed != 0 || m.Until != 0)
}

// Run says where consecutive batches of a frame lie, all in one segment. Together the runs of a frame cover its
// batches, in order. Each run but the first starts at the beginning of a segment.
type Run struct {
	Segment  uint32
	Base     segment.Offset // of the segment's first byte
	Capacity int64          // bytes of batches that the segment has room for
	Bytes    int            // of the run's batches, headers included
}

// field is a part of a head. A message has its fields in the order of these constants.
type field uint16

const (
	fieldPosition field = 1 << iota
	fieldUntil
	fieldStart
	fieldCommitted
	fieldOffset
	fieldFirstID
	fieldNextID
	fieldGeneration
	fieldBoot
	fieldStore
	fieldLog
	fieldBatches // the offset of the first batch, then the runs; the batches follow the head
	fieldEpochs  // a leader-epoch table, which has its own length; always the last field

	fieldCount = 13

	// These fields have no bytes of their own.
	usesDamaged field = 1 << 14
	usesCode    field = 1 << 15
)

var fieldBytes = [fieldCount]int{8, 8, 8, 8, 8, 8, 8, 8, 16, 16, stateBytes, 8, 0}

// layout describes the frame of one kind of message.
type layout struct {
	typ    netproto.Type
	fields field
	bytes  int // length of the head, without runs and epochs
}

const kindCount = int(replicate.MsgRange) + 1

var layouts = func() (all [kindCount]layout) {
	all = [kindCount]layout{
		replicate.MsgProbe: {typ: netproto.TypeProbe},
		replicate.MsgMatch: {typ: netproto.TypeMatch, fields: fieldPosition | fieldBoot | fieldGeneration},
		replicate.MsgReset: {typ: netproto.TypeReset, fields: fieldBoot | fieldGeneration | fieldLog | fieldEpochs},
		replicate.MsgAppend: {
			typ:    netproto.TypePutMessagesOnReplica,
			fields: fieldPosition | fieldUntil | fieldCommitted | fieldFirstID | fieldNextID | fieldBatches,
		},
		replicate.MsgHeartbeat: {typ: netproto.TypeHeartbeat, fields: fieldPosition | fieldCommitted},
		replicate.MsgReport: {
			typ:    netproto.TypeReport,
			fields: fieldStart | fieldBoot | fieldGeneration | fieldStore | fieldLog | fieldEpochs | usesDamaged,
		},
		replicate.MsgAck:    {typ: netproto.TypePutAck, fields: fieldPosition | fieldCommitted | fieldOffset | usesDamaged},
		replicate.MsgGap:    {typ: netproto.TypeGap, fields: fieldPosition | fieldOffset},
		replicate.MsgReject: {typ: netproto.TypeReject, fields: fieldPosition | usesCode},
		replicate.MsgResync: {typ: netproto.TypeResync, fields: fieldPosition},
		replicate.MsgFetch:  {typ: netproto.TypeFetchRange, fields: fieldPosition | fieldUntil},
		replicate.MsgRange:  {typ: netproto.TypeFetchReply, fields: fieldPosition | fieldUntil | fieldStart | fieldBatches},
	}
	for k := range all {
		all[k].bytes = CommonBytes
		for i, n := range fieldBytes {
			if all[k].fields&(1<<i) != 0 {
				all[k].bytes += n
			}
		}
	}
	return all
}()

// markedReport is the layout of a Report with flagMarked.
var markedReport = func() layout {
	l := layouts[replicate.MsgReport]
	l.fields |= fieldUntil | fieldCommitted
	l.bytes += 2 * 8
	return l
}()

// kinds is the inverse of layouts, indexed by frame type; no type of replication is above 31.
var kinds = func() (all [32]replicate.MessageKind) {
	for k := range layouts {
		all[layouts[k].typ] = replicate.MessageKind(k)
	}
	all[0] = 0
	return all
}()

// Type returns the frame type of a kind of message.
func Type(kind replicate.MessageKind) netproto.Type { return layoutOf(kind).typ }

// Kind returns the kind of message that a frame of type t carries, or false if t is no type of replication.
func Kind(t netproto.Type) (replicate.MessageKind, bool) {
	if int(t) >= len(kinds) || kinds[t] == 0 {
		return 0, false
	}
	return kinds[t], true
}

// CarriesBatches says whether batches follow the head; then the frame is self-checked.
func CarriesBatches(kind replicate.MessageKind) bool {
	return layoutOf(kind).fields&fieldBatches != 0
}

func layoutOf(kind replicate.MessageKind) *layout {
	if kind == 0 || int(kind) >= kindCount {
		panic("BUG: wire: message of kind " + strconv.Itoa(int(kind)))
	}
	return &layouts[kind]
}

// mustFit panics if a message cannot be encoded. Messages of the machines are always within these bounds.
func mustFit(m *replicate.Message, l *layout, runs []Run) {
	switch {
	case len(runs) > MaxRunCount:
		panic(fmt.Sprintf("BUG: wire: %d runs in a frame, at most %d are allowed", len(runs), MaxRunCount))
	case len(runs) > 0 && l.fields&fieldBatches == 0:
		panic(fmt.Sprintf("BUG: wire: runs in a %v", l.typ))
	case len(m.Batches) > MaxBatchCount:
		panic(fmt.Sprintf("BUG: wire: %d batches in a frame, at most %d are allowed", len(m.Batches), MaxBatchCount))
	case (len(m.Batches) > 0) != (len(runs) > 0) && l.fields&fieldBatches != 0:
		panic(fmt.Sprintf("BUG: wire: %d batches in %d runs", len(m.Batches), len(runs)))
	case len(m.Epochs) > replicate.MaxEpochCount:
		panic(fmt.Sprintf("BUG: wire: a leader-epoch table of %d entries", len(m.Epochs)))
	}
}
