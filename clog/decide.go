package clog

// place is what recovery finds where the chain of groups goes on.
type place uint8

const (
	// placeValid: a group that continues the chain, and all of it verifies.
	placeValid place = iota
	// placeDamaged: a header that continues the chain, but what is behind it does not verify.
	placeDamaged
	// placeOther: a header of this file that does not continue the chain. It is a later group behind a missing one, or the
	// rest of a tail that an earlier recovery cut.
	placeOther
	// placeNothing: no header of this file: zeros, a recycled group, garbage, or the end of the file.
	placeNothing

	places
)

// verdict is what recovery does about a place.
type verdict uint8

const (
	verdictAccept verdict = iota // take the group, go on behind it
	// the chain goes on in the next file; what is left of this one was cut by an earlier recovery
	verdictFollow
	verdictCut     // the end: what is left was never promised, so nobody was told that it is durable
	verdictCorrupt // a later header promises what is missing here

	verdicts
)

// decision is one row of the truth table. A nil condition holds for both values.
type decision struct {
	places   []place
	next     *bool // the next file begins with a group that continues the chain
	promised *bool // a header further on says that a group behind the chain's end was durable
	verdict  verdict
}

var (
	yes = true
	no  = false

	broken = []place{placeDamaged, placeOther, placeNothing}

	// decisions is the whole of recovery's judgement: for every place, next and promised exactly one row holds (a test
	// enumerates them).
	//
	// next outranks promised: the first group of the next file carries the checksum of the chain's last group. So its
	// writer knew of nothing between the two, and what it promises is judged further on.
	decisions = []decision{
		{places: []place{placeValid}, verdict: verdictAccept},
		{places: broken, next: &yes, verdict: verdictFollow},
		{places: broken, next: &no, promised: &yes, verdict: verdictCorrupt},
		{places: broken, next: &no, promised: &no, verdict: verdictCut},
	}
)

func (d *decision) holds(p place, next, promised bool) bool {
	if d.next != nil && *d.next != next || d.promised != nil && *d.promised != promised {
		return false
	}
	for _, q := range d.places {
		if q == p {
			return true
		}
	}
	return false
}

// decide looks the case up.
func decide(p place, next, promised bool) verdict {
	for i := range decisions {
		if decisions[i].holds(p, next, promised) {
			return decisions[i].verdict
		}
	}
	panic("BUG: clog: no rule for what recovery found")
}
