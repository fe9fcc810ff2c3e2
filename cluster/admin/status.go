package admin

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"penstock/cluster"
	"penstock/engine/meta"
	"penstock/replicate"
	"penstock/segment"
)

// Status is an overview of the cluster. The four counts of trouble are independent: a partition may be in several.
type Status struct {
	Cluster    uuid.UUID `json:"cluster"`
	Revision   int64     `json:"revision"`
	Node       string    `json:"node"`       // the node that answers
	Joined     bool      `json:"joined"`     // the answering node is a live member
	Controller string    `json:"controller"` // empty: there is none just now
	Nodes      []Node    `json:"nodes"`      // sorted by number

	Level       int `json:"level"`        // feature level in force
	WantedLevel int `json:"wanted_level"` // the level it is being raised to; no raise if not above Level

	TopicCount      int `json:"topics"`
	PartitionCount  int `json:"partitions"`
	UnderReplicated int `json:"under_replicated"` // fewer in-sync replicas than replicas
	BelowMinISR     int `json:"below_min_isr"`    // too few in-sync replicas to take writes
	Leaderless      int `json:"leaderless"`       // no live leader: neither writes nor reads
	Damaged         int `json:"damaged"`          // a replica cannot read a part of its log
	OneRack         int `json:"one_rack"`         // all replicas in one rack, although there are more racks
}

// Node is a member of the cluster and its load.
type Node struct {
	ID         replicate.NodeID `json:"id"`
	Name       string           `json:"name"`
	Live       bool             `json:"live"`
	Draining   bool             `json:"draining"`
	Disk       string           `json:"disk"` // good, slow, hung or failed, as reported by the node itself
	Controller bool             `json:"controller"`
	Leaders    int              `json:"leaders"`  // partitions whose row names it as leader, alive or not
	Replicas   int              `json:"replicas"` // partitions that have a replica on it
	InSync     int              `json:"in_sync"`  // partitions that have it in the ISR
	Version    string           `json:"version"`
	Level      int              `json:"level"`       // highest feature level that it knows
	StoreLevel int              `json:"store_level"` // level of its data directory
	Peer       string           `json:"peer"`        // HOST:PORT for other nodes
	Host       string           `json:"host"`
	NSQ        string           `json:"nsq"`
	HTTP       string           `json:"http"`
	HTTPS      string           `json:"https,omitempty"` // the same API over TLS
	Lookup     string           `json:"lookup"`
	Native     string           `json:"native"`
	Rack       string           `json:"rack"` // empty: the node names none
	Store      uuid.UUID        `json:"store"`
	Boot       uuid.UUID        `json:"boot"`

	// Faults are the node's own counts of trouble since its start. NoFaults says why a live node did not report them.
	Faults   []Fault `json:"faults,omitempty"`
	NoFaults string  `json:"no_faults,omitempty"`
}

// Fault is one kind of trouble at a node: how often it occurred, and what it means.
type Fault struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
	Words string `json:"words"`
}

// Topics is the answer of /cluster/topics, sorted by name.
type Topics struct {
	Revision int64   `json:"revision"`
	Topics   []Topic `json:"topics"`
}

// Topic is a topic with its partitions, sorted by number.
type Topic struct {
	Name       string      `json:"name"`
	ID         uuid.UUID   `json:"id"`
	Replicas   int         `json:"replicas"`
	MinISR     int         `json:"min_isr"`
	Partitions []Partition `json:"partitions"`
}

// Partition is one partition's row, with nodes by name.
type Partition struct {
	Partition uint32         `json:"partition"`
	State     PartitionState `json:"state"`
	Leader    string         `json:"leader"` // the last one, if nobody could replace it; empty: never one
	Epoch     segment.Epoch  `json:"epoch"`
	Version   uint64         `json:"version"`
	Replicas  []string       `json:"replicas"` // the preferred leader comes first
	ISR       []string       `json:"isr"`
	MinISR    int            `json:"min_isr"`
	Damaged   []string       `json:"damaged"`  // nodes that cannot read a part of their copy
	OneRack   bool           `json:"one_rack"` // all replicas are in one rack, although there are more racks
}

// PartitionState is the worst condition that holds for a partition.
type PartitionState string

// From good to bad.
const (
	StateOK              PartitionState = "ok"
	StateUnderReplicated PartitionState = "under_replicated"
	StateBelowMinISR     PartitionState = "below_min_isr"
	StateLeaderless      PartitionState = "leaderless"
)

