package engine

import (
	"errors"
	"fmt"

	"penstock/engine/core"
	"penstock/replicate"
	"penstock/segment"
)

// Copy is what a node holds of a partition, for tests that compare nodes.
type Copy struct {
	Start, End segment.Offset
	Next       segment.Position
	NextID     segment.MsgID
	Committed  segment.Position
	Visible    segment.MsgID
	Bytes      []byte // all batches from Start to End
	Epochs     []replicate.EpochStart
	Cursors    []byte // the state of the channels
	Segments   int
	Serves     bool
}

// CopyOf returns what e holds of a partition; an error says that it holds no copy, or that it does not read back.
func CopyOf(e *Engine, topic string, n int) (c Copy, err error) {
	t, ok := e.LookupTopic(topic)
	if !ok {
		return c, ErrNoTopic
	}
	pt := t.partitions()[n]
	if pt.log == nil {
		return c, ErrNoLeader
	}
	pt.rep.mu.Lock()
	st := pt.machine.State()
	c.Next, c.NextID, c.End = st.Next, st.NextID, st.End
	c.Committed, c.Visible, c.Serves = pt.rep.committed(), segment.MsgID(pt.visible.Load()), pt.rep.serves.Load()
	c.Epochs = append(c.Epochs, pt.epochs.Entries()...)
	c.Cursors = pt.fold.Append(nil)
	pt.rep.mu.Unlock()
	c.Start, _, _ = pt.log.Start()
	c.Segments = len(pt.log.Segments())
	for at := c.Start; at < c.End; {
		var v segment.View
		if err := pt.log.View(&v, at, 1<<20); err != nil {
			return c, fmt.Errorf("at %d of [%d, %d): %w", at, c.Start, c.End, err)
		}
		b := v.Bytes()
		c.Bytes = append(c.Bytes, b...)
		at += segment.Offset(len(b))
		v.Release()
		if len(b) == 0 {
			return c, errors.New("an empty view")
		}
	}
	c.Bytes = c.Bytes[:c.End-c.Start]
	return c, nil
}

// Messages are the bodies that are stored in the copy, by id, whether or not they are committed.
func (c *Copy) Messages(partition int) (map[ID]string, error) {
	all := map[ID]string{}
	var it segment.BatchIter
	it.Reset(c.Bytes)
	for h, body, ok := it.Next(); ok; h, body, ok = it.Next() {
		if h.Control() {
			continue
		}
		var records segment.RecordIter
		records.Reset(h, body)
		id := h.FirstID
		for r, ok := records.Next(); ok; r, ok = records.Next() {
			all[core.MakeID(uint32(partition), id)] = string(r.Body)
			id++
		}
		if err := records.Err(); err != nil {
			return nil, err
		}
	}
	return all, it.Err()
}

// TopicDir is where a topic's files lie in a data directory.
func TopicDir(e *Engine, topic string) string {
	t, _ := e.LookupTopic(topic)
	return topicDir(t.uuid)
}

// Present says whether a node's copy of a partition takes part.
func Present(e *Engine, topic string, n int) bool {
	t, ok := e.LookupTopic(topic)
	return ok && t.partitions()[n].rep.present()
}
