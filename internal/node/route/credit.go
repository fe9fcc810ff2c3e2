package route

import (
	"cmp"
	"slices"
)

// Credit divides the RDY of one client among the leaders at which the client is subscribed, so that together they never
// have more than RDY messages in flight. It does no I/O: it decides which leader must be told what, and takes the
// leaders' answers. The owner's lock guards it.
//
// A leader's bound is the most that can be in flight there. Raising a bound is safe at once, as long as the sum of the
// bounds stays within RDY. Lowering a bound takes time: deliveries may be on their way until the leader has answered,
// and messages in flight stay in flight until they are finished.
type Credit struct {
	Ready   int          // the client's RDY
	legs    []*CreditLeg // one per leader
	changed []int        // scratch: the result of Divide
	order   []*CreditLeg // scratch of rotate
}

// CreditLeg is the credit of one leader.
type CreditLeg struct {
	asked    int    // RDY in the last message to the leader
	bound    int    // upper bound of the messages in flight there; never less than asked
	seq      uint32 // number of the last message to the leader
	ackedSeq uint32 // number of the last message that the leader answered
	since    int64  // when its turn began or ended, in ns; the leg with the lowest value is next
	came     bool   // a message has come since its turn began
	empty    bool   // its last turn brought no message, and none has come since
	stale    bool   // a message was finished after seq was sent and before its answer
	want     int    // scratch of Divide
}

// Asked returns the RDY in the last message to the leader.
func (l *CreditLeg) Asked() int { return l.asked }

// Seq returns the number of the last message to the leader.
func (l *CreditLeg) Seq() uint32 { return l.seq }

// Count returns the number of leaders among which the credit is divided.
func (c *Credit) Count() int { return len(c.legs) }

// Add adds a leader at the end.
func (c *Credit) Add(l *CreditLeg) { c.legs = append(c.legs, l) }

// Remove frees the credit of a leader. It does nothing if the leader was not added.
func (c *Credit) Remove(l *CreditLeg) {
	c.legs = slices.DeleteFunc(c.legs, func(o *CreditLeg) bool { return o == l })
}

// Index returns the index of a leader in the order in which leaders were added, or -1 if it was not added.
func (c *Credit) Index(l *CreditLeg) int { return slices.Index(c.legs, l) }

// rotationSpanNs is the time in which every leader gets a turn, if there are fewer credits than leaders. A leader whose
// last turn brought nothing gets only shortTurnNs, while another one has messages.
const (
	rotationSpanNs = 80e6
	shortTurnNs    = 2e6
)

// Rotates says whether there are fewer credits than leaders, so that the leaders take turns.
func (c *Credit) Rotates() bool { return 0 < c.Ready && c.Ready < len(c.legs) }

// InShortTurn says whether a leg has, or is about to get, a short turn.
func (c *Credit) InShortTurn() bool {
	return c.Rotates() && slices.ContainsFunc(c.legs, func(l *CreditLeg) bool { return l.want > 0 && c.isShort(l) })
}

// isShort says whether the leg's turn is short. If no leg brings anything, no turn is short: that would gain nothing,
// and cost messages between nodes.
func (c *Credit) isShort(l *CreditLeg) bool {
	return l.empty && slices.ContainsFunc(c.legs, func(o *CreditLeg) bool { return !o.empty })
}

// Came notes that a message of the leg has come.
func (l *CreditLeg) Came() { l.came, l.empty = true, false }

// Divide decides how much credit each leader gets. It returns the indexes of the legs whose leaders must be told their
// asked and seq. The next call reuses the slice.
func (c *Credit) Divide(now int64) []int {
	c.changed = c.changed[:0]
	if c.Rotates() {
		c.rotate(now)
	} else if k := len(c.legs); k > 0 {
		for i, l := range c.legs {
			l.want = c.Ready / k
			if i < c.Ready%k {
				l.want++
			}
		}
	}
	free := c.Ready
	for i, l := range c.legs {
		if l.want < l.asked {
			if l.want == 0 {
				l.since, l.empty = now, !l.came // its turn ends: it is last in line for the next one
			}
			c.setReady(i, l.want)
		}
		free -= l.bound
	}
	for i, l := range c.legs {
		if n := min(l.want, l.bound+max(free, 0)); n > l.asked {
			if l.asked == 0 {
				l.since, l.came = now, false
			}
			free -= max(0, n-l.bound)
			l.bound = max(l.bound, n)
			c.setReady(i, n)
		}
	}
	return c.changed
}

// rotate assigns one credit each to as many legs as there are credits. Legs whose turn is not over keep their credit.
// The other credits go to the legs that have waited longest.
func (c *Credit) rotate(now int64) {
	rounds := (len(c.legs) + c.Ready - 1) / c.Ready
	turn := int64(rotationSpanNs) / int64(rounds)
	left := c.Ready
	c.order = c.order[:0]
	for _, l := range c.legs {
		span := turn
		if c.isShort(l) {
			span = min(turn, shortTurnNs)
		}
		if l.want = 0; left > 0 && l.asked > 0 && now-l.since < span {
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
			l.since, l.empty, l.came = now, !l.came, false // no other leg wants the turn: this leg gets another one
		}
	}
}

// rank orders the legs that may get a turn. First come legs with nothing in flight, then legs whose own turn would
// continue. Last come legs whose earlier credit is still being withdrawn: they would keep the credit from the leg for
// which it is meant.
func (l *CreditLeg) rank() int {
	switch {
	case l.asked > 0:
		return 1
	case l.bound > 0:
		return 2
	}
	return 0
}

// setReady records that the leader of leg i must be told n.
func (c *Credit) setReady(i, n int) {
	l := c.legs[i]
	l.asked, l.stale = n, false
	l.seq++
	if l.seq == 0 {
		l.seq = 1
	}
	c.changed = append(c.changed, i)
}

// Answered handles an answer of leg i: when the leader had applied message seq, inFlight messages were in flight there.
// It returns true if a message was finished after seq was sent, so that the leader must be asked again.
func (c *Credit) Answered(i int, seq uint32, inFlight int) (again bool) {
	l := c.legs[i]
	if seq != l.seq {
		return false // a newer message is on its way
	}
	l.ackedSeq = seq
	l.bound = max(l.asked, inFlight)
	return l.stale && l.bound > l.asked
}

// Finished notes that a message of leg i is no longer in flight, or may have timed out. It returns true if the leader
// must be told its asked and seq again, because its bound is above asked and may have fallen.
func (c *Credit) Finished(i int) (ask bool) {
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