func statusOf(s *meta.Snapshot, self string) *Status {
	st := &Status{
		Cluster: s.Cluster, Revision: s.Revision, Node: self, Controller: nodeName(s, s.Controller),
		Nodes: make([]Node, 0, len(s.Nodes)), TopicCount: len(s.Topics),
	}
	st.Level, st.WantedLevel = s.Levels()
	index := make(map[replicate.NodeID]*Node, len(s.Nodes))
	for _, n := range s.Nodes {
		st.Nodes = append(st.Nodes, Node{
			ID: n.ID, Name: n.Name, Live: n.Live, Draining: n.Draining, Disk: n.Disk.String(), Controller: n.ID == s.Controller,
			Version: n.Version, Level: max(n.Level, 1), StoreLevel: max(n.StoreLevel, 1),
			Peer: n.Peer, Host: n.Host, NSQ: n.NSQ, HTTP: n.HTTP, HTTPS: n.HTTPS, Lookup: n.Lookup,
			Native: n.Native, Rack: n.Rack, Store: n.Store, Boot: n.Boot,
		})
		st.Joined = st.Joined || n.Live && n.Name == self
	}
	slices.SortFunc(st.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	for i := range st.Nodes {
		index[st.Nodes[i].ID] = &st.Nodes[i]
	}
	for _, t := range s.Topics {
		for n := range t.Partitions {
			st.count(s, s.Partitions[meta.PartitionID{Topic: t.ID, Partition: uint32(n)}], index)
		}
	}
	return st
}

// count adds one partition. p is nil if its row has not arrived yet.
func (st *Status) count(s *meta.Snapshot, p *meta.Partition, index map[replicate.NodeID]*Node) {
	st.PartitionCount++
	if !served(s, p) {
		st.Leaderless++
	}
	if p == nil {
		return
	}
	if len(p.State.ISR) < len(p.State.Replicas) {
		st.UnderReplicated++
	}
	if len(p.State.ISR) < p.State.MinISR {
		st.BelowMinISR++
	}
	if len(p.Damaged) > 0 {
		st.Damaged++
	}
	if cluster.InOneRack(s, p.State.Replicas) {
		st.OneRack++
	}
	if n := index[p.State.Leader]; n != nil {
		n.Leaders++
	}
	for _, r := range p.State.Replicas {
		if n := index[r]; n != nil {
			n.Replicas++
		}
	}
	for _, m := range p.State.ISR {
		if n := index[m.Node]; n != nil {
			n.InSync++
		}
	}
}

// served says whether the process that was granted the leadership is alive. A restarted node has another boot and does
// not lead until it is elected again.
func served(s *meta.Snapshot, p *meta.Partition) bool {
	if p == nil {
		return false
	}
	n := s.Nodes[p.State.Leader]
	return n != nil && n.Live && n.Boot == p.State.Boot
}

func topicsOf(s *meta.Snapshot, topics []*meta.Topic) *Topics {
	all := &Topics{Revision: s.Revision, Topics: make([]Topic, 0, len(topics))}
	for _, t := range topics {
		row := Topic{
			Name: t.Name, ID: t.ID, Replicas: t.Replicas, MinISR: t.MinISR, Partitions: make([]Partition, 0, t.Partitions),
		}
		for n := range t.Partitions {
			row.Partitions = append(row.Partitions, partitionOf(s, meta.PartitionID{Topic: t.ID, Partition: uint32(n)}))
		}
		all.Topics = append(all.Topics, row)
	}
	slices.SortFunc(all.Topics, func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func partitionOf(s *meta.Snapshot, id meta.PartitionID) Partition {
	row := Partition{
		Partition: id.Partition, State: StateLeaderless, Replicas: []string{}, ISR: []string{}, Damaged: []string{},
	}
	p := s.Partitions[id]
	if p == nil {
		return row
	}
	row.Leader, row.Epoch, row.Version, row.MinISR = nodeName(s, p.State.Leader), p.State.Epoch, p.State.Version,
		p.State.MinISR
	for _, n := range p.State.Replicas {
		row.Replicas = append(row.Replicas, nodeName(s, n))
	}
	for _, m := range p.State.ISR {
		row.ISR = append(row.ISR, nodeName(s, m.Node))
	}
	row.OneRack = cluster.InOneRack(s, p.State.Replicas)
	for _, m := range p.Damaged {
		row.Damaged = append(row.Damaged, nodeName(s, m.Node))
	}
	switch {
	case !served(s, p):
	case len(p.State.ISR) < p.State.MinISR:
		row.State = StateBelowMinISR
	case len(p.State.ISR) < len(p.State.Replicas):
		row.State = StateUnderReplicated
	default:
		row.State = StateOK
	}
	return row
}

// nodeName returns the name of a node, the number of a node that was removed, and "" for id 0.
func nodeName(s *meta.Snapshot, id replicate.NodeID) string {
	if n := s.Nodes[id]; n != nil {
		return n.Name
	}
	if id == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(id), 10)
}
