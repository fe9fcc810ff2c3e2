package topic

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"penstock/internal/node/channel"
	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/fanout"
	"penstock/internal/node/flush"
	"penstock/internal/node/health"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/internal/node/remote"
)

// Env is what the topics of a node get from it.
type Env struct {
	Host     platform.Host
	Log      *slog.Logger
	Clock    *clock.Clock
	Store    *partition.Store
	Limits   *inbox.Limits
	News     *platform.Notice // raised when a topic gets a partition, or this node begins or ceases to serve one
	Channels *channel.Shared
	Catalog  Catalog
	Cluster  *Cluster // nil on a single node
	NodeID   string
	Closed   func() bool // Close was called
	Options  Options     // as the node was opened; see options
}

// Cluster is what topics use of the node in a cluster.
type Cluster struct {
	*partition.Env
	Operations *fanout.Operations
	Consumers  *remote.Consumers
	View       func() health.View
}

// Options are those of the node that topics use. Package node documents them.
type Options struct {
	DisableAutoCreate         bool
	MaxChannels, TokenShare   int
	ReadAheadBytes            int
	PublishTimeout            time.Duration
	MsgTimeout, MaxMsgTimeout time.Duration
	Retention                 flush.Limits  // of the node
	EphemeralGrace            time.Duration // see the constant EphemeralGrace
}

// Catalog has the topics of a node. Any goroutine may call it.
type Catalog interface {
	LookupTopic(name string) (*Topic, bool)
	Topics() []*Topic
	// MakeTopic returns the topic of that name; if there is none, it makes it, and it counts for the token madeBy.
	MakeTopic(ctx context.Context, name, madeBy string) (*Topic, error)
	DeleteTopic(ctx context.Context, name string) error
	// RoomToGrow returns an error if the node has no room for so many partitions of the topic.
	RoomToGrow(t *Topic, partitions int) error
	// Grow is RoomToGrow, and counts the partitions until done is called. by is the token for which they are made; "":
	// none that has a share.
	Grow(t *Topic, partitions int, by string) (done func(), err error)
	// WriteFile writes topic.json durably.
	WriteFile(m *datadir.Topic) error
	// AddCopies makes new partitions of a topic known to the node. It returns ErrClosed if the node has closed.
	AddCopies(parts []*partition.Partition) error
	// Locked calls change, which changes for whom a topic counts, while nobody counts.
	Locked(change func())
}

// Shared is what the topics of a node share. A crash leaves nothing of it.
type Shared struct {
	Env
	partitions atomic.Int64 // those of all listed topics: see Topic.recount
	changed    atomic.Pointer[Options]
	tenureMs   atomic.Int64 // of the newest tenure that began at this node: see Topic.newTenure
}

// NewShared returns a Shared without topics.
func NewShared(e Env) *Shared {
	s := &Shared{Env: e}
	s.changed.Store(&e.Options)
	return s
}

// options returns the options of now, which do not change.
func (s *Shared) options() *Options { return s.changed.Load() }

// Change replaces the options, also for the topics that there are, and wakes their channels, whose limits may have
// changed. One goroutine at a time may call it.
func (s *Shared) Change(o Options) {
	s.changed.Store(&o)
	for _, t := range s.Catalog.Topics() {
		t.config.relimit()
		for _, c := range t.Channels() {
			c.local.Wake()
		}
	}
}

func (s *Shared) Partitions() int64 { return s.partitions.Load() }
func (s *Shared) level() int        { return s.Store.Feature() }
func (s *Shared) Now() time.Time    { return time.Unix(0, s.Clock.NowNs()) }
