// Package meta defines what the nodes of a cluster agree on: which nodes there are, which topics exist, and which nodes
// replicate and lead each partition. The engine reads this state as a [Snapshot] and requests changes through a
// [Store]. It does not know how the nodes reach agreement; package cluster implements that on etcd.
//
// The values of this package are immutable once published: copy a value before changing it.
package meta

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/replicate"
	"penstock/segment"
)

// PartitionID names a partition for ever: a topic that was deleted and created again under the same name has another
// uuid.
type PartitionID = segment.Identity

// Node is a member of the cluster, alive or not.
type Node struct {
	ID   replicate.NodeID `json:"id"`   // assigned at the first join, never reused
	Name string           `json:"name"` // node_id of node.json
	// Store identifies the data directory: another Store means that this node's replicas are empty.
	Store   uuid.UUID `json:"store"`
	Boot    uuid.UUID `json:"boot"`    // of the process
	Version string    `json:"version"` // of the program

	Peer   string `json:"peer"` // HOST:PORT between nodes; the addresses below are for clients
	Host   string `json:"host"` // broadcast address
	NSQ    string `json:"nsq"`
	HTTP   string `json:"http"`
	HTTPS  string `json:"https,omitempty"` // the same API over TLS; empty also for versions that do not report it
	Lookup string `json:"lookup"`
	Native string `json:"native"`

	// Rack is where the node stands, as its operator names it; "" if that is not known. Nodes of the same rack may fail
	// together. A version that does not know racks keeps the field and places replicas without it.
	Rack string `json:"rack,omitempty"`

	// Level is the highest feature level that the process knows, and StoreLevel is the level of its directory. A
	// version that does not know levels reports 0, which means 1.
	Level      int `json:"level,omitzero"`
	StoreLevel int `json:"store_level,omitzero"`

	// Logged is the number of a group that the commit log of directory Store held durably: a lower bound of where that
	// log ends, as long as nothing of it is lost. 0: not known, also of versions that do not write it.
	Logged uint64 `json:"logged,omitzero"`

	// UnknownTopics is how many topics directory Store has that the metadata neither have nor list as deleted. The node
	// keeps their messages, and serves none. Versions that do not count them write 0.
	UnknownTopics int `json:"unknown_topics,omitzero"`

	// ClockDiffers: the clock of process Boot certainly differs from those of most nodes, as the node itself judges it
	// (machine.ClockPeers). Versions that do not compare clocks write false.
	ClockDiffers bool `json:"clock_differs,omitzero"`

	SinceMs int64 `json:"since_ms,omitzero"` // when the process registered, Unix time; for people

	Draining bool `json:"draining"` // it gives up its leaderships and, where other nodes can take them, its replicas
	Live     bool `json:"live"`     // it holds a lease

	Disk DiskState `json:"disk,omitempty"` // as the node itself reports it
}

// DiskState says how a node's disk answers. Any other value, such as one of a later version, counts as DiskSlow.
type DiskState string

const (
	DiskGood   DiskState = ""       // also of nodes that do not report a state
	DiskSlow   DiskState = "slow"   // or it hung a while ago: gets no leadership that another node can have
	DiskHung   DiskState = "hung"   // no write comes back
	DiskFailed DiskState = "failed" // hung for so long that nobody waits for it any more
)

func (d DiskState) String() string {
	if d == DiskGood {
		return "good"
	}
	return string(d)
}

// Rank orders nodes by preference for what they should lead and store: 0 is good. A node whose disk hangs or has failed
// comes last, and one whose clock differs counts like one whose disk is slow.
func (n *Node) Rank() int {
	if n.ClockDiffers {
		return max(n.Disk.Rank(), DiskSlow.Rank())
	}
	return n.Disk.Rank()
}

// Rank orders disks: 0 is good, and a hung or failed disk comes last. What chooses nodes asks for Node.Rank.
func (d DiskState) Rank() int {
	switch d {
	case DiskGood:
		return 0
	case DiskHung, DiskFailed:
		return 2
	}
	return 1
}

