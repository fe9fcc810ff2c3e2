package channel

import "sync/atomic"

// Troubles are the states of a channel that only an operator or its consumers can end.
type Troubles struct {
	AsideCount     int    // see Stats
	AsideWhy       string // see Stats
	FullPartitions int    // see Stats
}

// troubles is what Troubles returns; nil: none. It changes with Channel.mu held, and is read without.
type troubles struct {
	noted atomic.Pointer[Troubles]
}

// Troubles returns what the channel noted when it last delivered, moved dead letters or was asked for its Stats. It
// takes no lock, so it does not wait for the disk.
func (c *Channel) Troubles() Troubles {
	if t := c.noted.Load(); t != nil {
		return *t
	}
	return Troubles{}
}

// note changes what Troubles returns. mu is held.
func (c *Channel) note(change func(*Troubles)) {
	was := c.Troubles()
	now := was
	if change(&now); now == was {
		return
	}
	switch (Troubles{}) {
	case was:
		c.node.troubled.Add(1)
	case now:
		c.node.troubled.Add(-1)
	}
	c.noted.Store(&now)
}

// HasTroubles says whether one of the node's channels has Troubles.
func (n *Node) HasTroubles() bool { return n.troubled.Load() > 0 }

// noteAside notes how many dead letters are aside. mu is held.
func (c *Channel) noteAside() {
	n, why := c.aside.Count(c.outboxCount())
	c.note(func(t *Troubles) { t.AsideCount, t.AsideWhy = n, why })
}
