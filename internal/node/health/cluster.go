package health

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Presence says whether a node takes part in the cluster.
type Presence string

// The presences of a node.
const (
	Live    Presence = "live"     // it has a lease, or it answers while the store is silent
	NoLease Presence = "no_lease" // it is the node that answers, and it has no lease: it runs and serves nothing
	Dead    Presence = "dead"     // it has no lease, or its process was seen to end
	Unknown Presence = "unknown"  // the store is silent and nothing younger is known
)

// View is what a node knows about the cluster besides the store's rows. The ages are those of the moment at which the
// View was made.
type View struct {
	Self   replicate.NodeID
	Leased bool // this node has a lease: it may lead
	// StoreAge is the time since the metadata store last answered this node. LeaseLength is the time for which such an
	// answer lets the node serve; beyond it, the store's rows are too old to say who is alive.
	StoreAge, LeaseLength time.Duration
	// Connected has the nodes to which a connection is open. Gone has the nodes whose process was seen to end and that
	// have not connected since, with the time that has passed.
	Connected map[replicate.NodeID]bool
	Gone      map[replicate.NodeID]time.Duration
	// Heard has the time since each node was last heard of, over a connection or by its lease, or since this process
	// learned that it exists. A node that is not in it: not known.
	Heard map[replicate.NodeID]time.Duration
	// Unconnected has the nodes to which no connection has been open for longer than a lease, although the store
	// says that they are alive, with the time since there was one, since they live, or since this process knows
	// them.
	Unconnected map[replicate.NodeID]time.Duration
	// StoreNodes has the names of the nodes that run the metadata store, by this node's settings (cluster-peers); nil:
	// the store is not run by nodes.
	StoreNodes []string
	Store      Store

	// Shown has the certificates that nodes showed last, whether they were taken or not, and Wall is the wall clock.
	Shown map[replicate.NodeID]*Certificate
	Wall  time.Time
}

// Store is what a node knows of the metadata store besides whether it answers.
type Store struct {
	Full  string   // why it takes no changes, and what to do; "": it takes them
	Apart []string // members, as NODE (HOST:PORT), that the member on this node cannot reach, sorted
	Fault string   // why the member on this node does not do its part, and what to do; "": it does, or there is none
}

// Trusting returns the View of a node that believes the rows of the store, and knows nothing else.
func Trusting(self replicate.NodeID) View { return View{Self: self, Leased: true} }

// StoreSilent says whether the store has not answered for so long that its rows do not tell who is alive.
func (v *View) StoreSilent() bool { return v.StoreAge > v.LeaseLength }

// Presence returns whether a node takes part, and since when: of one that is dead or not known, the time since it was
// last heard of; otherwise the age of the fact that says so. The youngest fact wins: a process
// that was seen to end is dead whatever the rows say; while the store answers, the rows count; after that only a
// connection shows that a node is alive.
func (v *View) Presence(n *meta.Node) (Presence, time.Duration) {
	gone, isGone := v.Gone[n.ID]
	switch {
	case n.ID == v.Self && v.Leased:
		return Live, 0
	case n.ID == v.Self:
		return NoLease, v.StoreAge
	case isGone:
		return Dead, gone
	case !v.StoreSilent() && n.Live:
		return Live, v.StoreAge
	case !v.StoreSilent():
		return Dead, v.silence(n)
	case v.Connected[n.ID]:
		return Live, 0
	case !n.Live:
		return Dead, v.silence(n) // it was dead before the store fell silent, and has not connected since
	}
	return Unknown, v.silence(n)
}

// silence returns the time since a node was last heard of; at least that since the store answered, if it is not known.
func (v *View) silence(n *meta.Node) time.Duration {
	if heard, ok := v.Heard[n.ID]; ok {
		return heard
	}
	return v.StoreAge
}

// IsLive is Presence for callers that only ask for [Live].
func (v *View) IsLive(n *meta.Node) bool {
	p, _ := v.Presence(n)
	return p == Live
}

// Serves says whether the process that was granted the leadership of p is alive. A restarted node has another boot and
// does not lead until it is elected again. p is nil if the row has not arrived yet.
func (v *View) Serves(s *meta.Snapshot, p *meta.Partition) bool {
	if p == nil {
		return false
	}
	n := s.Nodes[p.State.Leader]
	return n != nil && n.Boot == p.State.Boot && v.IsLive(n)
}

// inSync returns how many members of the ISR of p are alive.
func (v *View) inSync(s *meta.Snapshot, p *meta.Partition) (count int) {
	for _, m := range p.State.ISR {
		if n := s.Nodes[m.Node]; n != nil && v.IsLive(n) {
			count++
		}
	}
	return count
}

// Partitions counts partitions. A partition may be in several of the counts of trouble.
type Partitions struct {
	Count           int // of all topics
	Led             int // led by this node
	Forwarded       int // led by a live node to which this node is connected
	UnderReplicated int // fewer live in-sync replicas than replicas, or than the topic wants and there are nodes
	BelowMinISR     int // too few live in-sync replicas to take writes
	Leaderless      int // no live leader: neither writes nor reads
	Damaged         int // a replica cannot read a part of its log; contested ones do not count
	Contested       int // a replica has messages that its leader's log lacks: an operator has to choose
	Short           int // a member of the ISR ended below what it had acknowledged, and has not caught up yet
	HeldBack        int // under-replicated because this node is not connected to a living one
}

