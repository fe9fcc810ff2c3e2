package admin

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/internal/node/health"
	"penstock/replicate"
	"penstock/segment"
)

// Status is an overview of the cluster. The counts of trouble are independent: a partition may be in several.
type Status struct {
	Cluster    uuid.UUID `json:"cluster"`
	Revision   int64     `json:"revision"`
	Node       string    `json:"node"`       // the node that answers
	Joined     bool      `json:"joined"`     // the answering node is a live member, by what it knows now
	Controller string    `json:"controller"` // empty: there is none just now
	Nodes      []Node    `json:"nodes"`      // sorted by number

	Level       int `json:"level"`        // feature level in force
	WantedLevel int `json:"wanted_level"` // the level it is being raised to; no raise if not above Level

	TopicCount      int `json:"topics"`
	PartitionCount  int `json:"partitions"`
	UnderReplicated int `json:"under_replicated"` // fewer in-sync replicas than replicas
	BelowMinISR     int `json:"below_min_isr"`    // too few in-sync replicas to take writes
	Leaderless      int `json:"leaderless"`       // no live leader: neither writes nor reads
	Damaged         int `json:"damaged"`          // a replica cannot read a part of its log; contested ones do not count
	Contested       int `json:"contested"`        // a replica has what its leader's log lacks: an operator has to choose
	Short           int `json:"short"`            // a member of the ISR has not caught up with what it had acknowledged
	OneRack         int `json:"one_rack"`         // all replicas in one rack, although there are more racks

	Rebalance Rebalancing `json:"rebalance"`

	// AgeMs is the time since the metadata store last answered this node: the rows that this status is made of may be
	// that old. Who is live, and the counts of trouble, are by the youngest facts: see health.View.
	AgeMs   int64    `json:"age_ms"`
	Healthy bool     `json:"healthy"`
	Health  string   `json:"health"`  // one sentence about the answering node and the cluster, as /health says it
	Reasons []string `json:"reasons"` // what is wrong, the worst first
}

// Node is a member of the cluster and its load.
type Node struct {
	ID         replicate.NodeID `json:"id"`
	Name       string           `json:"name"`
	Live       bool             `json:"live"`
	Presence   health.Presence  `json:"presence"`    // live, no_lease, dead or unknown
	PresenceMs int64            `json:"presence_ms"` // age of the fact that says so
	Draining   bool             `json:"draining"`
	Disk       string           `json:"disk"` // good, slow, hung or failed, as reported by the node itself
	Controller bool             `json:"controller"`
	Leaders    int              `json:"leaders"`  // partitions whose row names it as leader, alive or not
	Replicas   int              `json:"replicas"` // partitions that have a replica on it
	InSync     int              `json:"in_sync"`  // partitions that have it in the ISR
	Needed     int              `json:"needed"`   // of these, those that have just min_isr members, or fewer
	Damaged    int              `json:"damaged"`  // partitions whose copy on it does not read back
	Contested  int              `json:"contested"`
	Short      int              `json:"short"`
	Shortened  int              `json:"shortened"` // by its own word: only if it was asked, or answers itself
	// UnknownTopics is how many topics its directory has that the cluster does not know: by its row.
	UnknownTopics int `json:"unknown_topics"`

	Version    string    `json:"version"`
	Level      int       `json:"level"`       // highest feature level that it knows
	StoreLevel int       `json:"store_level"` // level of its data directory
	Peer       string    `json:"peer"`        // HOST:PORT for other nodes
	Host       string    `json:"host"`
	NSQ        string    `json:"nsq"`
	HTTP       string    `json:"http"`
	HTTPS      string    `json:"https,omitempty"` // the same API over TLS
	Lookup     string    `json:"lookup"`
	Native     string    `json:"native"`
	Rack       string    `json:"rack"` // empty: the node names none
	Store      uuid.UUID `json:"store"`
	Boot       uuid.UUID `json:"boot"`

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
	AgeMs    int64   `json:"age_ms"` // as Status.AgeMs
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
	Damaged   []string       `json:"damaged"` // nodes that cannot read a part of their copy; no contested ones
	Contested []string       `json:"contested"`
	Short     []string       `json:"short"`
	Shortened []string       `json:"shortened"` // at most the answering node: nobody else knows it of its copy
	OneRack   bool           `json:"one_rack"`  // all replicas are in one rack, although there are more racks
}

// PartitionState is the worst condition that holds for a partition: see health.View.StateOf.
type PartitionState = health.PartitionState

// From good to bad.
const (
	StateOK              = health.StateOK
	StateUnderReplicated = health.StateUnderReplicated
	StateBelowMinISR     = health.StateBelowMinISR
	StateLeaderless      = health.StateLeaderless
)

