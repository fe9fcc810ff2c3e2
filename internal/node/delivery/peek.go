package delivery

import "penstock/segment"

// NextUnconfirmed returns the first message of a partition at or above m that is not confirmed. It may lie beyond the
// visible end.
func (c *Channel) NextUnconfirmed(part uint32, m segment.MsgID) segment.MsgID {
	p := c.part(part)
	return p.ranges.NextGap(max(m, p.confirmed))
}
