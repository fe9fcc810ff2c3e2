package retain

import (
	"time"

	"penstock/segment"
)

// Boundaries are the offsets in a partition's log that retention goes by.
type Boundaries struct {
	Confirmed segment.Offset // every channel has confirmed the messages below it
	Kept      segment.Offset // from here on the topic's settings keep what is confirmed: see Keep
	Bound     segment.Offset // what lies below it goes, confirmed or not: the bounds on bytes, count and age
}

// To returns the offset below which retention keeps nothing.
func (b Boundaries) To() segment.Offset { return max(min(b.Confirmed, b.Kept), b.Bound) }

// Keep says how much confirmed data a topic keeps: what is not older than Age, of the last Bytes of the log. 0: not
// set; below 0: no bound. With neither set, nothing is kept.
type Keep struct {
	Age   time.Duration
	Bytes int64
}

// From returns Boundaries.Kept for a log that ends at end, in which all data below aged is older than Age.
func (k Keep) From(end, aged segment.Offset) (from segment.Offset) {
	if k == (Keep{}) {
		return end
	}
	if k.Bytes > 0 {
		from = max(from, end-segment.Offset(k.Bytes))
	}
	if k.Age > 0 {
		from = max(from, aged)
	}
	return from
}
