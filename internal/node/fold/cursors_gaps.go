package fold

import "penstock/segment"

// Each message that waits for its time is a hole among the confirmed messages of a channel: what is published around it
// is delivered and confirmed long before. At MaxRanges confirmed ranges a channel delivers nothing new (Channel.full).
// So a delay is refused while waiting messages could come to make MaxGaps holes: plain delivery must never stop because
// others asked for a delay.

// MaxGaps returns how many holes the waiting messages of a channel may make in a partition, if at most maxRanges ranges
// may be confirmed. The rest is left to messages in flight and to spent ones, which cannot be refused.
func MaxGaps(maxRanges int) int { return maxRanges - maxRanges/4 }

// gapCount bounds how many holes a list of waiting messages makes. Messages with ids that follow each other make one.
// The zero value is right for an empty list, and safe for any.
type gapCount struct {
	joined  int // <= neighbours in the list whose ids follow each other
	changes int // items added or removed since joined was exact
}

// removed notes that k items were removed: each may have had two neighbours.
func (g *gapCount) removed(k int) { g.joined, g.changes = max(0, g.joined-2*k), g.changes+k }

func (g *gapCount) added(k int) { g.changes += k }

// countGaps makes g exact for a list that is sorted by id, if at least minChanges items changed since it was.
func countGaps[T any](g *gapCount, list []T, id func(T) segment.MsgID, minChanges int) {
	if g.changes < minChanges {
		return
	}
	*g = gapCount{}
	for i := 1; i < len(list); i++ {
		if id(list[i]) == id(list[i-1])+1 {
			g.joined++
		}
	}
}

// Gaps returns an upper bound of the holes that the waiting messages make in a channel, or in the one that has the
// most. Its cost is proportional to the number of channels.
func (c *Cursors) Gaps() int {
	most := 0
	for _, ch := range c.channels {
		most = max(most, len(ch.Requeued)-ch.gaps.joined)
	}
	return len(c.Deferred) - c.gaps.joined + most
}

// CountGaps makes Gaps exact for each list that at least minChanges messages were added to or removed from since it was
// counted last. Its cost is proportional to the lengths of these lists.
func (c *Cursors) CountGaps(minChanges int) {
	countGaps(&c.gaps, c.Deferred, DeferredMessage.id, minChanges)
	for _, ch := range c.channels {
		countGaps(&ch.gaps, ch.Requeued, Deferral.id, minChanges)
	}
}
