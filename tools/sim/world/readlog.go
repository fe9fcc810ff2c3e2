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