// Topic is a named set of partitions.
type Topic struct {
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	Partitions int       `json:"partitions"`
	Replicas   int       `json:"replicas"`
	MinISR     int       `json:"min_isr"`
	CreatedNs  int64     `json:"created_ns"`
	// MadeBy is the name of the token for which the topic counts; "": for nobody. A version that does not know it keeps
	// the field and divides nothing among tokens.
	MadeBy string `json:"made_by,omitzero"`

	Settings TopicSettings `json:"settings,omitzero"`
}

// Partition is the row of one partition. Compare-and-swap compares State.Epoch and State.Version.
type Partition struct {
	ID    PartitionID
	State replicate.State
	// Damaged are replicas that reported that they cannot read all that they hold, or that they are contested: none of
	// them is electable. Contested are those that hold what the leader's log lacks: an operator has to choose.
	Damaged, Contested []replicate.Member
	// Transfer is the last one that an operator has ordered. It is meant only while Epoch is the partition's epoch: see
	// TransferTo.
	Transfer Transfer
	Terms    []Term // the last leaders, oldest first, the present one included; at most MaxTermCount
}

// Transfer orders the leader of an epoch to hand the partition over to a node.
type Transfer struct {
	To    replicate.NodeID `json:"to"`
	Epoch segment.Epoch    `json:"epoch"`
}

// TransferTo returns the node to which the present leader is to hand the partition over; 0: none. An order ends with
// the epoch in which it was given, and when a rebalance or the end of a replica makes another replica the first. While
// the node is being drained or its clock differs, it waits.
func (p *Partition) TransferTo() replicate.NodeID {
	if p.Transfer.Epoch != p.State.Epoch || p.Transfer.To == p.State.Leader ||
		len(p.State.Replicas) == 0 || p.State.Replicas[0] != p.Transfer.To {
		return 0
	}
	return p.Transfer.To
}

// MaxTermCount bounds Partition.Terms.
const MaxTermCount = 8

// Term says which node began an epoch as the leader. Nothing is decided by it: it is for people who ask who led.
type Term struct {
	Epoch segment.Epoch    `json:"epoch"`
	Node  replicate.NodeID `json:"node"`
}

// LeaderIn returns the node that led the partition in an epoch; 0: the row does not say.
func (p *Partition) LeaderIn(epoch segment.Epoch) replicate.NodeID {
	for _, t := range p.Terms {
		if t.Epoch == epoch {
			return t.Node
		}
	}
	if p.State.Epoch == epoch {
		return p.State.Leader
	}
	return 0
}

// Move replaces the replica on From by one on To.
type Move struct {
	From, To replicate.NodeID
	Drain    bool // the controller began it, for a drain or a rebalance; otherwise an operator
	Cancel   bool // it is being undone
}

// Rebalance says whether the controller evens out how replicas lie on nodes and racks.
type Rebalance struct {
	Wanted bool `json:"wanted,omitempty"` // until nothing is left to do
	Paused bool `json:"paused,omitempty"` // nothing new begins; what is under way ends
	// Nodes are the members for which the layout was evened out last, as far as the controller acts by itself; sorted.
	Nodes []replicate.NodeID `json:"nodes,omitempty"`
	// Gone is a node that was away for so long that its replicas are made elsewhere; 0: none.
	Gone replicate.NodeID `json:"gone,omitempty"`
}

// NodeName returns the name of a node, or its number if it is not registered.
func (s *Snapshot) NodeName(id replicate.NodeID) string {
	if n := s.Nodes[id]; n != nil {
		return n.Name
	}
	return fmt.Sprint(id)
}

// GoneNode returns Rebalance.Gone, or 0 if that node is back or was removed.
func (s *Snapshot) GoneNode() replicate.NodeID {
	if n := s.Nodes[s.Rebalance.Gone]; n != nil && !n.Live {
		return n.ID
	}
	return 0
}

// Goes returns the node whose replica the move of a partition takes away, while both nodes hold one; 0: none. If the
// move is being undone that is the new one, unless it leads already.
func (s *Snapshot) Goes(id PartitionID) replicate.NodeID {
	m, p := s.Moves[id], s.Partitions.Get(id)
	switch {
	case p == nil || !slices.Contains(p.State.Replicas, m.From) || !slices.Contains(p.State.Replicas, m.To):
		return 0
	case m.Cancel && p.State.Leader != m.To:
		return m.To
	}
	return m.From
}

