package cluster

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Placing decides where replicas go when a node has joined or left. It is pure: a snapshot gives a list of moves.
//
// A layout is better than another one if, in this order,
//
//	1  fewer replicas are on nodes that are gone
//	2  the replicas of partitions are more evenly in the racks: the sum of squares of their counts is smaller
//	3  the replicas are more evenly on the nodes: likewise
//	4  the preferred leaders are more evenly on the nodes: likewise
//
// Each proposal makes the layout better in this order, so proposals end: the numbers are natural, and no layout comes
// twice. A proposal of 1 to 3 copies a partition; one of 4 only changes the order of a partition's replicas.

// MaxProposalCount bounds the proposals that one call of Rebalancing returns.
const MaxProposalCount = 200

// Proposal is one step of a rebalance: partition ID gets a replica on To in place of that on From. If To holds a
// replica already, the two change places in the list, and To becomes the preferred leader.
type Proposal struct {
	ID       meta.PartitionID
	From, To replicate.NodeID
	Swap     bool // To holds a replica already
}

// Rebalancing returns the steps that make the layout of a snapshot as even as single steps can make it, at most
// MaxProposalCount of them. It takes moves that are under way as done. gone is a node that is not waited for any more;
// 0: none. It does not look at whether a partition is in sync: the controller begins only what can begin.
func Rebalancing(s *meta.Snapshot, gone replicate.NodeID) []Proposal {
	l := layoutOf(s, gone)
	var all []Proposal
	for len(all) < MaxProposalCount {
		p, ok := l.next(func(meta.PartitionID) bool { return true })
		if !ok {
			break
		}
		l.apply(&p)
		all = append(all, p)
	}
	return all
}

// layout is where the replicas are, once the moves that are under way have ended.
type layout struct {
	nodes    map[replicate.NodeID]*meta.Node
	takers   []replicate.NodeID // nodes that may get replicas, sorted
	gone     replicate.NodeID
	parts    []meta.PartitionID // sorted
	rackAt   int                // in parts: no partition before it can be more evenly in the racks
	replicas map[meta.PartitionID][]replicate.NodeID
	held     map[replicate.NodeID][]meta.PartitionID // the partitions that a node holds a replica of, sorted
	leads    map[replicate.NodeID]int                // whose preferred leader it is
	topics   map[topicNode]int                       // replicas of a topic on a node
}

type topicNode struct {
	topic uuid.UUID
	node  replicate.NodeID
}

func layoutOf(s *meta.Snapshot, gone replicate.NodeID) *layout {
	l := &layout{
		nodes: s.Nodes, gone: gone, replicas: map[meta.PartitionID][]replicate.NodeID{},
		held: map[replicate.NodeID][]meta.PartitionID{}, leads: map[replicate.NodeID]int{}, topics: map[topicNode]int{},
		parts: s.Partitions.IDs(),
	}
	for _, n := range candidates(s) {
		if !n.Draining && n.Rank() == 0 && n.ID != gone {
			l.takers = append(l.takers, n.ID)
		}
	}
	for _, id := range l.parts {
		p := s.Partitions.Get(id)
		if len(p.State.Replicas) == 0 {
			continue
		}
		l.replicas[id] = settled(p.State.Replicas, s.Moves[id])
		for _, n := range l.replicas[id] {
			l.held[n] = append(l.held[n], id)
			l.topics[topicNode{id.Topic, n}]++
		}
		l.leads[l.replicas[id][0]]++
	}
	return l
}

