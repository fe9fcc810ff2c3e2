package machine

import (
	"cmp"
	"slices"
)

// Limits of ClockPeers, in ns.
const (
	// ClockDiffersNs is the least difference of two clocks that counts. Time services keep clocks within some ms.
	ClockDiffersNs = 1e9
	// clockAgreesNs: clocks that differed agree again below this. The gap keeps a verdict from changing at each sample.
	clockAgreesNs = 750e6
	// clockRenewNs is the age from which a sample gives way to a less precise one: clocks drift.
	clockRenewNs = 150e9
	// ClockForgetNs is the age at which a sample is forgotten.
	ClockForgetNs = 300e9
)

// ClockSample is one comparison of this node's clock with that of another node.
type ClockSample struct {
	Node    uint32 // the other one
	AheadNs int64  // by how much this node's clock is ahead; below 0: it is behind
	ErrorNs int64  // AheadNs is wrong by this much at most
}

// SampleClock returns what an answer of another node shows: its clock said remote at some moment between before and
// after, which are times of this node's clock. All are in ns.
func SampleClock(node uint32, before, remote, after int64) ClockSample {
	half := (after - before + 1) / 2
	return ClockSample{Node: node, AheadNs: before + half - remote, ErrorNs: half}
}

// ClockPeers compares this node's clock with those of the other nodes, and decides whether this one differs. Its inputs
// are samples, times of any clock that does not jump, and the members of the cluster. It keeps the most precise recent
// sample of each node. A sample that excludes the kept one replaces it, because the other node was restarted with
// another clock, or this machine was suspended.
//
// The zero value knows of no other clock. It has no lock; clusterNode.exitedMu guards the one of a node. A crash loses
// it: the next process has another clock anyway.
type ClockPeers struct {
	peers []clockPeer // sorted by node
}

type clockPeer struct {
	ClockSample
	at      int64 // when the sample was taken
	differs bool  // for certain, by ClockDiffersNs, since a sample said so; until one says clockAgreesNs for certain
}

// ClockVerdict says how this node's clock is to those of the others.
type ClockVerdict struct {
	// Differs: the clock certainly differs from those of more than half of the members that are known, this one
	// included. Undecided: from those of just half of them, so that nobody can tell which half is wrong.
	Differs, Undecided bool
	AheadNs            int64    // if one of them holds, the median difference to the clocks of From
	From               []uint32 // the nodes whose clocks differ from this one, whether or not one of them holds; sorted
}

// Saw takes a sample of time now.
func (c *ClockPeers) Saw(s ClockSample, now int64) {
	at, known := slices.BinarySearchFunc(c.peers, s.Node, func(p clockPeer, n uint32) int {
		return cmp.Compare(p.Node, n)
	})
	if !known {
		c.peers = slices.Insert(c.peers, at, clockPeer{ClockSample: s, at: now})
	}
	p := &c.peers[at]
	excludes := magnitude(s.AheadNs-p.AheadNs) > s.ErrorNs+p.ErrorNs
	if !excludes && s.ErrorNs > p.ErrorNs && now-p.at < clockRenewNs {
		return
	}
	p.ClockSample, p.at = s, now
	switch apart := magnitude(s.AheadNs); {
	case apart-s.ErrorNs >= ClockDiffersNs:
		p.differs = true
	case apart+s.ErrorNs < clockAgreesNs:
		p.differs = false
	}
}

// Keep forgets the nodes that are no members any more, and samples that are too old at time now.
func (c *ClockPeers) Keep(now int64, member func(node uint32) bool) {
	c.peers = slices.DeleteFunc(c.peers, func(p clockPeer) bool {
		return now-p.at >= ClockForgetNs || !member(p.Node)
	})
}

// Samples returns the kept samples, sorted by node.
func (c *ClockPeers) Samples() []ClockSample {
	all := make([]ClockSample, 0, len(c.peers))
	for i := range c.peers {
		all = append(all, c.peers[i].ClockSample)
	}
	return all
}

// Judge returns the present verdict.
func (c *ClockPeers) Judge() (v ClockVerdict) {
	var ahead []int64
	for i := range c.peers {
		if p := &c.peers[i]; p.differs {
			v.From, ahead = append(v.From, p.Node), append(ahead, p.AheadNs)
		}
	}
	members := len(c.peers) + 1
	v.Differs, v.Undecided = 2*len(ahead) > members, 2*len(ahead) == members
	if v.Differs || v.Undecided {
		slices.Sort(ahead)
		v.AheadNs = ahead[len(ahead)/2]
	}
	return v
}

func magnitude(ns int64) int64 { return max(ns, -ns) }