// RebalanceOrder is what an operator wants of the rebalancing.
type RebalanceOrder string

// The orders.
const (
	RebalanceStart  RebalanceOrder = "start"
	RebalancePause  RebalanceOrder = "pause"
	RebalanceResume RebalanceOrder = "resume"
	RebalanceCancel RebalanceOrder = "cancel" // nothing is wanted any more; what is under way ends
)

// CopyState is what a node says of its copy of a partition.
type CopyState uint8

const (
	CopyWhole   CopyState = iota // it reads back
	CopyDamaged                  // a part of it does not read back
	// CopyContested: it has batches that its leader's log lacks and that were probably committed. It does not follow.
	CopyContested
)

// CopyOf returns what the row says of m.
func (p *Partition) CopyOf(m replicate.Member) CopyState {
	switch {
	case slices.Contains(p.Contested, m):
		return CopyContested
	case slices.Contains(p.Damaged, m):
		return CopyDamaged
	}
	return CopyWhole
}

// Unreadable returns the replicas that cannot read all that they hold: Damaged without Contested. Only these may be
// called damaged to an operator, who may wipe a damaged copy. The result must not be changed.
func (p *Partition) Unreadable() []replicate.Member {
	if len(p.Contested) == 0 {
		return p.Damaged
	}
	var out []replicate.Member
	for _, m := range p.Damaged {
		if !slices.Contains(p.Contested, m) {
			out = append(out, m)
		}
	}
	return out
}

// SetCopy notes in the row what m says of its copy.
func (p *Partition) SetCopy(m replicate.Member, state CopyState) {
	other := func(o replicate.Member) bool { return o.Node == m.Node }
	p.Damaged, p.Contested = slices.DeleteFunc(p.Damaged, other), slices.DeleteFunc(p.Contested, other)
	if state != CopyWhole {
		p.Damaged = append(p.Damaged, m)
	}
	if state == CopyContested {
		p.Contested = append(p.Contested, m)
	}
}

// TombstoneKey names a producer of a topic that lookups omit for a while (nsqlookupd's tombstones).
type TombstoneKey struct {
	Topic string
	Node  replicate.NodeID
}

// Snapshot is the whole state at one revision. It is immutable and may be kept.
type Snapshot struct {
	Revision   int64
	Generation uint64 // how often the metadata were restored from a backup
	Cluster    uuid.UUID
	Controller replicate.NodeID // 0: nobody at the moment
	Nodes      map[replicate.NodeID]*Node
	Topics     map[uuid.UUID]*Topic
	Names      map[string]*Topic // the same topics, by name
	Partitions Partitions
	Deleted    map[uuid.UUID]bool // explicit deletions: only these let a node remove data
	Tombstones map[TombstoneKey]time.Time
	Moves      map[PartitionID]Move // under way
	Rebalance  Rebalance

	Level       int // feature level in force; 0: the first
	WantedLevel int // the level to which the cluster is being raised; 0, or not above Level: none
}

// FeatureLevel returns the feature level in force.
func (s *Snapshot) FeatureLevel() int { return max(s.Level, 1) }

// Levels returns the level in force and the level to which the cluster is being raised, which is never lower.
func (s *Snapshot) Levels() (inForce, wanted int) {
	return s.FeatureLevel(), max(s.FeatureLevel(), s.WantedLevel)
}

// Change lists what has changed since the previous snapshot.
type Change struct {
	Snapshot   *Snapshot
	Partitions []PartitionID // whose row is new, changed or gone; each once
	Topics     []uuid.UUID   // new, changed or gone topics
	Nodes      []replicate.NodeID
}

