package engine

import (
	"bytes"
	"fmt"
	"time"

	"penstock/segment"
)

// putLimits are the limits of one put, from the Options with these names.
type putLimits struct {
	maxMessageBytes int
	maxBatchBytes   int
	maxHeaderBytes  int
	maxDefer        time.Duration
}

// newPutLimits returns the limits of the Options with these names.
func newPutLimits(maxMessageBytes, maxBatchBytes, maxHeaderBytes int, maxDefer time.Duration) putLimits {
	return putLimits{maxMessageBytes, maxBatchBytes, maxHeaderBytes, maxDefer}
}

// measure checks a put against the limits and computes p.bytes.
func (l *putLimits) measure(p *Put) error {
	if p.kind == putSealed {
		return l.measureSealed(p)
	}
	if p.Defer < 0 || p.Defer > l.maxDefer {
		return ErrDeferTooLong
	}
	p.deferMs = uint32((p.Defer + time.Millisecond - 1) / time.Millisecond)
	if len(p.Messages) == 0 {
		return ErrEmptyMessage
	}
	if p.headered = false; p.Headers != nil {
		return l.measureHeaders(p)
	}
	n := 0
	for _, m := range p.Messages {
		if len(m) == 0 {
			return ErrEmptyMessage
		}
		if len(m) > l.maxMessageBytes {
			return ErrMessageTooBig
		}
		n += segment.RecordSize(len(m), p.deferMs)
	}
	if n > l.maxBatchBytes {
		return ErrBatchTooBig
	}
	p.bytes = n
	return nil
}

// measureHeaders is measure for a put with headers.
func (l *putLimits) measureHeaders(p *Put) error {
	if len(p.Headers) != len(p.Messages) {
		return fmt.Errorf("%w: there are %d lists of headers for %d messages", ErrHeaders, len(p.Headers), len(p.Messages))
	}
	p.bytes, p.headerBytes, p.headered = 0, 0, false
	rec := segment.Record{Defer: p.deferMs}
	for i, m := range p.Messages {
		if len(m) == 0 {
			return ErrEmptyMessage
		}
		if len(m) > l.maxMessageBytes {
			return ErrMessageTooBig
		}
		rec.Body, rec.Headers = m, p.Headers[i]
		size := rec.Size()
		if len(rec.Headers) != 0 {
			if err := l.checkHeaders(rec.Headers, p.trusted); err != nil {
				return err
			}
			p.headered = true
			p.headerBytes += uint32(size - segment.RecordSize(len(m), p.deferMs))
		}
		p.bytes += size
	}
	if p.bytes > l.maxBatchBytes {
		return ErrBatchTooBig
	}
	return nil
}

// checkHeaders checks the headers of one message against the limits. With trusted, the engine or another node made
// them, and reserved names and any total size are allowed.
func (l *putLimits) checkHeaders(headers []Header, trusted bool) error {
	if len(headers) > MaxHeaderCount {
		return fmt.Errorf("%w: a message has %d, at most %d", ErrHeaders, len(headers), MaxHeaderCount)
	}
	size := 0
	for i := range headers {
		name := headers[i].Key
		switch {
		case len(name) == 0 || len(name) > MaxHeaderNameBytes:
			return fmt.Errorf("%w: a name has %d bytes, 1 to %d are possible", ErrHeaders, len(name), MaxHeaderNameBytes)
		case !trusted && bytes.HasPrefix(name, []byte(ReservedHeaders)):
			return fmt.Errorf("%w: names that begin with %s, as %q does, are the engine's own",
				ErrHeaders, ReservedHeaders, name)
		}
		size += len(name) + len(headers[i].Value)
	}
	if size > l.maxHeaderBytes && !trusted {
		return fmt.Errorf("%w: a message has %d bytes of names and values, at most %d (MaxHeaderBytes)",
			ErrHeaders, size, l.maxHeaderBytes)
	}
	return nil
}

// measureSealed verifies a whole batch that a producer has sealed: what enters the log must be readable by every
// replica and every consumer for as long as it is kept. It sets the sizes of p.
func (l *putLimits) measureSealed(p *Put) error {
	sealed := p.special.sealed
	if len(sealed) > l.maxBatchBytes {
		return ErrBatchTooBig
	}
	h := &p.special.header
	if err := h.Decode(sealed); err != nil {
		return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: %w", err)
	}
	if h.Control() || h.Flags&segment.FlagDefer != 0 || h.Size() != len(sealed) {
		return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: flags %#x and %d bytes are not a "+
			"batch of messages", uint16(h.Flags), len(sealed))
	}
	body := sealed[segment.HeaderBytes:]
	if err := segment.VerifyBody(h, body); err != nil {
		return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: %w", err)
	}
	records, err := segment.DecompressBody(h, body, nil)
	if err != nil {
		return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: %w", err)
	}
	bodies, headers := 0, false
	var it segment.RecordIter
	it.Reset(h, records)
	for r := it.NextRef(); r != nil; r = it.NextRef() {
		if len(r.Body) == 0 {
			return ErrEmptyMessage
		}
		if len(r.Body) > l.maxMessageBytes {
			return ErrMessageTooBig
		}
		if len(r.Headers) != 0 {
			if err := l.checkHeaders(r.Headers, p.trusted); err != nil {
				return err
			}
			headers = true
		}
		bodies += len(r.Body)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: %w", err)
	}
	if has := h.Flags&segment.FlagHeaders != 0; has != headers {
		return fmt.Errorf("engine: the sealed batch was refused, nothing was stored: its header says that records have "+
			"headers: %v; they have: %v", has, headers)
	}
	p.bytes, p.special.bodies = len(sealed), bodies
	return nil
}
