package clog

import "penstock/segment/aio"

// chunks gathers the checkpoint of the file at hand and hands it on when it is whole, once: the first whole one is
// where replay begins, those of later files say what replay found out already.
type chunks struct {
	next    uint32 // number of the chunk that must come
	whole   bool   // this file's checkpoint is complete: only other records may come
	handed  bool
	waiting []chunk
}

type chunk struct {
	payload []byte
	buf     *aio.Buf // retained
}

// reset begins another file.
func (c *chunks) reset() {
	c.drop()
	c.next, c.whole = 0, false
}

func (c *chunks) drop() {
	for _, w := range c.waiting {
		w.buf.Release()
	}
	c.waiting = c.waiting[:0]
}

// fits checks that a verified group keeps the order: a file begins with the chunks of one checkpoint, in groups of
// their own, and has no others.
func (c *chunks) fits(h *groupHeader, group []byte) bool {
	next, whole := c.next, c.whole
	ok := h.Records > 0 || whole
	_ = eachRecord(h, group, func(rec *recordHeader, payload []byte) error {
		switch {
		case rec.Type != Checkpoint:
			ok = ok && c.whole
		case whole || rec.Partition != next || len(payload) == 0 && (next > 0 || rec.Flags&flagLast == 0):
			ok = false
		default:
			next++
			whole = rec.Flags&flagLast != 0
		}
		return nil
	})
	return ok
}

// take adds a chunk of a group that fits.
func (c *chunks) take(rec *recordHeader, payload []byte, buf *aio.Buf, r Replayer) error {
	c.next++
	c.whole = rec.Flags&flagLast != 0
	if c.handed {
		return nil
	}
	if len(payload) > 0 {
		buf.Retain()
		c.waiting = append(c.waiting, chunk{payload, buf})
	}
	if !c.whole {
		return nil
	}
	c.handed = true
	for _, w := range c.waiting {
		if err := r.Checkpoint(w.payload); err != nil {
			return err
		}
	}
	c.drop()
	return nil
}
