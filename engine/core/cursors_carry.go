package core

import (
	"cmp"
	"slices"

	"penstock/segment"
)

// carriedPlace says which control batch carries a message. At is never 0: a log begins with an epoch start.
type carriedPlace struct {
	ID segment.MsgID
	At segment.Offset
}

func (p carriedPlace) id() segment.MsgID { return p.ID }

// CarrySource is a message to carry and where it lies now.
type CarrySource struct {
	ID segment.MsgID
	At segment.Offset // of the batch that holds or carries it; 0: find it by its id
}

// placeOf returns the offset of the control batch that carries the message, or 0.
func (c *Cursors) placeOf(id segment.MsgID) segment.Offset {
	if len(c.carried) == 0 {
		return 0
	}
	if i := searchID(c.carried, id, carriedPlace.id); i < len(c.carried) && c.carried[i].ID == id {
		return c.carried[i].At
	}
	return 0
}

// placeRequeued notes in the channel's list where those of ds lie that are carried.
func (c *Cursors) placeRequeued(ch *Cursor, ds []Deferral) {
	if len(c.carried) == 0 {
		return
	}
	for i := range ds {
		if j := searchID(ch.Requeued, ds[i].ID, Deferral.id); j < len(ch.Requeued) && ch.Requeued[j].ID == ds[i].ID {
			ch.Requeued[j].At = c.placeOf(ds[i].ID)
		}
	}
}

// carry notes that the batch at the offset at holds copies.
func (c *Cursors) carry(ct *Control, end segment.MsgID, at segment.Offset) error {
	if n := len(ct.Carried); n > 0 && ct.Carried[n-1].ID >= end {
		return beyondEnd(ct, ct.Carried[n-1].ID, end)
	}
	if at <= 0 {
		return badControl("a batch carries messages, and where it lies is not known")
	}
	for i := range ct.Carried {
		id := ct.Carried[i].ID
		if !c.wanted(id) {
			continue // confirmed while it was on its way
		}
		if j := searchID(c.carried, id, carriedPlace.id); j < len(c.carried) && c.carried[j].ID == id {
			c.carried[j].At = at
		} else {
			c.carried = slices.Insert(c.carried, j, carriedPlace{id, at})
		}
		if j := searchID(c.Deferred, id, DeferredMessage.id); j < len(c.Deferred) && c.Deferred[j].ID == id {
			c.Deferred[j].At = at
		}
		for _, ch := range c.channels {
			if j := searchID(ch.Requeued, id, Deferral.id); j < len(ch.Requeued) && ch.Requeued[j].ID == id {
				ch.Requeued[j].At = at
			}
		}
	}
	c.carriedKnown = false
	return nil
}

// CarriedFrom returns the lowest offset of a control batch whose copies somebody still wants: its segment
// and everything behind must stay. It is false if there is none.
func (c *Cursors) CarriedFrom() (segment.Offset, bool) {
	if len(c.carried) == 0 {
		return 0, false
	}
	if !c.carriedKnown {
		c.carriedFrom, c.carriedKnown = c.carried[0].At, true
		for _, p := range c.carried {
			c.carriedFrom = min(c.carriedFrom, p.At)
		}
	}
	return c.carriedFrom, true
}

// neededBy returns the lowest message that the channel has not confirmed and that is not carried for it. What
// is below stays so until a reset; so the search goes on where it ended.
func (c *Cursors) neededBy(ch *Cursor) segment.MsgID {
	if len(c.carried) == 0 {
		return ch.Confirmed
	}
	m := max(ch.needed, ch.Confirmed)
	for {
		m = ch.Ranges.NextGap(m)
		// A channel that would read the message by its cursor needs the place where it was published.
		if c.placeOf(m) == 0 || !hasID(ch.Requeued, m, Deferral.id) && !hasID(c.Deferred, m, DeferredMessage.id) {
			break
		}
		m++
	}
	ch.needed = m
	return m
}

func hasID[T any](list []T, m segment.MsgID, id func(T) segment.MsgID) bool {
	i := searchID(list, m, id)
	return i < len(list) && id(list[i]) == m
}

// ToCarry decides what must be carried so that the segments below the offset belowAt, whose messages are below
// the id belowID, may go. It appends at most maxCount messages in the order of their ids, and true; after
// they were carried it is to be asked again, until it appends none. False: something else than deferred
// messages needs these segments (what is not read or in flight, an outbox, an ordered channel), and
// nothing is appended. It looks at every unconfirmed message below belowID.
func (c *Cursors) ToCarry(dst []CarrySource, belowID segment.MsgID, belowAt segment.Offset, maxCount int) ([]CarrySource, bool) {
	from := len(dst)
	channels := c.channels
	if len(channels) == 0 {
		channels = []*Cursor{{Confirmed: c.Unclaimed}}
	}
	for _, ch := range channels {
		var ok bool
		if dst, ok = c.toCarry(ch, dst, belowID, belowAt, maxCount); !ok {
			return dst[:from], false
		}
	}
	slices.SortFunc(dst[from:], func(a, b CarrySource) int { return cmp.Compare(a.ID, b.ID) })
	out := slices.Compact(dst[from:])
	return dst[:from+min(len(out), maxCount)], true
}

// toCarry is ToCarry for one channel. All lists are sorted, so each is walked once.
func (c *Cursors) toCarry(ch *Cursor, dst []CarrySource, belowID segment.MsgID, belowAt segment.Offset, maxCount int) ([]CarrySource, bool) {
	from := len(dst)
	take := func(id segment.MsgID, at segment.Offset) {
		if len(dst)-from < maxCount {
			dst = append(dst, CarrySource{ID: id, At: at})
		}
	}
	requeued, deferred, carried := ch.Requeued, c.Deferred, c.carried
	for m := ch.Ranges.NextGap(ch.Confirmed); m < belowID; m = ch.Ranges.NextGap(m + 1) {
		requeued, deferred, carried = atOrAbove(requeued, m, Deferral.id), atOrAbove(deferred, m, DeferredMessage.id), atOrAbove(carried, m, carriedPlace.id)
		isCarried := len(carried) > 0 && carried[0].ID == m
		switch {
		case len(deferred) > 0 && deferred[0].ID == m:
			if !isCarried || carried[0].At < belowAt {
				take(m, deferred[0].At)
			}
		case len(requeued) == 0 || requeued[0].ID != m:
			return dst, false
		case isCarried:
			if carried[0].At < belowAt {
				take(m, carried[0].At)
			}
		case ch.Settings.Order != OrderNone:
			return dst, false // it comes again in its place, which only the log knows
		default:
			take(m, 0)
		}
	}
	for _, d := range ch.Dead {
		at := c.placeOf(d.ID)
		if d.ID < belowID && at == 0 {
			return dst, false // it leaves soon
		}
		if at != 0 && at < belowAt {
			take(d.ID, at)
		}
	}
	return dst, true
}

// atOrAbove cuts off what is below m.
func atOrAbove[T any](list []T, m segment.MsgID, id func(T) segment.MsgID) []T {
	for len(list) > 0 && id(list[0]) < m {
		list = list[1:]
	}
	return list
}
