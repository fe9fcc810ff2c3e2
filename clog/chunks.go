package clog

import "penstock/segment/aio"

// chunks collects the checkpoint of the current file and hands it on, once, when it is complete. Only the first
// complete checkpoint is handed on, because replay begins there; the checkpoints of later files repeat what replay
// already knows.
type chunks struct {
	next    uint32 // number that the next chunk must have
	whole   bool   // this file's checkpoint is complete: only other records may follow
	handed  bool   // a complete checkpoint was handed on
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

// fits checks that a verified group keeps the order within its file: a file begins with the chunks of one checkpoint,
// in groups of their own, and no other chunks follow.
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

// take adds a chunk of a group that fits. It hands the checkpoint to r when this chunk completes it.
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
