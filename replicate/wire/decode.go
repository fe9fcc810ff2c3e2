package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment"
)

// ErrInvalid says that a frame is not a message of replication, or that batches in it do not verify. The receiver must
// use nothing of it. The sender repeats batches that are not acknowledged. A sender that produces such frames is
// broken, so end the connection.
var ErrInvalid = errors.New(
	"wire: the frame is not a message of replication; nothing of it was used, and what it carried will be sent again")

// Decoder turns frames into messages, one after the other. It allocates nothing once its buffers have grown, to at most
// MaxBatchCount batches and replicate.MaxEpochCount epochs. It is not safe for concurrent use. The zero value is ready.
type Decoder struct {
	ID      segment.Identity  // the partition that the message is about
	Message replicate.Message // the Decoder owns Batches and Epochs; valid until the next Decode
	Runs    []Run             // the segments that Message.Batches lie in; valid until the next Decode
	Body    []byte            // the batches' bytes, back to back: a part of the payload, borrowed

	batches []replicate.Batch
	epochs  []replicate.EpochStart
	runs    []Run
}

// Decode reads the message in a frame and verifies everything that can be verified without knowing the log: of each
// batch the checksums of header and body, and that the batch lies in the segment of its run. payload is borrowed for as
// long as Body is used. The error is ErrInvalid; after an error the decoder holds nothing.
func (d *Decoder) Decode(h *netproto.Header, payload []byte) error {
	err := d.decode(h, payload)
	if err != nil {
		d.reset()
	}
	return err
}

// Batch returns the bytes of Message.Batches[i], header included, as a part of Body.
func (d *Decoder) Batch(i int) []byte {
	b := &d.batches[i]
	from := int(b.Offset - d.batches[0].Offset)
	return d.Body[from : from+b.Bytes : from+b.Bytes]
}

func (d *Decoder) reset() {
	d.ID, d.Message, d.Runs, d.Body = segment.Identity{}, replicate.Message{}, nil, nil
	d.batches, d.epochs, d.runs = d.batches[:0], d.epochs[:0], d.runs[:0]
}

func (d *Decoder) decode(h *netproto.Header, payload []byte) error {
	d.reset()
	kind, ok := Kind(h.Type)
	if !ok {
		return invalid("a %v", h.Type)
	}
	l := layoutOf(kind)
	if kind == replicate.MsgReport && len(payload) >= CommonBytes && payload[offFlags]&flagMarked != 0 {
		l = &markedReport
	}
	switch {
	case h.Status != netproto.StatusOK || h.Stream != 0 || h.Request != 0:
		return invalid("a %v with status %v, stream %d, request %d", h.Type, h.Status, h.Stream, h.Request)
	case int(h.PayloadBytes) != len(payload):
		return invalid("a %v of %d bytes, its header says %d", h.Type, len(payload), h.PayloadBytes)
	case h.CheckedBytes() > len(payload) || h.CheckedBytes() < l.bytes:
		return invalid("a %v with a head of %d bytes", h.Type, h.CheckedBytes())
	case (h.Flags&netproto.FlagSelfChecked != 0) != (l.fields&fieldBatches != 0):
		return invalid("a %v with flags %#x", h.Type, h.Flags)
	}
	head := payload[:h.CheckedBytes():h.CheckedBytes()]
	d.Message.Kind = kind
	if err := d.common(head, l); err != nil {
		return err
	}
	runCount := int(head[offRunCount])
	rest, err := d.fields(head[CommonBytes:], l, runCount)
	if err != nil {
		return err
	}
	if l == &markedReport && !marked(&d.Message) {
		return invalid("a marked %v that says nothing", h.Type)
	}
	if len(rest) > 0 {
		return invalid("%d bytes behind the head of a %v", len(rest), h.Type)
	}
	if l.fields&fieldBatches == 0 {
		return nil
	}
	d.Body = payload[len(head):]
	return d.walk()
}

