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

// Limits are the limits of one put. Copies of a Limits share them, and what Change changes.
type Limits struct {
	now       *atomic.Pointer[Sizes]
	Inflation *Inflation
}

// Sizes are these limits, from the Options of the same names. Those of compressed batches have defaults.
type Sizes struct {
	MaxMessageBytes, MaxBatchBytes, MaxHeaderBytes int
	MaxDefer                                       time.Duration

	MaxInflationRatio int
	MaxInflatedBytes  int64
	AdmitTimeout      time.Duration // longest wait of a compressed batch; 0 or less: none
}

// NewLimits returns the limits.
func NewLimits(sizes Sizes) Limits {
	l := Limits{now: new(atomic.Pointer[Sizes]), Inflation: &Inflation{budget: shares.New(&shares.InflatedBytes, 0, 0)}}
	l.Change(sizes)
	return l
}

// Change takes new sizes for the puts from now on. What compressed batches have of the budget stays theirs. Any
// goroutine may call it.
func (l *Limits) Change(sizes Sizes) {
	sizes.MaxInflationRatio = cmp.Or(sizes.MaxInflationRatio, batch.MaxInflationRatio)
	sizes.MaxInflatedBytes = cmp.Or(sizes.MaxInflatedBytes, DefaultMaxInflatedBytes)
	l.Inflation.budget.Change(&shares.InflatedBytes, sizes.MaxInflatedBytes, int64(sizes.MaxBatchBytes))
	l.now.Store(&sizes)
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
	n, now := 0, l.now.Load()
	for _, m := range p.Messages {
		if len(m) == 0 {
			return errs.ErrEmptyMessage
		}
		if len(m) > now.MaxMessageBytes {
			return messageTooBig(len(m), now.MaxMessageBytes)
		}
		n += batch.RecordSize(len(m), p.DeferMs)
	}
	if n > now.MaxBatchBytes {
		return now.batchTooBig(n)
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
	rec, now := segment.Record{Defer: p.DeferMs}, l.now.Load()
	for i, m := range p.Messages {
		if len(m) == 0 {
			return errs.ErrEmptyMessage
		}
		if len(m) > now.MaxMessageBytes {
			return messageTooBig(len(m), now.MaxMessageBytes)
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
	if p.Bytes > now.MaxBatchBytes {
		return now.batchTooBig(p.Bytes)
	}
	return nil
}

func messageTooBig(bytes, most int) error {
	return &errs.LimitError{
		Err: errs.ErrMessageTooBig, What: "the size of a message in bytes", Value: bytes, Most: most,
		Setting: "max-message-bytes",
	}
}

func (s *Sizes) batchTooBig(bytes int) error {
	return &errs.LimitError{
		Err: errs.ErrBatchTooBig, What: "the size of the batch in bytes", Value: bytes, Most: s.MaxBatchBytes,
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
	if now := l.now.Load(); len(sealed) > now.MaxBatchBytes {
		return now.batchTooBig(len(sealed))
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
