// Package meta is what the nodes of a cluster agree on: who is there, which topics exist, who replicates and who leads
// each partition. The engine reads it as a [Snapshot] and asks for changes through a [Store]; it knows nothing of how
// the agreement comes about (package cluster does, on etcd).
//
// The values of this package are immutable once published: whoever changes one copies it first.
package meta

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"penstock/replicate"
	"penstock/segment"
)

// PartitionID names a partition for ever: a topic that is deleted and made again under the same name has another uuid.
type PartitionID = segment.Identity

// Node is a member of the cluster, alive or not.
type Node struct {
	ID   replicate.NodeID `json:"id"`   // given at the first join, never used again
	Name string           `json:"name"` // node_id of node.json
	// of the data directory: another one means that this node's replicas are empty
	Store   uuid.UUID `json:"store"`
	Boot    uuid.UUID `json:"boot"`    // of the process
	Version string    `json:"version"` // of the program

	Peer   string `json:"peer"` // HOST:PORT between nodes; the others are what clients are told
	Host   string `json:"host"` // broadcast address
	NSQ    string `json:"nsq"`
	HTTP   string `json:"http"`
	Lookup string `json:"lookup"`
	Native string `json:"native"`

	// Level is the highest feature level that the process knows, StoreLevel that of its directory. A version from before
	// there were levels says 0, which means 1.
	Level      int `json:"level,omitzero"`
	StoreLevel int `json:"store_level,omitzero"`

	Draining bool `json:"draining"` // it gives away its leaderships and, where others can take them, its replicas
	Live     bool `json:"live"`     // its lease lives

	Disk DiskState `json:"disk,omitempty"` // as the node itself finds it
}

// DiskState is how a node's disk answers. What is not one of these, of a later version say, counts as DiskSlow.
type DiskState string

const (
	DiskGood   DiskState = ""       // also of nodes that do not tell
	DiskSlow   DiskState = "slow"   // or it hung a while ago: such a node is given no leadership that another can have
	DiskHung   DiskState = "hung"   // nothing comes back
	DiskFailed DiskState = "failed" // for so long that nobody waits for it any more
)

func (d DiskState) String() string {
	if d == DiskGood {
		return "good"
	}
	return string(d)
}

// Rank orders disks by preference: 0 is good, and what hangs comes last.
func (d DiskState) Rank() int {
	switch d {
	case DiskGood:
		return 0
	case DiskHung, DiskFailed:
		return 2
	}
	return 1
}

// Topic is a name over partitions.
type Topic struct {
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	Partitions int       `json:"partitions"`
	Replicas   int       `json:"replicas"`
	MinISR     int       `json:"min_isr"`
	CreatedNs  int64     `json:"created_ns"`

	Settings TopicSettings `json:"settings,omitzero"`
}

// Partition is one partition's row. State.Epoch and State.Version are what compare-and-swap compares.
type Partition struct {
	ID      PartitionID
	State   replicate.State
	Damaged []replicate.Member // replicas that said that they cannot read what they hold: not electable
}

// TombstoneKey names a producer of a topic that lookups do not mention for a while (nsqlookupd's tombstones).
type TombstoneKey struct {
	Topic string
	Node  replicate.NodeID
}

// Snapshot is everything at one revision. It is immutable and may be kept.
type Snapshot struct {
	Revision   int64
	Cluster    uuid.UUID
	Controller replicate.NodeID // 0: nobody just now
	Nodes      map[replicate.NodeID]*Node
	Topics     map[uuid.UUID]*Topic
	Names      map[string]*Topic // the same topics, by name
	Partitions map[PartitionID]*Partition
	Deleted    map[uuid.UUID]bool // explicit deletions: only these let a node remove data
	Tombstones map[TombstoneKey]time.Time

	Level       int // feature level in force; 0: the first
	WantedLevel int // that it is being raised to; 0, or not above Level: none
}

