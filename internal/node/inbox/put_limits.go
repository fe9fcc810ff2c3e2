package inbox

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"penstock/batch"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/shares"
	"penstock/segment"
)

// Limits are the limits of one put, from the Options of the same names. Copies of a Limits share what Change changes.
type Limits struct {
	now           *atomic.Pointer[Sizes]
	maxBatchBytes int

	Inflation *Inflation
}

// Sizes are those limits of one put that may change while the node runs.
type Sizes struct {
	MaxMessageBytes, MaxHeaderBytes int
	MaxDefer                        time.Duration
}

// NewLimits returns the limits.
func NewLimits(maxBatchBytes int, sizes Sizes) Limits {
	l := Limits{now: new(atomic.Pointer[Sizes]), maxBatchBytes: maxBatchBytes}
	l.Change(sizes)
	l.Inflate(0, 0, 0)
	return l
}

// Change takes new sizes for the puts from now on. Any goroutine may call it.
func (l *Limits) Change(sizes Sizes) { l.now.Store(&sizes) }

// Inflate sets the limits of compressed batches from the Options MaxInflationRatio, MaxInflatedBytes and AdmitTimeout.
// 0 is a default. It is called before any put is measured.
func (l *Limits) Inflate(ratio int, maxBytes int64, patience time.Duration) {
	maxBytes = cmp.Or(maxBytes, DefaultMaxInflatedBytes)
	l.Inflation = &Inflation{
		ratio: cmp.Or(ratio, batch.MaxInflationRatio), most: maxBytes, patience: patience,
		budget: shares.New(&shares.InflatedBytes, maxBytes, int64(l.maxBatchBytes)),
	}
}

// DefaultMaxInflatedBytes is the default of Options.MaxInflatedBytes.
const DefaultMaxInflatedBytes = 64 << 20

// Measure checks a put against the limits and computes p.Bytes.
func (l *Limits) Measure(p *Put) error {
	if p.Kind == Sealed {
		return l.measureSealed(p)
	}
	if most := l.now.Load().MaxDefer; p.Defer < 0 || p.Defer > most {
		return &errs.LimitError{
			Err: errs.ErrDeferTooLong, What: "the delay", Value: p.Defer, Most: most, Setting: "max-defer",
		}
	}
	p.DeferMs = uint32((p.Defer + time.Millisecond - 1) / time.Millisecond)
	if len(p.Messages) == 0 {
		return errs.ErrEmptyMessage
	}
	if p.Headered = false; p.Headers != nil {
		return l.measureHeaders(p)
	}
	n, most := 0, l.now.Load().MaxMessageBytes
	for _, m := range p.Messages {
		if len(m) == 0 {
			return errs.ErrEmptyMessage
		}
		if len(m) > most {
			return messageTooBig(len(m), most)
		}
		n += batch.RecordSize(len(m), p.DeferMs)
	}
	if n > l.maxBatchBytes {
		return l.batchTooBig(n)
	}
	p.Bytes = n
	return nil
}

// measureHeaders is Measure for a put with headers.
func (l *Limits) measureHeaders(p *Put) error {
	if len(p.Headers) != len(p.Messages) {
		return fmt.Errorf("%w: there are %d lists of headers for %d messages",
			errs.ErrHeaders, len(p.Headers), len(p.Messages))
	}
	p.Bytes, p.HeaderBytes, p.Headered = 0, 0, false
	rec, most := segment.Record{Defer: p.DeferMs}, l.now.Load().MaxMessageBytes
	for i, m := range p.Messages {
		if len(m) == 0 {
			return errs.ErrEmptyMessage
		}
		if len(m) > most {
			return messageTooBig(len(m), most)
		}
		rec.Body, rec.Headers = m, p.Headers[i]
		size := rec.Size()
		if len(rec.Headers) != 0 {
			if err := l.CheckHeaders(rec.Headers, p.Trusted); err != nil {
				return err
			}
			p.Headered = true
			p.HeaderBytes += uint32(size - batch.RecordSize(len(m), p.DeferMs))
		}
		p.Bytes += size
	}
	if p.Bytes > l.maxBatchBytes {
		return l.batchTooBig(p.Bytes)
	}
	return nil
}

