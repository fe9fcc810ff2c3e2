package fold

import (
	"cmp"
	"slices"

	"penstock/segment"
)

// carriedPlace is the offset of the control batch that carries a message. At is never 0, because a log begins with an
// epoch start.
type carriedPlace struct {
	ID segment.MsgID
	At segment.Offset
}

func (p carriedPlace) id() segment.MsgID { return p.ID }

// CarrySource is a message to carry, and its current place.
type CarrySource struct {
	ID segment.MsgID
	At segment.Offset // of the batch that holds or carries the message; 0: find it by its id
}

// placeOf returns the offset of the control batch that carries the message, or 0 if none does.
func (c *Cursors) placeOf(id segment.MsgID) segment.Offset {
	if len(c.carried) == 0 {
		return 0
	}
	if i := SearchID(c.carried, id, carriedPlace.id); i < len(c.carried) && c.carried[i].ID == id {
		return c.carried[i].At
	}
	return 0
}

// placeRequeued sets the places of those deferrals in ds that are carried, in the channel's list Requeued.
func (c *Cursors) placeRequeued(ch *Cursor, ds []Deferral) {
	if len(c.carried) == 0 {
		return
	}
	for i := range ds {
		if j := SearchID(ch.Requeued, ds[i].ID, Deferral.id); j < len(ch.Requeued) && ch.Requeued[j].ID == ds[i].ID {
			ch.Requeued[j].At = c.placeOf(ds[i].ID)
		}
	}
}

// carry folds a DeferredCarried: the batch at the offset at holds copies of messages.
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
			continue // all channels confirmed it while the batch was under way
		}
		if j := SearchID(c.carried, id, carriedPlace.id); j < len(c.carried) && c.carried[j].ID == id {
			c.carried[j].At = at
		} else {
			c.carried = slices.Insert(c.carried, j, carriedPlace{id, at})
		}
		if j := SearchID(c.Deferred, id, DeferredMessage.id); j < len(c.Deferred) && c.Deferred[j].ID == id {
			c.Deferred[j].At = at
		}
		for _, ch := range c.channels {
			if j := SearchID(ch.Requeued, id, Deferral.id); j < len(ch.Requeued) && ch.Requeued[j].ID == id {
				ch.Requeued[j].At = at
			}
		}
	}
	c.carriedKnown = false
	return nil
}

// CarriedFrom returns the lowest offset of a control batch with a copy that is still wanted: its segment and all later
// ones must stay. It returns false if there is none. startAt is the offset at which the log begins; copies below it are
// gone.
func (c *Cursors) CarriedFrom(startAt segment.Offset) (segment.Offset, bool) {
	if !c.carriedKnown || c.carriedFrom < startAt {
		c.carriedFrom, c.carriedKnown = noPlace, true
		for _, p := range c.carried {
			if p.At >= startAt {
				c.carriedFrom = min(c.carriedFrom, p.At)
			}
		}
	}
	if c.carriedFrom == noPlace {
		return 0, false
	}
	return c.carriedFrom, true
}

const noPlace segment.Offset = 1<<63 - 1

// neededBy returns the lowest id, not below the log's start, that the channel has not confirmed and that is not carried
// for it. Ids below it stay confirmed or carried until a reset, so the search continues where the last one ended.
func (c *Cursors) neededBy(ch *Cursor, start segment.MsgID) segment.MsgID {
	m := max(ch.needed, ch.Confirmed, start)
	for {
		m = ch.Ranges.NextGap(m)
		// A carried copy is not enough if the channel does not know that the message waits: its reading cursor will
		// come to the place where the message was published.
		if c.placeOf(m) == 0 || !HasID(ch.Requeued, m, Deferral.id) && !HasID(c.Deferred, m, DeferredMessage.id) {
			break
		}
		m++
	}
	ch.needed = m
	return m
}

// HasID says whether a list that is sorted by id has an item with this one.
func HasID[T any](list []T, m segment.MsgID, id func(T) segment.MsgID) bool {
	i := SearchID(list, m, id)
	return i < len(list) && id(list[i]) == m
}

// Border is a border between two segments: the start of the upper one.
type Border struct {
	At segment.Offset
	ID segment.MsgID // of the upper segment's first message
}

// ToCarry decides which messages must be carried before the segments below a border may be removed. start is where the
// log begins. ToCarry appends at most maxCount messages, sorted by id, and returns true. Call it again after these were
// carried, until it appends none. It appends nothing and returns false if these segments are needed for another reason
// than deferred messages and dead letters: for unread messages, messages in flight, or an ordered channel. Messages
// whose only place is below start are gone and need nothing; see Gone. ToCarry visits every unconfirmed message between
// start and the border, and every waiting one below the border.
func (c *Cursors) ToCarry(dst []CarrySource, start, below Border, maxCount int) ([]CarrySource, bool) {
	from := len(dst)
	channels := c.channels
	if len(channels) == 0 {
		channels = []*Cursor{{Confirmed: c.Unclaimed}}
	}
	for _, ch := range channels {
		var ok bool
		if dst, ok = c.toCarry(ch, dst, start, below, maxCount); !ok {
			return dst[:from], false
		}
	}
	// One channel may know the place of a message that another one has to look for.
	slices.SortFunc(dst[from:], func(a, b CarrySource) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(b.At, a.At))
	})
	out := slices.CompactFunc(dst[from:], func(a, b CarrySource) bool { return a.ID == b.ID })
	return dst[:from+min(len(out), maxCount)], true
}

