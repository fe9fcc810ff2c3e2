package seal

import (
	"penstock/batch"
	"penstock/internal/node/clock"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/machine"
	"penstock/segment"
)

// Run is puts that follow each other in an inbox, and the batch that they become. Its users are the committer's
// methods.
type Run struct {
	Puts      inbox.List
	Kind      inbox.Kind // of each put
	N         int        // puts
	Count     uint32
	Bytes     int // of the whole batch, header included
	headers   int // bytes that headers add to the records
	Delayed   int // messages with a delay
	Placement machine.Placement
	Flags     segment.Flags
	Special   *inbox.Special // from the only put of the run; nil for inbox.Messages
	producer  bool           // the batch has a producer, which Special names
}

// Add adds p to the run. It returns false if no put may follow it. The size of a batch that has no messages to encode,
// Sealed or internal, is for the caller to fill in.
func (r *Run) Add(p *inbox.Put) (more bool) {
	r.Puts.Push(p)
	r.N++
	if r.Kind = p.Kind; r.Kind != inbox.Messages {
		r.Special, r.producer = p.Special, OfProducer(p)
	}
	if r.Kind == inbox.Sealed || r.Kind.Internal() {
		return false
	}
	r.Count += uint32(len(p.Messages))
	r.Bytes += p.Bytes
	if p.DeferMs != 0 {
		r.Flags |= segment.FlagDefer
		r.Delayed += len(p.Messages)
	}
	if p.Headered {
		r.Flags |= segment.FlagHeaders
		r.headers += int(p.HeaderBytes)
	}
	return r.Kind != inbox.Numbered
}

// BodyBytes estimates the size of all message bodies of the run.
func (r *Run) BodyBytes() uint64 {
	switch r.Kind {
	case inbox.Messages, inbox.Numbered:
	case inbox.Sealed:
		return uint64(r.Special.Bodies)
	default:
		return 0
	}
	return uint64(r.Bytes - segment.HeaderBytes - r.headers - int(r.Count)*batch.RecordSize(0, 0))
}

// Encode writes the batch into dst, which has room for exactly that, and sets each put's First to the id of its first
// message. controls is the body of a control batch. nowNs is the engine's time, and appendedNs the append time of the
// batch. Encode returns the header's checksum, and deferred with the messages that have a delay.
func (r *Run) Encode(
	partition uint32, dst, controls []byte, nowNs, appendedNs int64, deferred []fold.DeferredMessage,
) (crc uint32, _ []fold.DeferredMessage) {
	switch r.Kind {
	case inbox.Messages, inbox.Numbered:
		deferred = r.encodeRecords(partition, dst, nowNs, deferred)
	case inbox.Controls:
		copy(dst[segment.HeaderBytes:], controls)
	case inbox.Sealed:
		at := &r.Placement
		copy(dst, r.Special.Sealed)
		r.Puts.First().First = batch.MakeID(partition, at.FirstID)
		return batch.Stamp(dst, at.Position, at.FirstID, at.Epoch, appendedNs, at.PrevCRC), deferred
	}
	return r.stamp(dst, nowNs, appendedNs), deferred
}

// stamp writes the header of a batch whose body is already in dst, and returns the header's checksum.
func (r *Run) stamp(dst []byte, nowNs, appendedNs int64) uint32 {
	at, body := &r.Placement, dst[segment.HeaderBytes:]
	h := segment.Header{Flags: r.Flags, Count: r.Count, Created: nowNs}
	if r.producer {
		own := &r.Special.Header
		h.ProducerID, h.ProducerEpoch, h.BaseSequence = own.ProducerID, own.ProducerEpoch, own.BaseSequence
	}
	h.BodyBytes, h.BodyCRC = uint32(len(body)), batch.Checksum(body)
	if r.producer {
		r.Special.Header.BodyCRC = h.BodyCRC
	}
	h.Position, h.FirstID, h.Epoch, h.Appended, h.PrevCRC = at.Position, at.FirstID, at.Epoch, appendedNs, at.PrevCRC
	h.Encode(dst)
	return h.CRC
}

// encodeRecords writes the messages of a run into dst, and sets each put's First to the id of its first message. It
// adds those with a delay to deferred.
func (r *Run) encodeRecords(
	partition uint32, dst []byte, nowNs int64, deferred []fold.DeferredMessage,
) []fold.DeferredMessage {
	out := dst[segment.HeaderBytes:segment.HeaderBytes]
	id := r.Placement.FirstID
	nowMs := clock.CeilMs(nowNs) // rounded up: nothing is due early
	var rec segment.Record
	for p := r.Puts.First(); p != nil; p = r.Puts.After(p) {
		p.First = batch.MakeID(partition, id)
		rec.Defer = p.DeferMs
		for i, m := range p.Messages {
			rec.Body = m
			if p.Headered {
				rec.Headers = p.Headers[i]
			}
			out = batch.AppendRecord(out, &rec)
			if p.DeferMs != 0 {
				due := nowMs + int64(p.DeferMs)
				deferred = append(deferred, fold.DeferredMessage{
					ID: id + segment.MsgID(i), DueMs: due, At: r.Placement.Offset,
				})
			}
		}
		rec.Headers = nil
		id += segment.MsgID(len(p.Messages))
	}
	if len(out)+segment.HeaderBytes != len(dst) {
		panic("BUG: the records of a batch do not fill what was reserved for them")
	}
	return deferred
}

// OfProducer says whether p becomes a batch of a producer.
func OfProducer(p *inbox.Put) bool {
	return p.Kind == inbox.Numbered || p.Kind == inbox.Sealed && p.Special.Header.ProducerID != 0
}

// SumOf returns the checksum that the body of the batch of p would have. Only what seems to be a repetition is encoded
// for that.
func SumOf(p *inbox.Put) uint32 {
	var body []byte
	rec := segment.Record{Defer: p.DeferMs}
	for i, m := range p.Messages {
		rec.Body = m
		if p.Headered {
			rec.Headers = p.Headers[i]
		}
		body = batch.AppendRecord(body, &rec)
	}
	return batch.Checksum(body)
}