// settled returns the replicas that a partition has when its move has ended.
func settled(replicas []replicate.NodeID, m meta.Move) []replicate.NodeID {
	stays, goes := m.To, m.From
	if m.Cancel {
		stays, goes = m.From, m.To
	}
	var out []replicate.NodeID
	for _, n := range replicas {
		if n == goes {
			n = stays
		}
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// next returns the best next step among the partitions that may change, and false if there is none.
func (l *layout) next(may func(meta.PartitionID) bool) (Proposal, bool) {
	for _, find := range []func(func(meta.PartitionID) bool) (Proposal, bool){
		l.leave, l.spreadRacks, l.spreadNodes, l.spreadLeaders,
	} {
		if p, ok := find(may); ok {
			return p, true
		}
	}
	return Proposal{}, false
}

func (l *layout) apply(p *Proposal) {
	replicas := slices.Clone(l.replicas[p.ID])
	l.leads[replicas[0]]--
	from := slices.Index(replicas, p.From)
	if p.Swap {
		to := slices.Index(replicas, p.To)
		replicas[from], replicas[to] = p.To, p.From
	} else {
		replicas[from] = p.To
		l.held[p.From] = slices.DeleteFunc(slices.Clone(l.held[p.From]), func(id meta.PartitionID) bool { return id == p.ID })
		at, _ := slices.BinarySearchFunc(l.held[p.To], p.ID, comparePartitions)
		l.held[p.To] = slices.Insert(slices.Clone(l.held[p.To]), at, p.ID)
		l.topics[topicNode{p.ID.Topic, p.From}]--
		l.topics[topicNode{p.ID.Topic, p.To}]++
	}
	l.leads[replicas[0]]++
	l.replicas[p.ID] = replicas
}

func (l *layout) racks(id meta.PartitionID) map[string]int {
	racks := map[string]int{}
	for _, n := range l.replicas[id] {
		racks[l.rack(n)]++
	}
	return racks
}

func (l *layout) rack(n replicate.NodeID) string { return orNone(l.nodes[n]).Rack }

// taker returns the best node that may get the replica of a partition on from, among those for which fits is true.
func (l *layout) taker(
	id meta.PartitionID, from replicate.NodeID, fits func(to replicate.NodeID) bool,
) replicate.NodeID {
	racks := l.racks(id)
	racks[l.rack(from)]--
	var best replicate.NodeID
	for _, to := range l.takers {
		if slices.Contains(l.replicas[id], to) || !fits(to) {
			continue
		}
		if best == 0 || cmp.Or(
			cmp.Compare(racks[l.rack(to)], racks[l.rack(best)]),
			cmp.Compare(len(l.held[to]), len(l.held[best])),
		) < 0 {
			best = to
		}
	}
	return best
}

// leave moves a replica away from the node that is gone.
func (l *layout) leave(may func(meta.PartitionID) bool) (Proposal, bool) {
	if l.gone == 0 {
		return Proposal{}, false
	}
	for _, id := range l.held[l.gone] {
		if !may(id) {
			continue
		}
		if to := l.taker(id, l.gone, func(replicate.NodeID) bool { return true }); to != 0 {
			return Proposal{ID: id, From: l.gone, To: to}, true
		}
	}
	return Proposal{}, false
}

// spreadRacks moves a replica from a rack to one that has at least two fewer of the partition: then the sum of squares
// falls. The partitions before rackAt need not be looked at again: whether a partition has such a move depends on its
// own replicas only, and later steps do not make its racks worse. It takes the replica on the node that holds the most,
// rather not that of the preferred leader.
func (l *layout) spreadRacks(may func(meta.PartitionID) bool) (Proposal, bool) {
	several := map[string]bool{}
	for _, n := range l.takers {
		several[l.rack(n)] = true
	}
	if len(several) < 2 {
		return Proposal{}, false
	}
	for ; l.rackAt < len(l.parts); l.rackAt++ {
		id := l.parts[l.rackAt]
		if len(l.replicas[id]) < 2 || !may(id) {
			continue
		}
		racks := l.racks(id)
		from := slices.MaxFunc(l.replicas[id], func(a, b replicate.NodeID) int {
			return cmp.Or(
				cmpBool(l.moves(a), l.moves(b)),
				cmp.Compare(racks[l.rack(a)], racks[l.rack(b)]),
				cmp.Compare(len(l.held[a]), len(l.held[b])),
				cmpBool(a != l.replicas[id][0], b != l.replicas[id][0]),
			)
		})
		if !l.moves(from) {
			continue
		}
		to := l.taker(id, from, func(to replicate.NodeID) bool { return racks[l.rack(from)] >= racks[l.rack(to)]+2 })
		if to != 0 {
			return Proposal{ID: id, From: from, To: to}, true
		}
	}
	return Proposal{}, false
}

// moves says whether replicas may be taken from a node: those of a node that is away stay until it is gone or comes
// back, and a drain moves its own.
func (l *layout) moves(n replicate.NodeID) bool {
	is := l.nodes[n]
	return is != nil && is.Live && !is.Draining && n != l.gone
}

// spreadNodes moves a replica from a node to one that holds at least two fewer, if that does not make the racks worse.
// Of the partitions that can move, it takes one whose topic is the most uneven between the two nodes, and then one
// whose preferred leader's place moves to where there are fewer.
func (l *layout) spreadNodes(may func(meta.PartitionID) bool) (Proposal, bool) {
	byHeld := func(a, b replicate.NodeID) int {
		return cmp.Or(cmp.Compare(len(l.held[a]), len(l.held[b])), cmp.Compare(a, b))
	}
	least := slices.SortedFunc(slices.Values(l.takers), byHeld)
	var most []replicate.NodeID
	for n := range l.held {
		if l.moves(n) {
			most = append(most, n)
		}
	}
	slices.SortFunc(most, func(a, b replicate.NodeID) int { return byHeld(b, a) })
	for _, from := range most {
		for _, to := range least {
			if len(l.held[from]) < len(l.held[to])+2 {
				break
			}
			if id, ok := l.between(from, to, may); ok {
				return Proposal{ID: id, From: from, To: to}, true
			}
		}
	}
	return Proposal{}, false
}

// between returns the partition that should move from one node to another one.
func (l *layout) between(from, to replicate.NodeID, may func(meta.PartitionID) bool) (best meta.PartitionID, ok bool) {
	gain := func(id meta.PartitionID) (topic, leader int) {
		topic = l.topics[topicNode{id.Topic, from}] - l.topics[topicNode{id.Topic, to}]
		if l.replicas[id][0] == from {
			leader = l.leads[from] - l.leads[to] - 1
		}
		return topic, leader
	}
	across := l.rack(from) != l.rack(to)
	bestTopic, bestLeader := 0, 0
	for _, id := range l.held[from] {
		topic, leader := gain(id)
		if ok && cmp.Or(cmp.Compare(topic, bestTopic), cmp.Compare(leader, bestLeader)) <= 0 ||
			slices.Contains(l.replicas[id], to) || !may(id) {
			continue
		}
		if across {
			if racks := l.racks(id); racks[l.rack(from)] <= racks[l.rack(to)] {
				continue
			}
		}
		best, bestTopic, bestLeader, ok = id, topic, leader, true
	}
	return best, ok
}

// spreadLeaders makes another replica the preferred leader of a partition, if its node is that of at least two fewer.
func (l *layout) spreadLeaders(may func(meta.PartitionID) bool) (Proposal, bool) {
	var best Proposal
	gain := 1
	for _, id := range l.parts {
		if len(l.replicas[id]) == 0 || !l.moves(l.replicas[id][0]) {
			continue
		}
		from := l.replicas[id][0]
		for _, to := range l.replicas[id][1:] {
			if d := l.leads[from] - l.leads[to]; d > gain && slices.Contains(l.takers, to) && may(id) {
				best, gain = Proposal{ID: id, From: from, To: to, Swap: true}, d
			}
		}
	}
	return best, gain > 1
}
