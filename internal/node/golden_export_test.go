package node

import (
	"errors"

	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// ControlKinds adds the kinds of control entries that are in e's logs of a topic to kinds.
func ControlKinds(e *Engine, topic string, kinds map[fold.ControlKind]bool) error {
	t, ok := e.Catalog().LookupTopic(topic)
	if !ok {
		return errs.ErrNoTopic
	}
	for _, pt := range t.PartitionList() {
		at, _, _ := pt.Log().Start()
		end, _, _ := pt.Log().End()
		for at < end {
			var v segment.View
			err := pt.Log().View(&v, at, 1<<20)
			if start, _, _ := pt.Log().Start(); errors.Is(err, segment.ErrBelowStart) && start > at {
				at = start // retention has removed the segment meanwhile
				continue
			}
			if err != nil {
				return err
			}
			var it segment.BatchIter
			it.Reset(v.Bytes())
			size := 0
			for h, body, ok := it.Next(); ok; h, body, ok = it.Next() {
				size += h.Size()
				if !h.Control() {
					continue
				}
				err := fold.DecodeControls(body, func(c *fold.Control) error { kinds[c.Kind] = true; return nil })
				if err != nil {
					return err
				}
			}
			v.Release()
			if at += segment.Offset(size); size == 0 {
				return it.Err()
			}
		}
	}
	return nil
}
