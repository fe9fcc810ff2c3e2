package route

import "penstock/replicate"

// Lane decides when the puts of one partition may leave this node, which does not lead it, so that they keep their
// order whatever becomes of the leader:
//
//	this node                                  the leader
//	1 sends a, b, c as run 7
//	                                           2 leads no more: refuses a, and with it all of run 7 (Refusals)
//	3 a comes back: nothing more is sent
//	4 b, c come back: sorted behind a
//	5 sends a, b, c to the new leader as run 8
//
// Without runs, the leader could refuse a because its inbox is full, and then accept b.
//
// A Lane does not know the puts themselves. Its owner (forward.Forwarder, under its mu) keeps them sorted by their
// order, asks Next about the first one, and says what it did. A crash loses the Lane with its puts; none of them is
// answered.
//
//	in flight: all puts of one run, sent to one node
//	orders that were given: above low, and at most high
type Lane struct {
	inFlight  int              // number of puts that were sent and have no answer yet
	to        replicate.NodeID // the node that the run was sent to
	run       uint32           // number of the run
	broken    bool             // a put of the run came back: nothing is sent until all are answered
	frozen    bool             // see Freeze
	low, high uint64
}

// firstOrder divides the orders: puts that go before all others get lower ones, puts that come later higher ones.
const firstOrder = 1 << 62

// NewLane returns the lane of a partition whose first run gets a number. No two runs of a partition have the same one.
func NewLane(run uint32) Lane { return Lane{run: run, low: firstOrder, high: firstOrder} }

// Move is what the first waiting put of a lane does next.
type Move uint8

const (
	Stay Move = iota // it waits; there is nothing to do until something changes
	Send             // to the leader
	Keep             // this node leads now: it goes into the inbox here
)

// Leader is what this node knows of the leader of a partition.
type Leader struct {
	Here      bool             // it is this node
	Node      replicate.NodeID // 0: not known
	Connected bool             // there is a connection to Node
}

// Next says what the first waiting put does. Its owner calls Sent after Send, unless the connection had no room.
func (l *Lane) Next(leader Leader) Move {
	switch {
	case l.frozen || l.broken:
		return Stay
	case leader.Here:
		if l.inFlight > 0 {
			return Stay // the earlier leader has not answered all of the run yet
		}
		return Keep
	case leader.Node == 0 || !leader.Connected || l.inFlight > 0 && l.to != leader.Node:
		return Stay
	}
	return Send
}

// Run is the number of the run that the next put is sent in.
func (l *Lane) Run() uint32 { return l.run }

// Sent notes that a put was sent to a node.
func (l *Lane) Sent(to replicate.NodeID) {
	l.to = to
	l.inFlight++
}

// Answered notes that a put is no longer in flight. Refused: it was not stored and waits again. After the last put of a
// run of which one was refused, a new run begins and gets the number next.
func (l *Lane) Answered(refused bool, next uint32) {
	if l.inFlight == 0 {
		panic("BUG: route: an answer to a put that was not sent")
	}
	l.broken = l.broken || refused
	if l.inFlight--; l.inFlight == 0 && l.broken {
		l.broken, l.run = false, next
	}
}

// Freeze lets no put leave until Thaw. The owner calls it when this node has lost the leadership: the puts in the inbox
// came earlier than those that wait here, and are inserted before them.
func (l *Lane) Freeze() { l.frozen = true }

// Thaw ends Freeze.
func (l *Lane) Thaw() { l.frozen = false }

// Last returns the order of a put that goes behind all others.
func (l *Lane) Last() uint64 {
	l.high++
	return l.high
}

// First returns the order of the first of n puts that go before all others; those of the rest follow it.
func (l *Lane) First(n int) uint64 {
	l.low -= uint64(n)
	return l.low + 1
}

// Idle says whether a lane in which nothing waits can be forgotten.
func (l *Lane) Idle() bool { return l.inFlight == 0 && !l.frozen }