func messageTooBig(bytes, most int) error {
	return &errs.LimitError{
		Err: errs.ErrMessageTooBig, What: "the size of a message in bytes", Value: bytes, Most: most,
		Setting: "max-message-bytes",
	}
}

func (l *Limits) batchTooBig(bytes int) error {
	return &errs.LimitError{
		Err: errs.ErrBatchTooBig, What: "the size of the batch in bytes", Value: bytes, Most: l.maxBatchBytes,
		Setting: "max-batch-bytes",
	}
}

// CheckHeaders checks the headers of one message against the limits. With trusted, the engine or another node has made
// the headers, so reserved names and any total size are allowed.
func (l *Limits) CheckHeaders(headers []message.Header, trusted bool) error {
	most := message.MaxHeaderCount
	if trusted {
		most = segment.MaxHeaderCount
	}
	if len(headers) > most {
		return &errs.LimitError{
			Err: errs.ErrHeaders, What: "the number of headers of a message", Value: len(headers), Most: most,
		}
	}
	size := 0
	for i := range headers {
		name := headers[i].Key
		switch {
		case len(name) == 0:
			return fmt.Errorf("%w: a name is empty", errs.ErrHeaders)
		case len(name) > message.MaxHeaderNameBytes:
			return &errs.LimitError{
				Err: errs.ErrHeaders, What: "the size of a header's name in bytes", Value: len(name),
				Most: message.MaxHeaderNameBytes,
			}
		case !trusted && bytes.HasPrefix(name, []byte(message.ReservedHeaders)):
			return fmt.Errorf("%w: names that begin with %s, as %q does, are the engine's own",
				errs.ErrHeaders, message.ReservedHeaders, name)
		}
		size += len(name) + len(headers[i].Value)
	}
	if most := l.now.Load().MaxHeaderBytes; size > most && !trusted {
		return &errs.LimitError{
			Err: errs.ErrHeaderBytes, What: "the size of a message's header names and values in bytes", Value: size,
			Most: most, Setting: "max-header-bytes",
		}
	}
	return nil
}

// measureSealed verifies a whole batch that a producer has sealed, and sets the sizes of p. Whatever enters the log
// must be readable by every replica and every consumer for as long as the log keeps it.
func (l *Limits) measureSealed(p *Put) error {
	sealed := p.Special.Sealed
	if len(sealed) > l.maxBatchBytes {
		return l.batchTooBig(len(sealed))
	}
	h := &p.Special.Header
	if err := h.Decode(sealed); err != nil {
		return refusedBatch(err)
	}
	if h.Control() || h.Flags&segment.FlagDefer != 0 || h.Size() != len(sealed) {
		return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: flags %#x and %d bytes are not a "+
			"batch of messages", uint16(h.Flags), len(sealed))
	}
	body := sealed[segment.HeaderBytes:]
	if err := batch.VerifyBody(h, body); err != nil {
		return refusedBatch(err)
	}
	if h.Codec != batch.CodecNone {
		return l.measureInflated(p, h, body)
	}
	return l.measureRecords(p, h, body)
}

// measureRecords checks the records of a sealed batch, and sets the sizes of p.
func (l *Limits) measureRecords(p *Put, h *segment.Header, records []byte) error {
	bodies, headers, most := 0, false, l.now.Load().MaxMessageBytes
	var it segment.RecordIter
	it.Reset(h, records)
	for r := it.NextRef(); r != nil; r = it.NextRef() {
		if len(r.Body) == 0 {
			return errs.ErrEmptyMessage
		}
		if len(r.Body) > most {
			return messageTooBig(len(r.Body), most)
		}
		if r.Defer != 0 {
			return errors.New("engine: the sealed batch was refused, nothing was stored: a record has a delay, which the " +
				"header's flags do not say")
		}
		if len(r.Headers) != 0 {
			if err := l.CheckHeaders(r.Headers, p.Trusted); err != nil {
				return err
			}
			headers = true
		}
		bodies += len(r.Body)
	}
	if err := it.Err(); err != nil {
		return refusedBatch(err)
	}
	if has := h.Flags&segment.FlagHeaders != 0; has != headers {
		return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: its header says that records have "+
			"headers: %v; they have: %v", has, headers)
	}
	p.Bytes, p.Special.Bodies = len(p.Special.Sealed), bodies
	return nil
}