func (d *Decoder) common(p []byte, l *layout) error {
	le := binary.LittleEndian
	m := &d.Message
	d.ID = segment.Identity{Topic: uuid.UUID(p[offTopic : offTopic+16]), Partition: le.Uint32(p[offPartition:])}
	m.Code = replicate.RejectCode(p[offCode])
	flags, known := p[offFlags], byte(flagDamaged)
	if l == &markedReport {
		known |= flagMarked | flagShortened
	}
	m.Damaged, m.Shortened = flags&flagDamaged != 0, flags&known&flagShortened != 0
	m.Epoch = segment.Epoch(le.Uint64(p[offEpoch:]))
	m.Request = le.Uint64(p[offRequest:])
	switch {
	case d.ID.Topic == uuid.Nil:
		return invalid("a %v of no topic", l.typ)
	case (m.Code != 0) != (l.fields&usesCode != 0) || m.Code > replicate.RejectAbsent:
		return invalid("a %v with code %d", l.typ, m.Code)
	case flags&^known != 0 || m.Damaged && l.fields&usesDamaged == 0:
		return invalid("a %v with flags %#x in its head", l.typ, flags)
	case p[offRunCount] > MaxRunCount || p[offRunCount] > 0 && l.fields&fieldBatches == 0:
		return invalid("a %v with %d runs", l.typ, p[offRunCount])
	case p[offReserved] != 0:
		return invalid("a %v whose reserved byte is not zero", l.typ)
	}
	return nil
}

// fields reads the fields that follow the common part. p is at least as long as the layout without runs and epochs.
func (d *Decoder) fields(p []byte, l *layout, runCount int) (rest []byte, err error) {
	le := binary.LittleEndian
	m := &d.Message
	for f := l.fields; f != 0 && err == nil; f &= f - 1 {
		switch f & -f {
		case fieldPosition:
			m.Position, p = segment.Position(le.Uint64(p)), p[8:]
		case fieldUntil:
			m.Until, p = segment.Position(le.Uint64(p)), p[8:]
		case fieldStart:
			m.Start, p = segment.Position(le.Uint64(p)), p[8:]
		case fieldCommitted:
			m.Committed, p = segment.Position(le.Uint64(p)), p[8:]
		case fieldOffset:
			m.Offset, p, err = offset(p)
		case fieldFirstID:
			m.FirstID, p, err = msgID(p)
		case fieldNextID:
			m.NextID, p, err = msgID(p)
		case fieldGeneration:
			m.Generation, p = le.Uint64(p), p[8:]
		case fieldBoot:
			m.Boot, p = uuid.UUID(p[:16]), p[16:]
		case fieldStore:
			m.Store, p = uuid.UUID(p[:16]), p[16:]
		case fieldLog:
			m.Log, p, err = state(p)
		case fieldBatches:
			p, err = d.readRuns(p, runCount)
		case fieldEpochs:
			d.epochs, p, err = replicate.DecodeEpochs(d.epochs, p)
			if err != nil {
				err = invalid("a %v without a valid leader-epoch table", l.typ)
			}
			m.Epochs = d.epochs
		}
	}
	return p, err
}

func offset(p []byte) (segment.Offset, []byte, error) {
	off := segment.Offset(binary.LittleEndian.Uint64(p))
	if off < 0 {
		return 0, nil, invalid("offset %d", off)
	}
	return off, p[8:], nil
}

func msgID(p []byte) (segment.MsgID, []byte, error) {
	id := segment.MsgID(binary.LittleEndian.Uint64(p))
	if id > segment.MaxMsgID+1 { // the id behind the last one
		return 0, nil, invalid("message id %d", id)
	}
	return id, p[8:], nil
}

func state(p []byte) (segment.State, []byte, error) {
	le := binary.LittleEndian
	s := segment.State{
		Next: segment.Position(le.Uint64(p[offStateNext:])), NextID: segment.MsgID(le.Uint64(p[offStateNextID:])),
		End: segment.Offset(le.Uint64(p[offStateEnd:])), Epoch: segment.Epoch(le.Uint64(p[offStateEpoch:])),
		SegmentBase: segment.Offset(le.Uint64(p[offStateBase:])), SegmentCapacity: int64(le.Uint64(p[offStateCapacity:])),
		LastCRC: le.Uint32(p[offStateLastCRC:]), Segment: le.Uint32(p[offStateSegment:]),
	}
	switch {
	case s.NextID > segment.MaxMsgID+1:
		return s, nil, invalid("a log whose next id is %d", s.NextID)
	case s.SegmentBase < 0 || s.End < s.SegmentBase || s.SegmentCapacity < 0:
		return s, nil, invalid("a log that ends at %d, in a segment of %d bytes from %d on",
			s.End, s.SegmentCapacity, s.SegmentBase)
	case s.SegmentCapacity > 0 && int64(s.End-s.SegmentBase) > s.SegmentCapacity:
		return s, nil, invalid("a log that ends at %d, behind its segment of %d bytes from %d on",
			s.End, s.SegmentCapacity, s.SegmentBase)
	}
	return s, p[stateBytes:], nil
}

