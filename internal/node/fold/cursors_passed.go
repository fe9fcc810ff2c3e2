package fold

import "penstock/segment"

// Passed visits the ranges of ids in [from, end), in order, that every channel has confirmed: what lies between them
// waits for some channel. It visits none while there is no channel.
func (c *Cursors) Passed(from, end segment.MsgID, visit func(IDRange)) {
	if len(c.channels) == 0 {
		return
	}
	for from < end {
		r := IDRange{from, end} // what all channels so far have confirmed together, at or after from
		for _, ch := range c.channels {
			if r.From < ch.Confirmed {
				r.To = min(r.To, ch.Confirmed)
				continue
			}
			live, i := ch.Ranges.Ranges(), ch.Ranges.search(r.From+1)
			if i == len(live) {
				return
			}
			r.From, r.To = max(r.From, live[i].From), min(r.To, live[i].To)
		}
		if from = r.From; r.From < r.To {
			visit(r)
			from = r.To
		}
	}
}

// CarriedCount returns how many messages with ids below id exist only as copies that were carried.
func (c *Cursors) CarriedCount(id segment.MsgID) int { return SearchID(c.carried, id, carriedPlace.id) }

// Rewinds counts the entries after which some channel may want messages that all had confirmed: it was made or set
// back, or the fold was replaced.
func (c *Cursors) Rewinds() uint64 { return c.rewinds }