// FeatureLevel is the one in force.
func (s *Snapshot) FeatureLevel() int { return max(s.Level, 1) }

// Levels are the one in force and the one that the cluster is being raised to, which is never lower.
func (s *Snapshot) Levels() (inForce, wanted int) {
	return s.FeatureLevel(), max(s.FeatureLevel(), s.WantedLevel)
}

// Change is what happened since the snapshot before.
type Change struct {
	Snapshot   *Snapshot
	Partitions []PartitionID // whose row is new, changed or gone; each once
	Topics     []uuid.UUID   // that are new, changed or gone
	Nodes      []replicate.NodeID
}

// Errors of a Store, tested with errors.Is.
var (
	ErrExists   = errors.New("meta: it exists already; nothing was changed")
	ErrNotFound = errors.New("meta: there is no such topic, partition or node; nothing was changed")
	ErrConflict = errors.New(
		"meta: its state does not allow this, or somebody else was faster: nothing was changed; look at it again")
	ErrTooFewNodes = errors.New("meta: fewer nodes are alive than the topic needs replicas: nothing was changed; start " +
		"more nodes or ask for fewer replicas")
	ErrUnavailable = errors.New(
		"meta: the metadata store does not answer: what exists goes on, nothing can be changed; look at the etcd members")
	ErrForeign = errors.New("meta: the data directory belongs to another cluster than the one that was found: " +
		"nothing was changed; check the addresses and the data path")
	ErrNewerLevel = errors.New("meta: it is at a feature level that this version does not know")
	ErrLevel      = errors.New("meta: the feature level cannot be raised now; nothing was changed")
	ErrUnsafe     = errors.New("meta: refused because acknowledged messages could be lost; nothing was changed")
)

// Registration is what a node needs to join, and how it hears of the cluster.
type Registration struct {
	Node Node // ID 0 at the first join: it is given
	// Cluster is what the node's data directory belongs to; zero: nothing yet. ErrForeign if the store is another one's,
	// and then nothing was changed.
	Cluster uuid.UUID
	// Import are topics of a single node's data directory that becomes the first node of a cluster. They enter the store
	// with this node as their only replica, unless they are there.
	Import []ImportedTopic
	// Damaged are the partitions whose copies here cannot be relied on, as recovery found. Their rows say so before the
	// node is live: none of them is ever elected.
	Damaged []PartitionID
	// AllDamaged says that for all copies that rows say are here: the node itself may not know of them any more.
	AllDamaged bool
	// Founding is the feature level of the cluster if this node is the first. 0: the first level.
	Founding int
	// Raise gives the node's directory a level, durably; Join calls it before the node registers where the cluster is at a
	// higher one, or is being raised to it. nil: there is no directory.
	Raise func(level int) error
	// Changed is called by one goroutine: first with everything, then with every change, in order. It must not block for
	// long.
	Changed func(*Change)
	// Lease is called whenever the lease was extended: the node may serve as leader until then (by Clock, margin
	// subtracted). It must not block.
	Lease func(until time.Time)
	// Clock is what leases are measured by. It does not jump, and goes on while the whole machine stands still, as the
	// store's own clock does. nil: time.Now, whose monotonic part stands still then. It is read before the store is asked.
	// Any goroutine may call it.
	Clock func() time.Time
}

// ImportedTopic is a topic with the newest epoch that each of its partitions has seen.
type ImportedTopic struct {
	Topic  Topic
	Epochs []segment.Epoch
}

