package route

import (
	"slices"

	"penstock/replicate"
)

// Legs decides at which leaders a client is subscribed if its node leads none, or not all, of the topic's partitions.
// Each leader has one leg, which exists from the time when the leader is asked until the leader refuses, disconnects,
// or is not a leader any more:
//
//	(none) ──Add──► asked ──Accept──► accepted
//	   ▲              └────Remove────────┘
//
// Only accepted legs take part in Credit. L is the owner's type of leg, which embeds a Leg. The owner is
// remote.Consumer, and its mu guards all of this. After a crash the leaders see the connection end, and the client
// subscribes anew.
type Legs[L AnyLeg] struct {
	credit Credit
	all    []L                // first the accepted legs, in the order of credit, then those that were only asked
	firsts int                // number of legs whose first answer is awaited
	lack   []replicate.NodeID // leaders whose last answer was that they have no such channel
}

// Leg is the part of a leg that Legs uses. It belongs to one Legs.
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

// Accepted says whether the leader has accepted the subscription. Such a leader delivers, and gets credit.
func (l *Leg) Accepted() bool { return l.accepted }

// Credit divides the client's RDY among the accepted legs. Its indexes are indexes of All.
func (s *Legs[L]) Credit() *Credit { return &s.credit }

// All returns all legs, the accepted ones first. It is borrowed until the next call that changes them.
func (s *Legs[L]) All() []L { return s.all }

// Has says whether l is one of the legs: added and not removed yet.
func (s *Legs[L]) Has(l L) bool { return slices.Contains(s.all, l) }

// Follow compares the legs with the nodes that lead partitions of the topic now. The owner must unsubscribe at the legs
// in leave and remove them, and ask the nodes in join.
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

// Add adds a leg whose leader has been asked.
func (s *Legs[L]) Add(l L) { s.all = append(s.all, l) }

// Accept notes that the leader of l has accepted the subscription. It returns false if l was removed while the answer
// was on its way, or if the answer came twice.
func (s *Legs[L]) Accept(l L) bool {
	i := slices.Index(s.all, l)
	if i < 0 || l.leg().accepted {
		return false
	}
	at := s.credit.Count()
	s.all = slices.Insert(slices.Delete(s.all, i, i+1), at, l)
	s.credit.Add(&l.leg().CreditLeg)
	l.leg().accepted = true
	s.lack = slices.DeleteFunc(s.lack, func(n replicate.NodeID) bool { return n == l.leg().Node })
	s.answered(l)
	return true
}

// Remove removes a leg and frees its credit. It does nothing if the leg was removed before.
func (s *Legs[L]) Remove(l L) {
	if i := slices.Index(s.all, l); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
	s.credit.Remove(&l.leg().CreditLeg)
	s.answered(l)
}

// Lack says what it means that a leader has no such channel.
type Lack uint8

const (
	LackUnclear Lack = iota // others have not answered yet: ask again
	LackNew                 // others have the channel: this one leads a new partition and needs it, too
	LackGone                // no leader has it: the channel was deleted
)

// Lacks notes that the leader of l has answered that it has no such channel. leaders are the leaders of all partitions
// that the client wants; 0: a partition has none now. The owner removes l.
func (s *Legs[L]) Lacks(l L, leaders []replicate.NodeID) Lack {
	if s.credit.Count() > 0 {
		return LackNew
	}
	if node := l.leg().Node; !slices.Contains(s.lack, node) {
		s.lack = append(s.lack, node)
	}
	s.lack = slices.DeleteFunc(s.lack, func(n replicate.NodeID) bool { return !slices.Contains(leaders, n) })
	for _, n := range leaders {
		if !slices.Contains(s.lack, n) {
			return LackUnclear
		}
	}
	return LackGone
}

// At returns the accepted leg at a node, and its index. ok is false if there is none.
func (s *Legs[L]) At(node replicate.NodeID) (l L, index int, ok bool) {
	i := slices.IndexFunc(s.all, func(l L) bool { return l.leg().Node == node && l.leg().accepted })
	if i < 0 {
		return l, 0, false
	}
	return s.all[i], i, true
}

// AwaitFirst begins to await the first answer of each leg that is asked but not accepted now. The answer counts as
// given when the leg is accepted or removed. Awaited returns how many answers are missing.
func (s *Legs[L]) AwaitFirst() {
	for _, l := range s.all {
		if !l.leg().accepted && !l.leg().first {
			l.leg().first = true
			s.firsts++
		}
	}
}

// Awaited returns the number of first answers that are missing.
func (s *Legs[L]) Awaited() int { return s.firsts }

func (s *Legs[L]) answered(l L) {
	if l.leg().first {
		l.leg().first = false
		s.firsts--
	}
}