// Copy names a copy of a partition for a sentence.
type Copy struct {
	Topic     string
	Partition uint32
	Node      string // that has it
	Leader    string // of the partition
}

// before says which of two copies is named, if only one is.
func (c *Copy) before(o *Copy) bool {
	return cmp.Or(cmp.Compare(c.Topic, o.Topic), cmp.Compare(c.Partition, o.Partition), cmp.Compare(c.Node, o.Node)) < 0
}

// Cluster is what a node of a cluster knows about the cluster.
type Cluster struct {
	View
	Partitions
	Name          string   // of this node
	Draining      bool     // this node is being drained
	NodeCount     int      // registered nodes, with this one
	Dead, Unknown []string // names of the others that are not live, sorted
	UnknownFor    time.Duration
	NotJoined     []string // names in View.StoreNodes without a registered node, sorted
	Redundancy    Redundancy

	// NotConnected and NotConnectedFor are what View.Unreached returns.
	NotConnected    []string
	NotConnectedFor time.Duration

	// WithUnknownTopics has the names of the other nodes, live or not, whose data directories have topics that the
	// cluster does not know, sorted.
	WithUnknownTopics []string

	// DeadCertificates says, for dead nodes, that the certificates that they showed last are not valid now, sorted.
	DeadCertificates []string

	// The first copy, by its topic's name, of those that are counted in Partitions; nil: there is none.
	FirstContested, FirstShort *Copy
}

// Look combines the rows of the store with what the node knows itself.
func Look(s *meta.Snapshot, v View) *Cluster {
	c := &Cluster{View: v, Name: s.NodeName(v.Self), NodeCount: len(s.Nodes)}
	c.NotConnected, c.NotConnectedFor = v.Unreached(s)
	for id, n := range s.Nodes {
		if id == v.Self {
			c.Draining = n.Draining
			continue
		}
		if n.UnknownTopics > 0 {
			c.WithUnknownTopics = append(c.WithUnknownTopics, n.Name)
		}
		switch p, age := v.Presence(n); p {
		case Dead:
			c.Dead = append(c.Dead, n.Name)
			if words := v.shownWords(n.Name, v.Shown[id]); words != "" {
				c.DeadCertificates = append(c.DeadCertificates, words)
			}
		case Unknown:
			c.Unknown, c.UnknownFor = append(c.Unknown, n.Name), age
		}
	}
	slices.Sort(c.Dead)
	slices.Sort(c.DeadCertificates)
	slices.Sort(c.Unknown)
	slices.Sort(c.WithUnknownTopics)
	c.NotJoined = v.notJoined(s)
	for _, t := range s.Topics {
		for n := range t.Partitions {
			p := s.Partitions.Get(meta.PartitionID{Topic: t.ID, Partition: uint32(n)})
			c.count(s, p)
			if p != nil {
				c.countCopies(s, t.Name, p)
			}
		}
	}
	c.Redundancy = c.redundancy(s)
	return c
}

// notJoined returns the names of the nodes that the settings expect to run the metadata store, and that are not
// registered with it.
func (v *View) notJoined(s *meta.Snapshot) []string {
	if len(v.StoreNodes) == 0 {
		return nil
	}
	missing := make(map[string]bool, len(v.StoreNodes))
	for _, name := range v.StoreNodes {
		missing[name] = true
	}
	for _, n := range s.Nodes {
		delete(missing, n.Name)
	}
	return slices.Sorted(maps.Keys(missing))
}

// count adds one partition. p is nil if its row has not arrived yet.
func (c *Cluster) count(s *meta.Snapshot, p *meta.Partition) {
	c.Count++
	serves := c.Serves(s, p)
	if !serves {
		c.Leaderless++
	}
	if p == nil {
		return
	}
	switch {
	case !serves:
	case p.State.Leader == c.Self:
		c.Led++
	case c.Connected[p.State.Leader]:
		c.Forwarded++
	}
	inSync := c.inSync(s, p)
	if inSync < wanted(s, s.Topics[p.ID.Topic], p) {
		c.UnderReplicated++
		if c.heldBack(s, p) {
			c.HeldBack++
		}
	}
	if inSync < p.State.MinISR {
		c.BelowMinISR++
	}
}

// countCopies adds what the row of a partition says of its copies.
func (c *Cluster) countCopies(s *meta.Snapshot, topic string, p *meta.Partition) {
	count := func(copies []replicate.Member, n *int, first **Copy) {
		if len(copies) == 0 {
			return
		}
		*n++
		for _, m := range copies {
			named := &Copy{topic, p.ID.Partition, s.NodeName(m.Node), s.NodeName(p.State.Leader)}
			if first != nil && (*first == nil || named.before(*first)) {
				*first = named
			}
		}
	}
	count(p.Unreadable(), &c.Damaged, nil)
	count(p.Contested, &c.Contested, &c.FirstContested)
	count(p.State.Short, &c.Short, &c.FirstShort)
}

// StateOf returns the worst condition that holds for a partition.
func (v *View) StateOf(s *meta.Snapshot, p *meta.Partition) PartitionState {
	switch {
	case !v.Serves(s, p):
		return StateLeaderless
	case v.inSync(s, p) < p.State.MinISR:
		return StateBelowMinISR
	case v.inSync(s, p) < wanted(s, s.Topics[p.ID.Topic], p):
		return StateUnderReplicated
	}
	return StateOK
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