// Errors of a Store, to be tested with errors.Is.
var (
	ErrExists   = errors.New("meta: it exists already; nothing was changed")
	ErrNotFound = errors.New("meta: there is no such topic, partition or node; nothing was changed")
	ErrReplicas = errors.New("meta: the topic cannot have that many replicas; nothing was changed")
	ErrConflict = errors.New(
		"meta: its state does not allow this, or somebody else was faster: nothing was changed; look at it again")
	ErrTooFewNodes = errors.New("meta: fewer nodes are alive than the topic needs replicas: nothing was changed; start " +
		"more nodes or ask for fewer replicas")
	ErrUnavailable = errors.New(
		"meta: the metadata store does not answer: no change is confirmed until it does, and what exists goes on until " +
			"the leases end; look at the etcd members")
	ErrForeign = errors.New("meta: the data directory belongs to another cluster than the one that was found: " +
		"nothing was changed; check the addresses and the data path")
	ErrNewerLevel = errors.New("meta: it is at a feature level that this version does not know")
	ErrLevel      = errors.New("meta: the feature level cannot be raised now; nothing was changed")
	// ErrNameHeld says that another process of this node's name answers.
	ErrNameHeld = errors.New("meta: another process has this node's name and answers: nothing was changed")
	ErrUnsafe   = errors.New("meta: refused because acknowledged messages could be lost; nothing was changed")
)

// Registration is what a node passes to Join, with the functions through which it hears of the cluster.
type Registration struct {
	Node Node // ID 0 at the first join: the store assigns one
	// Cluster is the cluster to which the node's data directory belongs; zero: none yet. If the store belongs to
	// another cluster, Join returns ErrForeign and changes nothing.
	Cluster uuid.UUID
	// Import are the topics of a single node's data directory when that node becomes the first node of a cluster. They
	// enter the store with this node as their only replica, unless they are there already.
	Import []ImportedTopic
	// Damaged are the partitions whose copies on this node cannot be relied on, as recovery found. Their rows say so
	// before the node is live, so that none of these copies is ever elected.
	Damaged []PartitionID
	// AllDamaged says the same of all copies that the rows place on this node: the node itself may not know of them any
	// more.
	AllDamaged bool
	// Founding is the feature level of the cluster if this node founds it. 0: the first level.
	Founding int
	// Raise durably raises the node's directory to a level. Join calls it before the node registers, if the cluster is
	// at a higher level or is being raised to one. nil: there is no directory.
	Raise func(level int) error
	// Life says what the directory is to the row that the cluster has of the node; nil: none. Join calls it before it
	// raises or writes anything. Life nil: as if it always answered LifeCurrent.
	Life func(row *Node) Life
	// Enter is called with the same row when Join is about to write this process into its place, and makes durable what
	// must be known before that. If it fails, Join does. nil: nothing has to be done.
	Enter func(row *Node) error
	// Holder asks the address of a row whose process holds a lease whether that process is still there. cluster is the
	// cluster's identity. It must return soon. nil: a living process is replaced at once.
	Holder func(ctx context.Context, row *Node, cluster uuid.UUID) Holder
	// Reaches says whether this node has a connection to another one now. Join and its goroutines call it; it must not
	// block. This node gives replicas only to nodes that it reaches. nil: it reaches all.
	Reaches func(node replicate.NodeID) bool
	// Replaced is called when another process has taken this node's name, or the node was removed: this process must
	// stop serving at once. Lease is not called after it. It must not block. nil: the lease ends by itself.
	Replaced func()
	// Seen is the newest state of the metadata that the node knew of, and Epochs the newest epoch in the log of each of
	// its copies. If the metadata are older, Join makes the leaders of these partitions compare their logs with those of
	// all members before anything is cut, and calls Older with the number of partitions. nil: nobody is told.
	Seen   Seen
	Epochs map[PartitionID]segment.Epoch
	Older  func(partitions int)
	// Changed is called by one goroutine: first with the whole state, then with every change, in order. It must not
	// block for long.
	Changed func(*Change)
	// Lease is called whenever the lease was extended: the node may serve as leader until then (by Clock, with the
	// margin subtracted). It must not block.
	Lease func(until time.Time)
	// Clock measures leases. It does not jump, and it goes on while the whole machine is suspended, as the store's own
	// clock does. nil: time.Now, whose monotonic part stands still during a suspension. Clock is read before the store
	// is asked. Any goroutine may call it.
	Clock func() time.Time
}

// Life says what a node's directory is to the row that the cluster has of the node. The directory remembers the
// processes that ran on it, and the row has the process that registered last.
type Life int