// toCarry is ToCarry for one channel. All lists are sorted, so each is traversed once.
func (c *Cursors) toCarry(ch *Cursor, dst []CarrySource, start, below Border, maxCount int) ([]CarrySource, bool) {
	from := len(dst)
	take := func(id segment.MsgID, at segment.Offset) {
		if len(dst)-from < maxCount {
			dst = append(dst, CarrySource{ID: id, At: at})
		}
	}
	requeued, deferred, carried := ch.Requeued, c.Deferred, c.carried
	for m := ch.Ranges.NextGap(ch.Confirmed); m < below.ID; m = ch.Ranges.NextGap(m + 1) {
		carried = atOrAbove(carried, m, carriedPlace.id)
		isCarried := len(carried) > 0 && carried[0].ID == m
		if !isCarried && m < start.ID { // gone, like all further ids up to the next carried one
			m = start.ID - 1
			if len(carried) > 0 {
				m = min(m, carried[0].ID-1)
			}
			continue
		}
		requeued, deferred = atOrAbove(requeued, m, Deferral.id), atOrAbove(deferred, m, DeferredMessage.id)
		switch {
		case isCarried && carried[0].At < start.At: // gone
		case len(deferred) > 0 && deferred[0].ID == m:
			if !isCarried || carried[0].At < below.At {
				take(m, deferred[0].At)
			}
		case len(requeued) == 0 || requeued[0].ID != m:
			return dst, false
		case isCarried:
			if carried[0].At < below.At {
				take(m, carried[0].At)
			}
		case ch.Settings.Order != OrderNone:
			return dst, false // an ordered channel reads it again in its place in the log
		default:
			take(m, 0)
		}
	}
	for _, d := range ch.Dead {
		switch at := c.placeOf(d.ID); {
		case at == 0 && d.ID >= start.ID && d.ID < below.ID: // it may wait for long until it can be moved
			take(d.ID, 0)
		case at != 0 && at >= start.At && at < below.At:
			take(d.ID, at)
		}
	}
	return dst, true
}

// Gone appends, sorted by id, at most maxCount messages that wait for their time in some channel but can no longer be
// read: retention by size, age or count removed the segments that held or carried them. start is where the log begins.
func (c *Cursors) Gone(dst []segment.MsgID, start Border, maxCount int) []segment.MsgID {
	from := len(dst)
	taken := 0
	take := func(id segment.MsgID) {
		if at := c.placeOf(id); taken < maxCount && (at == 0 || at < start.At) {
			dst = append(dst, id)
			taken++
		}
	}
	for _, ch := range c.channels {
		taken = 0
		for i := 0; i < len(ch.Requeued) && ch.Requeued[i].ID < start.ID; i++ {
			take(ch.Requeued[i].ID)
		}
	}
	taken = 0
	for i := 0; i < len(c.Deferred) && c.Deferred[i].ID < start.ID; i++ {
		take(c.Deferred[i].ID)
	}
	slices.Sort(dst[from:])
	out := slices.Compact(dst[from:])
	return dst[:from+min(len(out), maxCount)]
}

// CarriedBelow appends, sorted by id, at most maxCount messages with ids at or above from that exist only as carried
// copies, because they were published before start, where the log begins.
func (c *Cursors) CarriedBelow(dst []CarrySource, from segment.MsgID, start Border, maxCount int) []CarrySource {
	for i := SearchID(c.carried, from, carriedPlace.id); i < len(c.carried) && c.carried[i].ID < start.ID &&
		maxCount > 0; i++ {
		if p := c.carried[i]; p.At >= start.At {
			dst = append(dst, CarrySource(p))
			maxCount--
		}
	}
	return dst
}

// CountCarriedBelow counts what CarriedBelow would append without a limit.
func (c *Cursors) CountCarriedBelow(from segment.MsgID, start Border) (n int) {
	for i := SearchID(c.carried, from, carriedPlace.id); i < len(c.carried) && c.carried[i].ID < start.ID; i++ {
		if c.carried[i].At >= start.At {
			n++
		}
	}
	return n
}

// Carries says whether some control batch has a copy of a message that is still wanted.
func (c *Cursors) Carries() bool { return len(c.carried) > 0 }

// CarriedUnread adds to ds, the deferred messages of a channel, those that the channel has not confirmed, that exist
// only as carried copies, and that it would otherwise not know of: its reading cursor begins at start, where the log
// begins. They are due. A channel that another channel was forked to has such messages, if they waited in the other one
// for their time. ds and the result are sorted by id.
func (c *Cursors) CarriedUnread(ds []DeferredMessage, ch *Cursor, start Border) []DeferredMessage {
	known := len(ds)
	for i := SearchID(c.carried, ch.Confirmed, carriedPlace.id); i < len(c.carried) && c.carried[i].ID < start.ID; i++ {
		p := c.carried[i]
		if p.At >= start.At && !ch.IsConfirmed(p.ID) && !HasID(ch.Requeued, p.ID, Deferral.id) &&
			!HasID(ds[:known], p.ID, DeferredMessage.id) {
			ds = append(ds, DeferredMessage{ID: p.ID, At: p.At})
		}
	}
	slices.SortFunc(ds, func(a, b DeferredMessage) int { return cmp.Compare(a.ID, b.ID) })
	return ds
}

// atOrAbove returns the part of a sorted list whose ids are at or above m.
func atOrAbove[T any](list []T, m segment.MsgID, id func(T) segment.MsgID) []T {
	for len(list) > 0 && id(list[0]) < m {
		list = list[1:]
	}
	return list
}
