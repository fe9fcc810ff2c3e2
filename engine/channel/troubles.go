package channel

import (
	"sync/atomic"
	"time"
)

// droppingFor is how long after the last message that it lost a channel counts as one that loses messages.
const droppingFor = 10 * time.Minute

// Troubles are the states of a channel that only an operator or its consumers can end.
type Troubles struct {
	AsideCount     int    // see Stats
	AsideWhy       string // see Stats
	FullPartitions int    // see Stats
	DroppedCount   uint64 // see Stats; 0 if it has not grown for droppingFor
	Paused         bool   // see Stats
	Skipping       bool   // see Stats
	SkippedCount   uint64 // see Stats; 0 while the channel does not skip
}

// troubles is what Troubles returns; nil: none. It changes with Channel.mu held, and is read without.
type troubles struct {
	noted     atomic.Pointer[Troubles]
	dropped   uint64        // how many messages the channel had lost when look saw that last
	droppedAt time.Duration // when look saw it grow, by Host.Mono
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
	return c.lastTroubles()
}

// lastTroubles returns what was noted last. It takes no lock.
func (c *Channel) lastTroubles() Troubles {
	if t := c.noted.Load(); t != nil {
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
	if now := c.node.Host.Mono(); m.DroppedCount > c.dropped {
		c.dropped, c.droppedAt = m.DroppedCount, now
	} else if now-c.droppedAt > droppingFor {
		m.DroppedCount = 0
	}
	if !m.Skipped {
		m.SkippedCount = 0
	}
	c.note(func(t *Troubles) {
		t.Paused, t.DroppedCount = m.Paused, m.DroppedCount
		t.Skipping, t.SkippedCount = m.Skipped, m.SkippedCount
	})
}

// hasPartition says whether this node delivers messages of a partition to the channel. mu is held.
func (c *Channel) hasPartition() bool {
	for i := range c.cursors {
		if c.cursors[i].assigned {
			return true
		}
	}
	return false
}

// note changes what lastTroubles returns. mu is held.
func (c *Channel) note(change func(*Troubles)) {
	was := c.lastTroubles()
	now := was
	if change(&now); now != was {
		c.noted.Store(&now)
	}
}

// noteAside notes how many dead letters are aside. mu is held.
func (c *Channel) noteAside() {
	n, why := c.aside.Count(c.outboxCount())
	c.note(func(t *Troubles) { t.AsideCount, t.AsideWhy = n, why })
}
