package client

import (
	"slices"
	"strings"
	"time"
)

// spread decides at which nodes a consumer subscribes, and how many messages and bytes each of them may send ahead. It
// does no I/O and reads no clock: Consumer.run tells it what happened, asks for the next step, and does it.
//
// Invariants:
//
//   - There is at most one subscription per node. It exists only at nodes that lead a partition of those meant, and
//     over a connection that works.
//   - A partition without a leader counts for the node that led it last, which may lead it again: a subscription is
//     given up only for a leader that is known, because giving it up makes others get its messages again.
//   - The shares of the nodes add up to the consumer's limits. But a share is at least 1, so that each node may send
//     something; the sum exceeds the limit by less than the number of nodes, or is that number.
//   - What ended, by the node's decision or with its connection, is tried again after a pause.
type spread struct {
	limit   quota
	only    int                           // the partition that is meant; negative: all
	pause   func(fails int) time.Duration // before the next attempt
	leaders []string                      // by partition: the newest one that is known; empty: none ever was
	seats   []*seat                       // by address
}

// quota is how many messages may be in flight, and how many of their bytes.
type quota struct{ messages, bytes int }

// seat is what spread knows of a node.
type seat struct {
	address    string
	partitions int   // that it leads, of those meant
	share      quota // of the limits
	linked     bool  // it can be reached
	joined     bool  // there is a subscription, or it was asked for
	told       quota // the share that the subscription has
	fails      int   // since it was last accepted
	notBefore  time.Time
	err        error // why the newest attempt is refused for good
}

// move is what a consumer does next.
type move struct {
	do    moveVerb
	seat  *seat
	share quota     // with moveJoin and moveShare
	until time.Time // with moveWait; zero: until something happens
}

type moveVerb uint8

const (
	moveWait   moveVerb = iota
	moveJoin            // subscribe at the node, then call accepted or ended
	moveShare           // tell the node its new share
	moveLeave           // end the subscription: the node leads nothing any more
	moveForget          // the node is needed no more
)

// lead notes the leaders of all partitions; empty: none.
func (s *spread) lead(leaders []string) {
	for len(s.leaders) < len(leaders) {
		s.leaders = append(s.leaders, "")
	}
	for _, x := range s.seats {
		x.partitions = 0
	}
	all := 0
	for p := range s.leaders {
		if p < len(leaders) && leaders[p] != "" {
			s.leaders[p] = leaders[p]
		}
		if at := s.leaders[p]; at != "" && (s.only < 0 || s.only == p) {
			s.seat(at).partitions++
			all++
		}
	}
	// upTo is limit*n/all, rounded down. The product of limit and n may be more than an int of 32 bits can say.
	upTo := func(limit, n int) int { return limit/all*n + limit%all*n/all }
	before := 0
	for _, x := range s.seats {
		after := before + x.partitions
		part := func(limit int) int { return max(upTo(limit, after)-upTo(limit, before), 1) }
		if x.share = (quota{}); x.partitions > 0 {
			x.share = quota{part(s.limit.messages), part(s.limit.bytes)}
		}
		before = after
	}
}

// seat returns the seat of a node, which it makes if it is new.
func (s *spread) seat(address string) *seat {
	at, found := slices.BinarySearchFunc(s.seats, address, func(x *seat, a string) int {
		return strings.Compare(x.address, a)
	})
	if !found {
		s.seats = slices.Insert(s.seats, at, &seat{address: address})
	}
	return s.seats[at]
}

// connected notes that the node can be reached.
func (s *spread) connected(x *seat) {
	if !x.linked {
		x.linked, x.err = true, nil
	}
}

// disconnected notes that the node cannot be reached; refusal says why for good, if so. Its subscription is lost.
func (s *spread) disconnected(x *seat, refusal error) {
	x.linked, x.joined = false, false
	if refusal != nil {
		x.err = refusal
	}
}

// accepted notes that the node has accepted the subscription.
func (s *spread) accepted(x *seat) { x.fails, x.err = 0, nil }

// ended notes that the node has refused or ended the subscription. With verdictRefused, err says why.
func (s *spread) ended(x *seat, now time.Time, v verdict, err error) {
	if !x.joined {
		return
	}
	x.joined = false
	x.fails++
	if x.notBefore = now.Add(s.pause(x.fails)); v == verdictRefused {
		x.err = err
	}
}

// refusal returns the error with which a node has refused the consumer for good at the newest attempt, or nil if none
// has.
func (s *spread) refusal() error {
	for _, x := range s.seats {
		if x.err != nil && x.partitions > 0 {
			return x.err
		}
	}
	return nil
}

// step returns what to do next. The caller does it and calls step again; after moveWait it first waits.
func (s *spread) step(now time.Time) move {
	var until time.Time
	for i, x := range s.seats {
		switch {
		case x.partitions == 0 && x.joined:
			x.joined = false
			return move{do: moveLeave, seat: x}
		case x.partitions == 0:
			s.seats = slices.Delete(s.seats, i, i+1)
			return move{do: moveForget, seat: x}
		case x.joined && x.told != x.share:
			x.told = x.share
			return move{do: moveShare, seat: x, share: x.share}
		case x.joined || !x.linked:
		case !now.Before(x.notBefore):
			x.joined, x.told = true, x.share
			return move{do: moveJoin, seat: x, share: x.share}
		case until.IsZero() || x.notBefore.Before(until):
			until = x.notBefore
		}
	}
	return move{until: until}
}