// Store is the engine's way to the agreement. Methods are safe for concurrent use; those with a context wait for the
// store.
type Store interface {
	// Join registers the node, begins its lease and the watch, and returns when the first Changed has returned. A node of
	// the same name with another store uuid comes back empty: it is in no ISR any more. Leave or Close ends it.
	// ErrNewerLevel if the cluster is at a feature level that Node.Level does not reach; then nothing was changed.
	Join(ctx context.Context, r Registration) (Node, error)
	// Snapshot is the newest one; nil before Join.
	Snapshot() *Snapshot

	// CreateTopic places the replicas, chooses leaders and makes the topic with all partitions in one step, or not at all.
	// t.ID zero: one is made. t.Replicas 0: the default. ErrExists with the existing topic; ErrTooFewNodes.
	CreateTopic(ctx context.Context, t Topic) (*Topic, error)
	// DeleteTopic removes it and leaves an entry in Deleted.
	DeleteTopic(ctx context.Context, id uuid.UUID) error
	// ExpandTopic adds partitions; the existing ones stay as they are. The version of the settings rises.
	ExpandTopic(ctx context.Context, id uuid.UUID, partitions int) error
	// ConfigureTopic replaces a topic's settings, whose Version must be the present one (0: never configured), and returns
	// the topic as it is then. Partitions get the new MinISR with it, or from the controller as soon as so many replicas
	// are in sync; more Partitions are made in the same step. ErrConflict if the version is another one, ErrSettings,
	// ErrTooFewNodes.
	ConfigureTopic(ctx context.Context, id uuid.UUID, settings TopicSettings) (*Topic, error)
	// Tombstone hides a producer from lookups until then.
	Tombstone(ctx context.Context, key TombstoneKey, until time.Time) error

	// ChangeISR is a leader's proposal: compare-and-swap on Epoch and Version of want, which also must be led by
	// want.Leader and Boot; new members must be registered with the store uuid that want names. It returns the row as it
	// is afterwards, whoever changed it, and ErrConflict if that was not want.
	ChangeISR(ctx context.Context, id PartitionID, want *replicate.State) (replicate.State, error)
	// ReadPartition reads a row in the store itself: the snapshot may be behind. ErrNotFound if there is none.
	ReadPartition(ctx context.Context, id PartitionID) (*Partition, error)
	// HandOver ends the caller's leadership, whose row was at st, in favour of another live, undamaged member of the ISR:
	// to if it is not 0, else the one that leads least. The caller has stopped taking writes and everything is committed.
	HandOver(ctx context.Context, id PartitionID, st *replicate.State, to replicate.NodeID) error
	// ReportDamaged says that a replica cannot read what it holds, or can again.
	ReportDamaged(ctx context.Context, id PartitionID, m replicate.Member, damaged bool) error
	// ReportDisk says how this node's own disk is. The engine limits how often it says something new, and repeats what did
	// not arrive. A node whose disk hangs leaves, with HandOver, the ISR too, if that keeps min_isr.
	ReportDisk(ctx context.Context, disk DiskState) error
	// ReportDown says that a process is gone: its connection closed and its address refuses. The controller acts without
	// waiting for the lease; a controller that is reported itself is replaced.
	ReportDown(ctx context.Context, node replicate.NodeID, boot uuid.UUID) error

	// Raised says that this process's directory has a level now: it goes into the node's row.
	Raised(ctx context.Context, level int) error

	// For operators.

	// RaiseLevel begins to raise the cluster to a feature level: every node gives its directory that level, and when all
	// have it the level is in force. ErrLevel, naming the nodes, unless every registered node knows it.
	RaiseLevel(ctx context.Context, level int) error
	Drain(ctx context.Context, node replicate.NodeID, on bool) error
	RemoveNode(ctx context.Context, node replicate.NodeID) error // ErrUnsafe while it holds replicas
	MovePartition(ctx context.Context, id PartitionID, from, to replicate.NodeID) error
	// ForceLeader makes node the leader although it may lack committed messages. Nothing but this loses acknowledged data.
	ForceLeader(ctx context.Context, id PartitionID, node replicate.NodeID) error

	// Leave deregisters an idle node at once, so that nobody waits for its lease. Then Close.
	Leave(ctx context.Context) error
	// Close ends the watch, the lease and everything that Join started, and waits for it.
	Close() error
}
