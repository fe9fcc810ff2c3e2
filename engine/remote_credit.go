package engine

import "cmp"

// credit divides the RDY of one client over the leaders that it is subscribed at, so that what all of them have in flight is never more than
// RDY. It is pure: it says what to tell whom, and hears what they answer.
//
// A leader's bound is the most that can be in flight there. Raising it is safe at once as long as the bounds together stay within RDY; lowering
// is not: until the leader has answered, deliveries may be on their way, and messages that are in flight stay so until they are finished.
type credit struct {
	ready   int          // what the client said
	legs    []*creditLeg // one per leader
	changed []int        // divide's result
	order   []*creditLeg // divide's
}

// creditLeg is one leader's part.
type creditLeg struct {
	asked    int    // what it was told last
	bound    int    // at least as many as can be in flight there; never less than asked
	seq      uint32 // of what it was told last
	ackedSeq uint32 // of what it answered last
	since    int64  // when its turn began, or ended, ns; the longest ago is next
	stale    bool   // something was finished since the question that is not answered yet
	want     int    // divide's
}

// rotationSpanNs is how long it takes until every leader had its turn, if there are fewer credits than leaders.
const rotationSpanNs = 80e6

// rotates says that there are fewer credits than leaders, so that they take turns.
func (c *credit) rotates() bool { return 0 < c.ready && c.ready < len(c.legs) }

// divide says who gets how much from now on, and returns the indexes of those who have to be told their asked and seq. The
// slice is used again.
func (c *credit) divide(now int64) []int {
	c.changed = c.changed[:0]
	if c.rotates() {
		c.rotate(now)
	} else if k := len(c.legs); k > 0 {
		for i, l := range c.legs {
			l.want = c.ready / k
			if i < c.ready%k {
				l.want++
			}
		}
	}
	free := c.ready
	for i, l := range c.legs {
		if l.want < l.asked {
			if l.want == 0 {
				l.since = now // the others are next
			}
			c.setReady(i, l.want)
		}
		free -= l.bound
	}
	for i, l := range c.legs {
		if n := min(l.want, l.bound+max(free, 0)); n > l.asked {
			if l.asked == 0 {
				l.since = now
			}
			free -= max(0, n-l.bound)
			l.bound = max(l.bound, n)
			c.setReady(i, n)
		}
	}
	return c.changed
}

// rotate gives one credit each to as many as there are credits: those whose turn is not over keep it, the rest goes to who waited longest.
func (c *credit) rotate(now int64) {
	rounds := (len(c.legs) + c.ready - 1) / c.ready
	turn := int64(rotationSpanNs) / int64(rounds)
	left := c.ready
	c.order = c.order[:0]
	for _, l := range c.legs {
		if l.want = 0; left > 0 && l.asked > 0 && now-l.since < turn {
			l.want = 1
			left--
			continue
		}
		c.order = append(c.order, l)
	}
	for ; left > 0; left-- {
		next := 0
		for i, l := range c.order {
			o := c.order[next]
			if cmp.Or(cmp.Compare(l.want, o.want), cmp.Compare(l.rank(), o.rank()), cmp.Compare(l.since, o.since)) < 0 {
				next = i
			}
		}
		l := c.order[next]
		l.want = 1
		if l.asked > 0 {
			l.since = now // another turn: nobody else is there for it
		}
	}
}

// rank says who is before whom: those that have nothing; those that would go on; and last those whose credit is on its way back, for
// they would take it from the one that it is for.
func (l *creditLeg) rank() int {
	switch {
	case l.asked > 0:
		return 1
	case l.bound > 0:
		return 2
	}
	return 0
}

// setReady notes that leg i is to be told n.
func (c *credit) setReady(i, n int) {
	l := c.legs[i]
	l.asked, l.stale = n, false
	l.seq++
	if l.seq == 0 {
		l.seq = 1
	}
	c.changed = append(c.changed, i)
}

// answered takes leg i's answer: after it had done what seq told it, inFlight messages were in flight. It returns true if something was
// finished since it was asked, so that it has to be asked again.
func (c *credit) answered(i int, seq uint32, inFlight int) (again bool) {
	l := c.legs[i]
	if seq != l.seq {
		return false // it was told something else meanwhile
	}
	l.ackedSeq = seq
	l.bound = max(l.asked, inFlight)
	return l.stale && l.bound > l.asked
}

// finished says that a message of leg i is not in flight any more, or that time has passed. It returns true if the leg
// has to be told its asked and seq again: its bound is above, and may have fallen.
func (c *credit) finished(i int) (ask bool) {
	l := c.legs[i]
	switch {
	case l.bound <= l.asked:
		return false
	case l.ackedSeq != l.seq:
		l.stale = true
		return false
	}
	c.setReady(i, l.asked)
	return true
}
