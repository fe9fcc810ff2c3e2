package channel

import (
	"slices"
	"sync/atomic"
	"time"

	"penstock/internal/node/delivery"
)

// droppingFor is how long after the last message that it lost a channel counts as one that loses messages.
const droppingFor = 10 * time.Minute

// starvedAfter is how long nothing may have been delivered, although messages wait and somebody consumes, until the
// channel counts as starved. Two looks that are farther apart begin to count anew.
const starvedAfter = 10 * time.Second

// starvation notices that consumers get nothing. mu guards it.
type starvation struct {
	deliveries uint64        // at the last look
	since      time.Duration // of the first look from which on nothing was delivered and all else held, by Host.Mono
	looked     time.Duration // when the last look was
}

// look takes what a channel has at a time, and returns whether it is starved: messages wait, somebody consumes, nothing
// is in flight, and nothing was delivered for starvedAfter.
func (s *starvation) look(m *delivery.ChannelStats, now time.Duration) bool {
	waits := m.Depth > 0 && m.ClientCount > 0 && m.InFlightCount == 0 && !m.Paused && !m.Skipped
	if !waits || m.DeliverCount != s.deliveries || now-s.looked > starvedAfter {
		s.since = now
	}
	s.deliveries, s.looked = m.DeliverCount, now
	return waits && now-s.since >= starvedAfter
}

// Troubles are the states of a channel that only an operator or its consumers can end.
type Troubles struct {
	AsideCount     int    // see Stats
	AsideWhy       string // see Stats
	FullPartitions int    // see Stats
	DroppedCount   uint64 // see Stats; 0 if it has not grown for droppingFor
	Paused         bool   // see Stats
	Skipping       bool   // see Stats
	SkippedCount   uint64 // see Stats; 0 while the channel does not skip
	SkippingSince  time.Time
	SkippedBefore  bool // see Stats
	Starved        bool // see Stats
}

// troubles is what Troubles returns; nil: none. It changes with Channel.mu held, and is read without.
type troubles struct {
	noted     atomic.Pointer[Troubles]
	dropped   uint64        // how many messages the channel had lost when look saw that last
	droppedAt time.Duration // when look saw it grow, by Host.Mono
	starves   starvation
}

// Troubles returns the present troubles or, while somebody else has the lock, what was noted last: it does not wait for
// the disk.
func (c *Channel) Troubles() Troubles {
	if c.mu.TryLock() {
		if c.closed == nil {
			c.look()
		}
		c.mu.Unlock()
	}
	return c.troubles.last()
}

// last returns what was noted last. It takes no lock.
func (t *troubles) last() Troubles {
	if t := t.noted.Load(); t != nil {
		return *t
	}
	return Troubles{}
}

// look tells the machine what the logs have now, and notes the troubles that come of it: nobody else may have told it
// since the last consumer waited. mu is held.
func (c *Channel) look() {
	c.syncVisible()
	c.syncStarts()
	c.noteFull(false)
	m := c.m.Stats()
	if !c.hasPartition() { // what it was is the leaders' matter now
		m.Paused, m.Skipped = false, false
	}
	now := c.node.Host.Mono()
	if m.DroppedCount > c.dropped {
		c.dropped, c.droppedAt = m.DroppedCount, now
	} else if now-c.droppedAt > droppingFor {
		m.DroppedCount = 0
	}
	if !m.Skipped {
		m.SkippedCount = 0
	}
	var since time.Time
	if m.Skipped {
		since = time.Unix(0, m.SkippedSinceNs).UTC()
	}
	starved := c.starves.look(&m, now)
	c.note(func(t *Troubles) {
		t.Starved = starved && t.FullPartitions == 0
		t.Paused, t.DroppedCount = m.Paused, m.DroppedCount
		t.Skipping, t.SkippedCount = m.Skipped, m.SkippedCount
		t.SkippingSince, t.SkippedBefore = since, m.Skipped && m.SkippedBefore
	})
}

// hasPartition says whether this node delivers messages of a partition to the channel. mu is held.
func (r *channelReader) hasPartition() bool {
	return slices.ContainsFunc(r.cursors, func(cur cursor) bool { return cur.assigned })
}

// note changes what last returns. mu is held.
func (t *troubles) note(change func(*Troubles)) {
	was := t.last()
	now := was
	if change(&now); now != was {
		t.noted.Store(&now)
	}
}

// noteAside notes how many dead letters are aside. mu is held.
func (c *Channel) noteAside() {
	n, why := c.aside.Count(c.outboxCount())
	c.note(func(t *Troubles) { t.AsideCount, t.AsideWhy = n, why })
}
