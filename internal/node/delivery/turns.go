package delivery

import (
	"slices"

	"penstock/internal/node/fold"
)

// source is messages of one partition that take their turns together.
//
// The sources take turns: EvNext gives the turn to the source that had it the longest ago. A turn ends when the source
// has nothing that may be delivered, when no client has credit any more, or after TurnSize messages. Turns may so be of
// different lengths, where clients take many messages at one time and few at another. Therefore a source that has used
// up TurnSize messages in several turns waits until all others have, or have nothing to deliver: that is a round. So no
// partition, and nothing in a partition, waits for more than TurnSize messages of each other source in the rest of a
// round, and as many in the next one.
type source struct {
	part    uint32
	kind    sourceKind
	tag     uint64    // sourceTagged: of its messages
	queue   entryList // its messages, the next one first; of sourceUnread they have no entries
	round   uint64    // the round of its last turn
	given   int       // messages that were offered in that round
	stalled uint64    // Channel.changes when its first message could not be delivered; 0: never
}

type sourceKind uint8

const (
	sourceUnread  sourceKind = iota // at the reading cursor
	sourceUnknown                   // queued, not read yet by this leader, so the tag is not known: most were delayed
	sourceKnown                     // queued, without a tag that some client wants
	sourceTagged                    // queued, with a tag that some client wants
)

// spend counts messages that were offered.
func (s *source) spend(c *Channel, n int) {
	if s.round != c.round {
		s.round, s.given = c.round, 0
	}
	s.given += n
}

// nextTurn answers EvNext.
func (c *Channel) nextTurn(ev *Event, res *Result) {
	res.Decision = Hold
	switch {
	case c.paused:
		res.Why = HoldPaused
		return
	case !c.hasCredit():
		res.Why = HoldNoCredit
		return
	case !c.rate.allows(c.nowNs):
		res.Why = HoldRate
		return
	}
	s := c.nextSource(ev.Flag)
	if s == nil {
		res.Why = HoldEmpty
		return
	}
	res.Decision, res.Part, res.Count = Read, s.part, c.cfg.TurnSize-s.given
	if e := s.queue.first; e != nil {
		res.Queued, res.ID, res.At, res.Index, res.HasAt = true, e.id, e.at, e.index, e.hasAt
	}
}

// nextSource returns the source whose turn it is: with stay, the last one again, if its turn is not over. nil: no
// source has a message that may be delivered.
func (c *Channel) nextSource(stay bool) *source {
	n := len(c.sources)
	var tired *source // the first that has used up its messages of this round
	tiredAt := 0
	for i := range n {
		at := c.turn + i
		if !stay || c.turn < 0 {
			at++
		}
		for at >= n {
			at -= n
		}
		s := c.sources[at]
		if !c.mayGo(s) {
			continue
		}
		if s.round != c.round {
			s.round, s.given = c.round, 0
		}
		if s.given < c.cfg.TurnSize {
			c.turn = at
			return s
		}
		if tired == nil {
			tired, tiredAt = s, at
		}
	}
	if tired != nil {
		c.round++
		tired.round, tired.given, c.turn = c.round, 0, tiredAt
	}
	return tired
}

// mayGo says whether the source has a message that, as far as is known before it is read, may be delivered now.
func (c *Channel) mayGo(s *source) bool {
	if s.stalled == c.changes {
		return false
	}
	if s.kind == sourceUnread {
		p := c.parts[s.part]
		return p.next < p.end && !c.full(p) && (c.settings.Order == fold.OrderNone || p.free() || p.lane.onlySettles())
	}
	e := s.queue.first
	switch {
	case e == nil:
		return false
	case s.kind == sourceUnknown && c.choosy > 0:
		return c.anyClientOf(s.part)
	}
	return c.choose(e.tag, s.part) != nil
}

// stall notes that the unread messages of a partition cannot be read now. They get no turn until something happens.
func (c *Channel) stall(p *channelPart) { p.unread.stalled = c.changes }

// sourceOf returns the source that a queued entry belongs to.
func (c *Channel) sourceOf(e *entry) *source {
	p := c.part(e.id.Partition())
	if !e.told {
		return &p.unknown
	}
	if e.tag != 0 {
		for _, s := range p.tagged {
			if s.tag == e.tag {
				return s
			}
		}
	}
	return &p.known
}

// queueUp puts an entry that is in no list into its queue.
func (c *Channel) queueUp(e *entry, front bool) {
	s := c.sourceOf(e)
	e.state, e.source = entryQueued, s
	c.queued++
	if front {
		s.queue.pushFront(e)
	} else {
		s.queue.pushBack(e)
	}
}

// dequeue takes an entry out of its queue.
func (c *Channel) dequeue(e *entry) {
	e.source.queue.remove(e)
	e.source = nil
	c.queued--
}

// addSources gives a new partition its sources.
func (c *Channel) addSources(p *channelPart) {
	p.known.kind, p.unknown.kind, p.unread.kind = sourceKnown, sourceUnknown, sourceUnread
	for _, s := range []*source{&p.known, &p.unknown, &p.unread} {
		s.part = p.number
		c.sources = append(c.sources, s)
	}
	for _, cl := range c.order {
		c.addTag(p, cl.tag)
	}
}

// removeSources takes the sources of a partition away. They have no entries any more.
func (c *Channel) removeSources(p *channelPart) {
	for i := len(c.sources) - 1; i >= 0; i-- {
		if c.sources[i].part == p.number {
			c.removeSource(i)
		}
	}
}

func (c *Channel) removeSource(i int) {
	c.sources = slices.Delete(c.sources, i, i+1)
	if c.turn >= i { // the next turn is that of the next one
		c.turn--
	}
}

// addTag gives the queued messages of a tag a source of their own, because a client of that tag subscribes.
func (c *Channel) addTag(p *channelPart, tag uint64) {
	if tag == 0 || slices.ContainsFunc(p.tagged, func(s *source) bool { return s.tag == tag }) {
		return
	}
	s := &source{part: p.number, kind: sourceTagged, tag: tag}
	p.tagged = append(p.tagged, s)
	c.sources = append(c.sources, s)
	for e := p.known.queue.first; e != nil; {
		next := e.next
		if e.tag == tag {
			c.dequeue(e)
			c.queueUp(e, false)
		}
		e = next
	}
}

// removeTag is for a tag that no client has any more.
func (c *Channel) removeTag(p *channelPart, tag uint64) {
	i := slices.IndexFunc(p.tagged, func(s *source) bool { return s.tag == tag })
	if i < 0 {
		return
	}
	s := p.tagged[i]
	p.tagged = slices.Delete(p.tagged, i, i+1)
	for e := s.queue.last; e != nil; e = s.queue.last { // they have waited longer than what failed lately
		c.dequeue(e)
		c.queueUp(e, true)
	}
	c.removeSource(slices.Index(c.sources, s))
}

// tags makes the sources fit the tags of the clients, after one with this tag subscribed or unsubscribed.
func (c *Channel) tags(tag uint64) {
	if tag == 0 {
		return
	}
	wanted := slices.ContainsFunc(c.order, func(cl *channelClient) bool { return cl.tag == tag })
	for _, p := range c.parts {
		switch {
		case p == nil:
		case wanted:
			c.addTag(p, tag)
		default:
			c.removeTag(p, tag)
		}
	}
}