// The verdicts.
const (
	// LifeFirst: there is nothing to compare yet. The directory is trusted.
	LifeFirst Life = iota
	// LifeCurrent: the row's process ran on this directory, and nothing else ran since.
	LifeCurrent
	// LifePast: the row's process ran on this directory, and later ones registered since: the metadata are older.
	LifePast
	// LifeUnknown: the row's process did not run on this directory, as far as the directory knows, or it wrote more to
	// the commit log than the directory has. The directory is an older state of the one that the node ran on last, or
	// the original of a copy that ran on: its copies may lack what the node acknowledged.
	LifeUnknown
)

// Holder says who holds the name under which a process wants to register, as far as the address in its row tells.
type Holder int

// The answers.
const (
	// HolderSilent: nobody answers there, and nothing says that the process is gone.
	HolderSilent Holder = iota
	// HolderGone: the process that wants to register has that address itself, or nobody listens there.
	HolderGone
	// HolderAnswers: the process of the row answers there.
	HolderAnswers
)

// Seen is the newest state of the metadata that a node knows of.
type Seen struct {
	Cluster    uuid.UUID `json:"cluster"`
	Generation uint64    `json:"generation,omitzero"` // how often the metadata were restored from a backup
	Revision   int64     `json:"revision"`            // of the store, within the generation
}

// After says whether s is of a later moment than o. Both must be of one cluster.
func (s Seen) After(o Seen) bool {
	return s.Cluster == o.Cluster && s.Cluster != uuid.Nil &&
		(s.Generation > o.Generation || s.Generation == o.Generation && s.Revision > o.Revision)
}

// ImportedTopic is a topic with the newest epoch that each of its partitions has seen.
type ImportedTopic struct {
	Topic  Topic
	Epochs []segment.Epoch
}