// statusOf describes the cluster by the rows of s and by what the node f.Node knows besides them.
func statusOf(s *meta.Snapshot, f *health.Facts) *Status {
	c := f.Cluster
	st := &Status{
		Cluster: s.Cluster, Revision: s.Revision, Node: f.Node,
		Nodes: make([]Node, 0, len(s.Nodes)), TopicCount: len(s.Topics), PartitionCount: c.Count,
		UnderReplicated: c.UnderReplicated, BelowMinISR: c.BelowMinISR, Leaderless: c.Leaderless, Damaged: c.Damaged,
		Contested: c.Contested, Short: c.Short, AgeMs: c.StoreAge.Milliseconds(),
	}
	v := health.Judge(f)
	st.Healthy, st.Health, st.Reasons = v.Healthy, v.Health, v.Reasons
	st.Level, st.WantedLevel = s.Levels()
	st.Rebalance = rebalancingOf(s)
	index := make(map[replicate.NodeID]*Node, len(s.Nodes))
	for _, n := range s.Nodes {
		presence, age := c.Presence(n)
		st.Nodes = append(st.Nodes, Node{
			ID: n.ID, Name: n.Name, Live: presence == health.Live, Presence: presence, PresenceMs: age.Milliseconds(),
			Draining: n.Draining, Disk: n.Disk.String(), Controller: n.ID == s.Controller && presence == health.Live,
			Version: n.Version, Level: max(n.Level, 1), StoreLevel: max(n.StoreLevel, 1),
			UnknownTopics: n.UnknownTopics,
			Peer:          n.Peer, Host: n.Host, NSQ: n.NSQ, HTTP: n.HTTP, HTTPS: n.HTTPS, Lookup: n.Lookup,
			Native: n.Native, Rack: n.Rack, Store: n.Store, Boot: n.Boot,
		})
		if n.ID == s.Controller && presence == health.Live {
			st.Controller = n.Name
		}
		st.Joined = st.Joined || presence == health.Live && n.Name == f.Node
	}
	slices.SortFunc(st.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	for i := range st.Nodes {
		index[st.Nodes[i].ID] = &st.Nodes[i]
		if st.Nodes[i].ID == c.Self {
			st.Nodes[i].Shortened = f.Shortened
		}
	}
	for _, t := range s.Topics {
		for n := range t.Partitions {
			p := s.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(n)})
			addLoad(p, index)
			if p != nil && cluster.InOneRack(s, p.State.Replicas) {
				st.OneRack++
			}
		}
	}
	return st
}

// addLoad adds one partition to the loads of its nodes. p is nil if its row has not arrived yet.
func addLoad(p *meta.Partition, index map[replicate.NodeID]*Node) {
	if p == nil {
		return
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
		n := index[m.Node]
		if n == nil {
			continue
		}
		n.InSync++
		if len(p.State.ISR) <= int(p.State.MinISR) {
			n.Needed++
		}
	}
	count := func(copies []replicate.Member, field func(*Node) *int) {
		for _, m := range copies {
			if n := index[m.Node]; n != nil {
				*field(n)++
			}
		}
	}
	count(p.Unreadable(), func(n *Node) *int { return &n.Damaged })
	count(p.Contested, func(n *Node) *int { return &n.Contested })
	count(p.State.Short, func(n *Node) *int { return &n.Short })
}

func topicsOf(s *meta.Snapshot, v *health.View, topics []*meta.Topic) *Topics {
	all := &Topics{Revision: s.Revision, AgeMs: v.StoreAge.Milliseconds(), Topics: make([]Topic, 0, len(topics))}
	for _, t := range topics {
		row := Topic{
			Name: t.Name, ID: t.ID, Replicas: t.Replicas, MinISR: t.MinISR, Partitions: make([]Partition, 0, t.Partitions),
		}
		for n := range t.Partitions {
			row.Partitions = append(row.Partitions, partitionOf(s, v, meta.PartitionID{Topic: t.ID, Partition: uint32(n)}))
		}
		all.Topics = append(all.Topics, row)
	}
	slices.SortFunc(all.Topics, func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func partitionOf(s *meta.Snapshot, v *health.View, id meta.PartitionID) Partition {
	row := Partition{
		Partition: id.Partition, State: health.StateLeaderless, Replicas: []string{}, ISR: []string{}, Damaged: []string{},
		Contested: []string{}, Short: []string{}, Shortened: []string{},
	}
	p := s.Partitions.Get(id)
	if p == nil {
		return row
	}
	row.Leader, row.Epoch, row.Version, row.MinISR = nodeName(s, p.State.Leader), p.State.Epoch, p.State.Version,
		p.State.MinISR
	for _, n := range p.State.Replicas {
		row.Replicas = append(row.Replicas, nodeName(s, n))
	}
	row.OneRack = cluster.InOneRack(s, p.State.Replicas)
	for _, list := range []struct {
		names *[]string
		of    []replicate.Member
	}{
		{&row.ISR, p.State.ISR}, {&row.Damaged, p.Unreadable()}, {&row.Contested, p.Contested}, {&row.Short, p.State.Short},
	} {
		for _, m := range list.of {
			*list.names = append(*list.names, nodeName(s, m.Node))
		}
	}
	row.State = v.StateOf(s, p)
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
