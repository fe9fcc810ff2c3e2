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

// turns gives the sources of a channel their turns, and knows what is queued in them.
type turns struct {
	sources []*source // of all partitions; the turn goes round them in this order
	at      int       // index in sources of the last turn; -1: there was none, or it was of one before the first
	round   uint64    // see source
	changes uint64    // counts the Steps that may let a source go on that could not; 1 and more
	queued  int       // entries in the queues of sources
	size    int       // ChannelConfig.TurnSize

	mayGo func(*source) bool // Channel.mayGo, bound once
}

// spend counts messages of a source that were offered.
func (t *turns) spend(s *source, n int) {
	if s.round != t.round {
		s.round, s.given = t.round, 0
	}
	s.given += n
}

// stall notes that the first message of a source cannot be read or delivered now. The source gets no turn until
// something happens.
func (t *turns) stall(s *source) { s.stalled = t.changes }

// nextTurn answers EvNext.
func (c *Channel) nextTurn(ev *Event, res *Result) {
	res.Decision = Hold
	switch {
	case c.paused:
		res.Why = HoldPaused
		return
	case !c.clients.hasCredit():
		res.Why = HoldNoCredit
		return
	case !c.pace.allows(c.nowNs):
		res.Why = HoldRate
		return
	}
	s := c.turns.next(ev.Flag)
	if s == nil {
		res.Why = HoldEmpty
		return
	}
	res.Decision, res.Part, res.Count = Read, s.part, c.cfg.TurnSize-s.given
	if e := s.queue.first; e != nil {
		res.Queued, res.ID, res.At, res.Index, res.HasAt = true, e.id, e.at, e.index, e.hasAt
	}
}

// mayGo says whether the source has a message that, as far as is known before it is read, may be delivered now.
func (c *Channel) mayGo(s *source) bool {
	if s.stalled == c.turns.changes {
		return false
	}
	if s.kind == sourceUnread {
		p := c.parts[s.part]
		return p.next < p.end && !p.full() && (c.settings.Order == fold.OrderNone || p.free() || p.lane.onlySettles())
	}
	e := s.queue.first
	switch {
	case e == nil:
		return false
	case s.kind == sourceUnknown && c.clients.choosy > 0:
		return c.clients.anyOf(s.part)
	}
	return c.clients.choose(e.tag, s.part) != nil
}

// next returns the source whose turn it is, or nil if no source has a message that may be delivered. With stay it
// returns the last source again until its turn is over.
func (t *turns) next(stay bool) *source {
	n := len(t.sources)
	var tired *source // the first that has used up its messages of this round
	tiredAt := 0
	for i := range n {
		at := t.at + i
		if !stay || t.at < 0 {
			at++
		}
		for at >= n {
			at -= n
		}
		s := t.sources[at]
		if !t.mayGo(s) {
			continue
		}
		if s.round != t.round {
			s.round, s.given = t.round, 0
		}
		if s.given < t.size {
			t.at = at
			return s
		}
		if tired == nil {
			tired, tiredAt = s, at
		}
	}
	if tired != nil {
		t.round++
		tired.round, tired.given, t.at = t.round, 0, tiredAt
	}
	return tired
}

// sourceOf returns the source that a queued entry belongs to.
func (p *partition) sourceOf(e *entry) *source {
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

// queueUp puts an entry of a partition that is in no list into its queue.
func (t *turns) queueUp(e *entry, p *partition, front bool) {
	s := p.sourceOf(e)
	e.state, e.source = entryQueued, s
	t.queued++
	if front {
		s.queue.pushFront(e)
	} else {
		s.queue.pushBack(e)
	}
}

// dequeue takes an entry out of its queue.
func (t *turns) dequeue(e *entry) {
	e.source.queue.remove(e)
	e.source = nil
	t.queued--
}

// add gives a new partition its sources.
func (t *turns) add(p *partition) {
	p.known.kind, p.unknown.kind, p.unread.kind = sourceKnown, sourceUnknown, sourceUnread
	for _, s := range []*source{&p.known, &p.unknown, &p.unread} {
		s.part = p.number
		t.sources = append(t.sources, s)
	}
}

// remove takes the sources of a partition away. They have no entries any more.
func (t *turns) remove(p *partition) {
	for i := len(t.sources) - 1; i >= 0; i-- {
		if t.sources[i].part == p.number {
			t.removeSource(i)
		}
	}
}

func (t *turns) removeSource(i int) {
	t.sources = slices.Delete(t.sources, i, i+1)
	if t.at >= i { // the next turn is that of the next one
		t.at--
	}
}

// addTag gives the queued messages of a tag a source of their own, because a client of that tag subscribes.
func (t *turns) addTag(p *partition, tag uint64) {
	if tag == 0 || slices.ContainsFunc(p.tagged, func(s *source) bool { return s.tag == tag }) {
		return
	}
	s := &source{part: p.number, kind: sourceTagged, tag: tag}
	p.tagged = append(p.tagged, s)
	t.sources = append(t.sources, s)
	for e := p.known.queue.first; e != nil; {
		next := e.next
		if e.tag == tag {
			t.dequeue(e)
			t.queueUp(e, p, false)
		}
		e = next
	}
}

// removeTag is for a tag that no client has any more.
func (t *turns) removeTag(p *partition, tag uint64) {
	i := slices.IndexFunc(p.tagged, func(s *source) bool { return s.tag == tag })
	if i < 0 {
		return
	}
	s := p.tagged[i]
	p.tagged = slices.Delete(p.tagged, i, i+1)
	for e := s.queue.last; e != nil; e = s.queue.last { // they have waited longer than what failed lately
		t.dequeue(e)
		t.queueUp(e, p, true)
	}
	t.removeSource(slices.Index(t.sources, s))
}

// tags makes the sources fit the tags of the clients, after one with this tag subscribed or unsubscribed.
func (c *Channel) tags(tag uint64) {
	if tag == 0 {
		return
	}
	wanted := slices.ContainsFunc(c.clients.all, func(cl *client) bool { return cl.tag == tag })
	for _, p := range c.parts {
		switch {
		case p == nil:
		case wanted:
			c.turns.addTag(p, tag)
		default:
			c.turns.removeTag(p, tag)
		}
	}
}
