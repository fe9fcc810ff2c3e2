package engine

import (
	"fmt"

	"penstock/segment"
)

// measureSealed verifies a whole batch that a producer has sealed: what enters the log must be readable by every
// replica and every consumer for as long as it is kept. It sets the sizes of p.
func (e *Engine) measureSealed(p *Put) error {
	sealed := p.special.sealed
	if len(sealed) > e.opts.MaxBatchBytes {
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
		if len(r.Body) > e.opts.MaxMessageBytes {
			return ErrMessageTooBig
		}
		if len(r.Headers) != 0 {
			if err := e.checkHeaders(r.Headers, p.trusted); err != nil {
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
