package world

import "penstock/segment"

// runBytes is how many bytes of a log are read at once.
const runBytes = 1 << 20

// readLog calls visit with the offset, header and body of each batch of a copy on n, in order, until visit returns
// false. The header and body are valid until visit returns. readLog begins at offset from, or at the start of the log
// if that is later. It does nothing if n has no copy.
func (n *host) readLog(
	id segment.Identity, from segment.Offset, visit func(at segment.Offset, h *segment.Header, body []byte) bool,
) error {
	log := n.inside.Log(id)
	if log == nil {
		return nil
	}
	at, _, _ := log.Start()
	at = max(at, from)
	end, _, _ := log.End()
	for at < end {
		var v segment.View
		if err := log.View(&v, at, runBytes); err != nil {
			return err
		}
		var it segment.BatchIter
		it.Reset(v.Bytes())
		for h, body, ok := it.Next(); ok; h, body, ok = it.Next() {
			if !visit(at, h, body) {
				v.Release()
				return nil
			}
			at += segment.Offset(h.Size())
		}
		v.Release()
		if err := it.Err(); err != nil {
			return err
		}
	}
	return nil
}

// readLogOnward is readLog from the start of the log, and goes on behind what does not read back: a member that lost
// what the others' logs do not have any more, because retention took it, counts as whole without it.
func (n *host) readLogOnward(
	id segment.Identity, visit func(at segment.Offset, h *segment.Header, body []byte) bool,
) error {
	var reached segment.Offset
	for {
		err := n.readLog(id, reached, func(at segment.Offset, h *segment.Header, body []byte) bool {
			reached = at + segment.Offset(h.Size())
			return visit(at, h, body)
		})
		if err == nil {
			return nil
		}
		next, ok := n.readableBehind(id, reached)
		if !ok {
			return err
		}
		reached = next
	}
}

// readableBehind returns the offset of the first batch behind an offset that reads back; false: there is none.
func (n *host) readableBehind(id segment.Identity, at segment.Offset) (segment.Offset, bool) {
	log := n.inside.Log(id)
	_, pos, _ := log.Start()
	_, end, _ := log.End()
	for ; pos < end; pos++ {
		next, err := log.SeekPosition(pos)
		if err != nil || next <= at {
			continue
		}
		var v segment.View
		if err := log.View(&v, next, runBytes); err == nil {
			v.Release()
			return next, true
		}
	}
	return 0, false
}