// Store gives the engine access to the metadata store. The methods are safe for concurrent use. Those with a context
// wait for the metadata store.
type Store interface {
	// Join registers the node, starts its lease and the watch, and returns after the first call of Changed has
	// returned. A node of the same name with another store uuid comes back empty: it is not in any ISR any more. Leave
	// or Close ends the membership. If the cluster is at a feature level above Node.Level, Join returns ErrNewerLevel
	// and changes nothing.
	Join(ctx context.Context, r Registration) (Node, error)
	// Snapshot returns the newest snapshot; nil before Join.
	Snapshot() *Snapshot
	// CatchUp waits until Snapshot returns all that the metadata store holds at the time of the call.
	CatchUp(ctx context.Context) error

	// CreateTopic places the replicas, chooses the leaders and creates the topic with all its partitions in one step,
	// or not at all. If t.ID is zero, a new ID is made. If t.Replicas is 0, the default applies. It returns ErrExists
	// with the existing topic, or ErrTooFewNodes.
	CreateTopic(ctx context.Context, t Topic) (*Topic, error)
	// DeleteTopic removes the topic and leaves an entry in Deleted.
	DeleteTopic(ctx context.Context, id uuid.UUID) error
	// ExpandTopic adds partitions. The existing partitions stay as they are. The version of the settings increases.
	ExpandTopic(ctx context.Context, id uuid.UUID, partitions int) error
	// SetReplicas changes how many replicas each partition of a topic has, and returns the resulting topic. The
	// controller adds replicas as nodes can take them. It removes replicas, never the leader, when all others are in
	// sync. MinISR follows, unless the topic's settings name one: then fewer replicas than that are refused. It returns
	// ErrReplicas if the topic cannot have that many, and ErrTooFewNodes if there are not enough nodes that may hold
	// replicas.
	SetReplicas(ctx context.Context, id uuid.UUID, replicas int) (*Topic, error)
	// ConfigureTopic replaces a topic's settings and returns the resulting topic. settings.Version must be the current
	// version (0: never configured). The partitions get the new MinISR in the same step, or later from the controller,
	// as soon as that many replicas are in sync. Additional Partitions are created in the same step. It returns
	// ErrConflict if the version is not the current one, ErrSettings, or ErrTooFewNodes.
	ConfigureTopic(ctx context.Context, id uuid.UUID, settings TopicSettings) (*Topic, error)
	// Tombstone hides a producer from lookups until the given time.
	Tombstone(ctx context.Context, key TombstoneKey, until time.Time) error

	// ChangeISR is a leader's proposal. It is a compare-and-swap on the Epoch and Version of want. The partition must
	// be led by the Leader and Boot of want, and new members must be registered with the store uuid in want. It returns
	// the resulting row, whoever changed it, and ErrConflict if that row is not want.
	ChangeISR(ctx context.Context, id PartitionID, want *replicate.State) (replicate.State, error)
	// ReadPartition reads a row in the store itself, because the snapshot may be behind. It returns ErrNotFound if
	// there is no row.
	ReadPartition(ctx context.Context, id PartitionID) (*Partition, error)
	// HandOver ends the caller's leadership, whose row was at st, in favour of another live, undamaged member of the
	// ISR: the one that an operator has ordered (Partition.TransferTo) if that is possible, otherwise to if it is not 0,
	// otherwise the member that leads least. A node that drains takes over only from a disk that hangs, and a node gives
	// a partition away only so often. Before the call, the caller has stopped taking writes and everything is committed.
	HandOver(ctx context.Context, id PartitionID, st *replicate.State, to replicate.NodeID) error
	// ReportCopy says what m can be relied on for.
	ReportCopy(ctx context.Context, id PartitionID, m replicate.Member, state CopyState) error
	// ReportDisk reports the state of this node's own disk. The engine limits how often it reports a new state, and
	// repeats a report that did not arrive. On HandOver, a node whose disk hangs also leaves the ISR, if that keeps
	// min_isr.
	ReportDisk(ctx context.Context, disk DiskState) error
	// ReportData says that this process's commit log holds group logged durably, how many topics of its directory the
	// metadata do not know, and whether its clock differs: Node.Logged, which it never lowers (only a registration does),
	// Node.UnknownTopics and Node.ClockDiffers.
	ReportData(ctx context.Context, logged uint64, unknownTopics int, clockDiffers bool) error
	// ReportDown says that a process is gone: its connection closed and its address refuses connections. The controller
	// acts without waiting for the lease to end. If the process was the controller, it is replaced.
	ReportDown(ctx context.Context, node replicate.NodeID, boot uuid.UUID) error

	// Raised says that this process's directory now has this level, which is stored in the node's row.
	Raised(ctx context.Context, level int) error

	// For operators.

	// RaiseLevel begins to raise the cluster to a feature level: every node raises its directory, and once all have
	// done so, the level is in force. Unless every registered node knows the level, it returns ErrLevel, which names
	// the nodes that do not.
	RaiseLevel(ctx context.Context, level int) error
	Drain(ctx context.Context, node replicate.NodeID, on bool) error
	RemoveNode(ctx context.Context, node replicate.NodeID) error // ErrUnsafe while it holds replicas
	// Rebalance starts, pauses, resumes or cancels the rebalancing; Snapshot.Rebalance shows the result.
	Rebalance(ctx context.Context, order RebalanceOrder) error
	MovePartition(ctx context.Context, id PartitionID, from, to replicate.NodeID) error
	// TransferLeader orders the leader of a partition to hand it over to node to, or to the best other replica if to is
	// 0, and makes that node the preferred leader. It returns the node. Only a live, whole member of the ISR that stays
	// can be chosen; otherwise it returns ErrConflict, which says why. Of two orders the later one counts.
	TransferLeader(ctx context.Context, id PartitionID, to replicate.NodeID) (replicate.NodeID, error)
	// ForceLeader makes node the leader although it may lack committed messages. It is the only operation that can lose
	// acknowledged data.
	ForceLeader(ctx context.Context, id PartitionID, node replicate.NodeID) error

	// Export returns the cluster's metadata for a backup, encoded as JSON. It needs an answer of the store.
	Export(ctx context.Context) ([]byte, error)

	// Leave deregisters an idle node at once, so that nobody waits for its lease to end. Close must follow.
	Leave(ctx context.Context) error
	// Close ends the watch, the lease and everything else that Join started, and waits for their end.
	Close() error
}
