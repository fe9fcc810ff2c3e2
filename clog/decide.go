package clog

import "slices"

// place classifies what recovery finds where the next group of the chain should be.
type place uint8

const (
	// placeValid: a group that continues the chain, and all of it verifies.
	placeValid place = iota
	// placeDamaged: a header that continues the chain, but the group behind it does not verify.
	placeDamaged
	// placeOther: a header of this file that does not continue the chain. It belongs to a later group behind a missing
	// one, or to the rest of a tail that an earlier recovery cut.
	placeOther
	// placeNothing: no header of this file: zeros, a recycled group, garbage, or the end of the file.
	placeNothing

	places
)

// verdict is what recovery does about a place.
type verdict uint8

const (
	verdictAccept verdict = iota // take the group, go on behind it
	// the chain continues in the next file; the rest of this file was cut by an earlier recovery
	verdictFollow
	// the end of the log: no header promises the rest, which is a torn write or damage to the last groups (see Tear)
	verdictCut
	verdictCorrupt // a later header promises a group that is missing here

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

	// decisions is all of recovery's judgement: for every combination of place, next and promised, exactly one row
	// holds (a test enumerates them).
	//
	// next outranks promised: the first group of the next file carries the checksum of the chain's last group. So the
	// process that wrote the next file knew of no group in between, and recovery judges what that group promises
	// further on.
	decisions = []decision{
		{places: []place{placeValid}, verdict: verdictAccept},
		{places: broken, next: &yes, verdict: verdictFollow},
		{places: broken, next: &no, promised: &yes, verdict: verdictCorrupt},
		{places: broken, next: &no, promised: &no, verdict: verdictCut},
	}
)

func (d *decision) holds(p place, next, promised bool) bool {
	return slices.Contains(d.places, p) && suits(d.next, next) && suits(d.promised, promised)
}

// suits says whether a condition of a row holds for a value; nil holds for both.
func suits(condition *bool, value bool) bool { return condition == nil || *condition == value }

// decide returns the verdict of the row that holds.
func decide(p place, next, promised bool) verdict {
	for i := range decisions {
		if decisions[i].holds(p, next, promised) {
			return decisions[i].verdict
		}
	}
	panic("BUG: clog: no rule for what recovery found")
}
