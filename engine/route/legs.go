package route

import (
	"slices"

	"penstock/replicate"
)

// Legs decides at which leaders a client is subscribed whose node leads nothing, or not all, of its topic. Each leader
// has one leg, from when it is asked until it refuses, goes, or leads no more:
//
//	(none) ──Add──► asked ──Accept──► accepted
//	   ▲              └────Remove────────┘
//
// Only accepted legs take part in Credit. L is the owner's own leg, which embeds a Leg. The owner is remote.Consumer,
// and its mu guards all. After a crash the leaders see the connection end, and the client subscribes anew.
type Legs[L AnyLeg] struct {
	credit Credit
	all    []L // first the accepted ones, in the order of credit, then those that were asked
	firsts int // legs whose first answer is awaited
}

// Leg is what Legs keeps of a leg. It belongs to one Legs.
type Leg struct {
	CreditLeg
	Node     replicate.NodeID // the leader
	accepted bool
	first    bool // see AwaitFirst
}

// AnyLeg is a pointer to a struct that embeds a Leg.
type AnyLeg interface {
	comparable
	leg() *Leg
}

func (l *Leg) leg() *Leg { return l }

// Accepted says whether the leader has accepted the subscription: it delivers, and gets credit.
func (l *Leg) Accepted() bool { return l.accepted }

// Credit divides the client's RDY among the accepted legs. Its indexes are those of All.
func (s *Legs[L]) Credit() *Credit { return &s.credit }

// All returns all legs, the accepted ones first. It is borrowed until the next call that changes them.
func (s *Legs[L]) All() []L { return s.all }

// Has says whether l is one of the legs: it was added and not removed.
func (s *Legs[L]) Has(l L) bool { return slices.Contains(s.all, l) }

// Follow compares the legs with the nodes that lead partitions of the topic now. The owner unsubscribes at those that
// leave and removes them, and asks those that join.
func (s *Legs[L]) Follow(leaders []replicate.NodeID) (leave []L, join []replicate.NodeID) {
	for _, l := range s.all {
		if !slices.Contains(leaders, l.leg().Node) {
			leave = append(leave, l)
		}
	}
	for _, node := range leaders {
		if !slices.ContainsFunc(s.all, func(l L) bool { return l.leg().Node == node }) {
			join = append(join, node)
		}
	}
	return leave, join
}

// Add adds a leg whose leader was asked.
func (s *Legs[L]) Add(l L) { s.all = append(s.all, l) }

// Accept notes that the leader of l has accepted it. It returns false for one that is not asked: it was removed while
// the answer was under way, or the answer came twice.
func (s *Legs[L]) Accept(l L) bool {
	i := slices.Index(s.all, l)
	if i < 0 || l.leg().accepted {
		return false
	}
	at := s.credit.Count()
	s.all = slices.Insert(slices.Delete(s.all, i, i+1), at, l)
	s.credit.Add(&l.leg().CreditLeg)
	l.leg().accepted = true
	s.answered(l)
	return true
}

// Remove ends a leg and frees its credit. It does nothing for one that was removed before.
func (s *Legs[L]) Remove(l L) {
	if i := slices.Index(s.all, l); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
	s.credit.Remove(&l.leg().CreditLeg)
	s.answered(l)
}

// At returns the leg at a node, if it is accepted, and its index.
func (s *Legs[L]) At(node replicate.NodeID) (l L, index int, ok bool) {
	i := slices.IndexFunc(s.all, func(l L) bool { return l.leg().Node == node && l.leg().accepted })
	if i < 0 {
		return l, 0, false
	}
	return s.all[i], i, true
}

// AwaitFirst begins to wait for the first answer of each leg that is asked now: it is accepted or removed. Awaited says
// how many are missing.
func (s *Legs[L]) AwaitFirst() {
	for _, l := range s.all {
		if !l.leg().accepted && !l.leg().first {
			l.leg().first = true
			s.firsts++
		}
	}
}

// Awaited is the number of first answers that are missing.
func (s *Legs[L]) Awaited() int { return s.firsts }

func (s *Legs[L]) answered(l L) {
	if l.leg().first {
		l.leg().first = false
		s.firsts--
	}
}
