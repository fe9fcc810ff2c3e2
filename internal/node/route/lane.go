package route

import "penstock/replicate"

// Lane decides when the puts of one partition may leave this node, which does not lead the partition, so that they keep
// their order even when the leader changes:
//
//	this node                                  the leader
//	1 sends a, b, c as run 7
//	                                           2 is not the leader any more: refuses a and all of run 7 (Refusals)
//	3 a comes back: nothing more is sent
//	4 b, c come back: sorted behind a
//	5 sends a, b, c to the new leader as run 8
//
// Without runs, the leader could refuse a because its inbox is full, and then accept b.
//
// A Lane does not know the puts themselves. Its owner (forward.Forwarder, under its mu) keeps them sorted by order,
// asks Next about the first put, and then reports what it did. A crash loses the Lane and its puts; none of them was
// answered.
//
//	in flight: all puts of one run, sent to one node
//	orders given so far: above low, and at most high
type Lane struct {
	inFlight  int              // number of puts that were sent and have no answer yet
	to        replicate.NodeID // the node that the run was sent to
	run       uint32           // number of the run
	broken    bool             // a put of the run was refused or may be lost: nothing is sent until all are answered
	frozen    bool             // see Freeze
	low, high uint64
}

// firstOrder is in the middle of the orders: puts that go in front of all others get lower orders, later puts higher
// ones.
const firstOrder = 1 << 62

// NewLane returns the lane of a partition. run is the number of its first run; no two runs of a partition have the same
// number.
func NewLane(run uint32) Lane { return Lane{run: run, low: firstOrder, high: firstOrder} }

// Move says what the owner must do with the first waiting put of a lane.
type Move uint8

const (
	Stay Move = iota // it waits, until something changes
	Send             // it is sent to the leader
	Keep             // it enters this node's inbox, because this node leads now
)

// Leader is what this node knows about the leader of a partition.
type Leader struct {
	Here      bool             // this node leads
	Node      replicate.NodeID // 0: not known
	Connected bool             // there is a connection to Node
}

// Next decides about the first waiting put. After Send, the owner calls Sent, unless the connection had no room.
func (l *Lane) Next(leader Leader) Move {
	switch {
	case l.frozen || l.broken:
		return Stay
	case leader.Here:
		if l.inFlight > 0 {
			return Stay // the previous leader has not answered the whole run yet
		}
		return Keep
	case leader.Node == 0 || !leader.Connected || l.inFlight > 0 && l.to != leader.Node:
		return Stay
	}
	return Send
}

// Run returns the number of the run in which the next put is sent.
func (l *Lane) Run() uint32 { return l.run }

// Sent notes that a put was sent to a node.
func (l *Lane) Sent(to replicate.NodeID) {
	l.to = to
	l.inFlight++
}

// Answered notes that a put is no longer in flight. refused says that the put was not stored and waits again. After the
// last answer of a run that was broken, by that or by Break, a new run begins, with the number next.
func (l *Lane) Answered(refused bool, next uint32) {
	if l.inFlight == 0 {
		panic("BUG: route: an answer to a put that was not sent")
	}
	l.broken = l.broken || refused
	if l.inFlight--; l.inFlight == 0 && l.broken {
		l.broken, l.run = false, next
	}
}

// Break ends the run: nothing is sent until all its puts are answered. The owner calls it when the connection to the
// node has ended, which may have lost any of them.
func (l *Lane) Break() { l.broken = l.inFlight > 0 }

// To returns the node to which the puts in flight were sent; 0: none is in flight.
func (l *Lane) To() replicate.NodeID {
	if l.inFlight == 0 {
		return 0
	}
	return l.to
}

// Freeze stops all puts until Thaw. The owner calls it when this node has lost the leadership: the puts in the inbox
// came before those that wait here, and will be inserted in front of them.
func (l *Lane) Freeze() { l.frozen = true }
func (l *Lane) Thaw()   { l.frozen = false }

// Last returns the order for a put that goes behind all others.
func (l *Lane) Last() uint64 {
	l.high++
	return l.high
}

// First returns the order for the first of n puts that go in front of all others. The following puts get the following
// orders.
func (l *Lane) First(n int) uint64 {
	l.low -= uint64(n)
	return l.low + 1
}

// Idle says whether the lane can be dropped, provided that no put waits in it.
func (l *Lane) Idle() bool { return l.inFlight == 0 && !l.frozen }
