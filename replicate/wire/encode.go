package wire

import (
	"encoding/binary"

	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

// Encode makes f the frame of m. It leaves Body and Owner as they are: Body must be the bytes of m.Batches, in order,
// for MsgAppend and MsgRange, and empty for any other kind. Encode reuses f.Head, so a frame that is kept allocates
// nothing.
func Encode(f *netproto.Frame, id segment.Identity, m *replicate.Message, runs []Run) {
	f.Type, f.Flags, f.Status, f.Stream, f.Request = Type(m.Kind), 0, netproto.StatusOK, 0, 0
	if CarriesBatches(m.Kind) {
		f.Flags = netproto.FlagSelfChecked
	}
	f.Head = appendHead(f.Head[:0], id, m, runs)
}

// appendHead appends everything of m except the batches' bytes: the head of MsgAppend and MsgRange, and the whole
// payload of any other kind, at most MaxHeadBytes. It writes the fields that the kind uses. runs say where m.Batches
// lie; there are runs if and only if there are batches. The length is a multiple of 8. appendHead allocates nothing if
// dst has room.
//
// It panics if m exceeds a bound of this package: the sender must keep its frames within MaxRunCount and MaxBatchCount.
func appendHead(dst []byte, id segment.Identity, m *replicate.Message, runs []Run) []byte {
	l := layoutOf(m.Kind)
	if marked(m) {
		l = &markedReport
	}
	mustFit(m, l, runs)
	dst = appendCommon(dst, id, m, l, len(runs))
	le := binary.LittleEndian
	for rest := l.fields; rest != 0; rest &= rest - 1 {
		switch rest & -rest {
		case fieldPosition:
			dst = le.AppendUint64(dst, uint64(m.Position))
		case fieldUntil:
			dst = le.AppendUint64(dst, uint64(m.Until))
		case fieldStart:
			dst = le.AppendUint64(dst, uint64(m.Start))
		case fieldCommitted:
			dst = le.AppendUint64(dst, uint64(m.Committed))
		case fieldOffset:
			dst = le.AppendUint64(dst, uint64(m.Offset))
		case fieldFirstID:
			dst = le.AppendUint64(dst, uint64(m.FirstID))
		case fieldNextID:
			dst = le.AppendUint64(dst, uint64(m.NextID))
		case fieldGeneration:
			dst = le.AppendUint64(dst, m.Generation)
		case fieldBoot:
			dst = append(dst, m.Boot[:]...)
		case fieldStore:
			dst = append(dst, m.Store[:]...)
		case fieldLog:
			dst = appendState(dst, &m.Log)
		case fieldBatches:
			dst = appendRuns(dst, m.Batches, runs)
		case fieldEpochs:
			dst = replicate.AppendEpochs(dst, m.Epochs)
		}
	}
	return dst
}

func appendCommon(dst []byte, id segment.Identity, m *replicate.Message, l *layout, runCount int) []byte {
	var p [CommonBytes]byte
	le := binary.LittleEndian
	copy(p[offTopic:], id.Topic[:])
	le.PutUint32(p[offPartition:], id.Partition)
	if l.fields&usesCode != 0 {
		p[offCode] = byte(m.Code)
	}
	if l.fields&usesDamaged != 0 && m.Damaged {
		p[offFlags] = flagDamaged
	}
	if l == &markedReport {
		p[offFlags] |= flagMarked
		if m.Shortened {
			p[offFlags] |= flagShortened
		}
	}
	p[offRunCount] = byte(runCount)
	le.PutUint64(p[offEpoch:], uint64(m.Epoch))
	le.PutUint64(p[offRequest:], m.Request)
	return append(dst, p[:]...)
}

func appendState(dst []byte, s *segment.State) []byte {
	var p [stateBytes]byte
	le := binary.LittleEndian
	le.PutUint64(p[offStateNext:], uint64(s.Next))
	le.PutUint64(p[offStateNextID:], uint64(s.NextID))
	le.PutUint64(p[offStateEnd:], uint64(s.End))
	le.PutUint64(p[offStateEpoch:], uint64(s.Epoch))
	le.PutUint64(p[offStateBase:], uint64(s.SegmentBase))
	le.PutUint64(p[offStateCapacity:], uint64(s.SegmentCapacity))
	le.PutUint32(p[offStateLastCRC:], s.LastCRC)
	le.PutUint32(p[offStateSegment:], s.Segment)
	return append(dst, p[:]...)
}

func appendRuns(dst []byte, batches []replicate.Batch, runs []Run) []byte {
	le := binary.LittleEndian
	var first segment.Offset
	if len(batches) > 0 {
		first = batches[0].Offset
	}
	dst = le.AppendUint64(dst, uint64(first))
	for i := range runs {
		r := &runs[i]
		dst = le.AppendUint32(dst, r.Segment)
		dst = le.AppendUint32(dst, uint32(r.Bytes))
		dst = le.AppendUint64(dst, uint64(r.Base))
		dst = le.AppendUint64(dst, uint64(r.Capacity))
	}
	return dst
}