// readRuns reads the runs, and before them the offset of the first batch, which it keeps in Message.Offset for walk.
func (d *Decoder) readRuns(p []byte, count int) (rest []byte, err error) {
	if d.Message.Offset, p, err = offset(p); err != nil {
		return nil, err
	}
	if len(p) != count*runBytes {
		return nil, invalid("%d bytes for %d runs", len(p), count)
	}
	le := binary.LittleEndian
	for range count {
		d.runs = append(d.runs, Run{
			Segment: le.Uint32(p[offRunSegment:]), Base: segment.Offset(le.Uint64(p[offRunBase:])),
			Capacity: int64(le.Uint64(p[offRunCapacity:])), Bytes: int(le.Uint32(p[offRunBytes:])),
		})
		p = p[runBytes:]
	}
	d.Runs = d.runs
	return p, nil
}

// walk verifies the batches in Body and fills in Message.Batches.
func (d *Decoder) walk() error {
	m := &d.Message
	at, body := m.Offset, d.Body
	m.Offset = 0 // messages with batches have no Offset
	if at > math.MaxInt64-segment.Offset(len(body)) || at != 0 && len(d.runs) == 0 {
		return invalid("%d bytes of batches at offset %d", len(body), at)
	}
	var h segment.Header
	for i := range d.runs {
		r := &d.runs[i]
		if err := d.checkRun(i, at); err != nil {
			return err
		}
		if r.Bytes == 0 || r.Bytes > len(body) {
			return invalid("a run of %d bytes where %d are left", r.Bytes, len(body))
		}
		for run := body[:r.Bytes]; len(run) > 0; {
			if err := h.Decode(run); err != nil {
				return invalid("batch %d: %w", len(d.batches), err)
			}
			size := h.Size()
			switch {
			case size > len(run):
				return invalid("batch %d ends behind its run", len(d.batches))
			case len(d.batches) == MaxBatchCount:
				return invalid("more than %d batches", MaxBatchCount)
			}
			if err := batch.VerifyBody(&h, run[segment.HeaderBytes:size]); err != nil {
				return invalid("batch %d: %w", len(d.batches), err)
			}
			d.batches = append(d.batches, replicate.Batch{
				Position: h.Position, FirstID: h.FirstID, Offset: at, Epoch: h.Epoch,
				Bytes: size, Count: h.Count, PrevCRC: h.PrevCRC, CRC: h.CRC,
			})
			run = run[size:]
			at += segment.Offset(size)
		}
		body = body[r.Bytes:]
	}
	if len(body) > 0 {
		return invalid("%d bytes behind the last run", len(body))
	}
	m.Batches = d.batches
	return nil
}

// checkRun checks that run i, whose batches begin at offset at, lies in its segment, and that this segment follows the
// previous run's.
func (d *Decoder) checkRun(i int, at segment.Offset) error {
	r := &d.runs[i]
	inside := int64(at - r.Base)
	if r.Base < 0 || inside < 0 || inside > r.Capacity || int64(r.Bytes) > r.Capacity-inside {
		return invalid("%d bytes at offset %d in segment %d, which has room for %d from %d on",
			r.Bytes, at, r.Segment, r.Capacity, r.Base)
	}
	if i > 0 && (r.Base != at || uint64(r.Segment) != uint64(d.runs[i-1].Segment)+1) {
		return invalid("segment %d from %d on follows segment %d, which ends at %d",
			r.Segment, r.Base, d.runs[i-1].Segment, at)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
