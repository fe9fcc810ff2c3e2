package channel

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"penstock/internal/node/delivery"
	"penstock/internal/node/message"
	"penstock/replicate/wire"
)

// pending returns messages in flight to this node's consumers: at least the op.Count oldest ones, in no particular
// order. It takes mu.
func (c *Channel) pending(op wire.Operation) (all []wire.PendingMessage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, c.closed
	}
	labels := map[delivery.ClientID]string{}
	for id, k := range c.consumers {
		labels[id] = LabelText(k.label)
	}
	list := oldest[wire.PendingMessage]{
		limit: ListCount(op.Count),
		key:   func(m *wire.PendingMessage) int64 { return m.Since.UnixMilli() },
	}
	c.m.EachInFlight(func(m delivery.InFlightMessage) {
		if op.About(m.ID.Partition()) {
			list.add(wire.PendingMessage{
				ID: m.ID, Since: time.UnixMilli(m.SinceMs), Due: time.UnixMilli(m.DueMs),
				Attempts: m.Attempts, Client: labels[m.Client],
			})
		}
	})
	return list.items, nil
}

// deferredMessages returns deferred messages of this node's partitions: at least the op.Count that are due first, in no
// particular order. It takes mu.
func (c *Channel) deferredMessages(op wire.Operation) (all []wire.PendingMessage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil, c.closed
	}
	c.applyPostsLocked()
	list := oldest[wire.PendingMessage]{
		limit: ListCount(op.Count),
		key:   func(m *wire.PendingMessage) int64 { return m.Due.UnixMilli() },
	}
	c.m.EachWaiting(func(m delivery.WaitingMessage) {
		if op.About(m.ID.Partition()) {
			list.add(wire.PendingMessage{ID: m.ID, Due: time.UnixMilli(m.DueMs), Attempts: m.Attempts})
		}
	})
	return list.items, nil
}

// LabelText returns a consumer's label as text; "" if it has none.
func LabelText(label any) string {
	switch l := label.(type) {
	case string:
		return l
	case fmt.Stringer:
		return l.String()
	}
	return ""
}

// oldest collects items; items contains at least the limit ones with the lowest keys. It never holds more than twice
// limit items, so that a list of a million stays cheap.
type oldest[T any] struct {
	limit int
	key   func(*T) int64
	items []T
	bound int64 // valid if full: items with a larger key are not wanted
	full  bool  // limit items were collected at least once
}

func (l *oldest[T]) add(item T) {
	if l.full && l.key(&item) > l.bound {
		return
	}
	if l.items = append(l.items, item); len(l.items) >= 2*l.limit {
		slices.SortStableFunc(l.items, func(a, b T) int { return cmp.Compare(l.key(&a), l.key(&b)) })
		l.items = l.items[:l.limit]
		l.bound, l.full = l.key(&l.items[l.limit-1]), true
	}
}

// Find returns a message that a consumer has in flight, or that waits to be delivered again; false: it is unread or
// confirmed. Since is zero unless it is in flight. Find takes mu.
func (c *Channel) Find(id message.ID) (m wire.PendingMessage, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return m, false
	}
	d, ok := c.m.Find(id)
	if !ok {
		return m, false
	}
	m = wire.PendingMessage{ID: id, Attempts: d.Attempts}
	if d.InFlight {
		m.Since, m.Due = time.UnixMilli(d.SinceMs), time.UnixMilli(d.DueMs)
		if k := c.consumers[d.Client]; k != nil {
			m.Client = LabelText(k.label)
		}
	}
	return m, true
}
