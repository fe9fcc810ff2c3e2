package topic

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/internal/node/datadir"
	"penstock/internal/node/partition"
	"penstock/replicate/wire"
)

// Topic is a named topic with one or more partitions. Package node makes it, and lists it in its catalog; it needs no
// close. Its methods are safe for concurrent use. Messages may be published through any node of a cluster, which passes
// them to the leader of their partition.
type Topic struct {
	// What changes is atomic, or guarded by the locks of Local. After a crash, recovery restores the channels and the
	// pause from the logs, and the settings from topic.json.

	shared partition.Topic // what the partitions know of their topic

	env  *Shared
	list atomic.Pointer[[]*partition.Partition] // by number; replaced as a whole, and partitions are only added
	next atomic.Uint32                          // round robin over partitions

	hasRedrive atomic.Bool // set once this process has seen the channel redrive of this dead-letter topic committed
	paused     atomic.Bool

	config  config // its settings
	tally   tally  // what it counts for
	local   Local  // this node's part of the channels
	created int64  // when the topic was created: engine's time, ns since 1970
}

// New makes a topic without partitions. It lists nothing and writes no file.
func New(s *Shared, m *datadir.Topic) *Topic {
	t := &Topic{
		shared: partition.Topic{Name: m.Name, ID: m.ID},
		env:    s, created: m.CreatedNs,
	}
	t.local.t, t.config.t, t.tally.t = t, t, t
	t.local.channels = map[string]*Channel{}
	if s.Cluster != nil { // a single node serves all its partitions until it closes
		t.shared.ServingChanged = t.local.syncChannels
	}
	t.shared.Share.Store(s.Store.Share(m.MadeBy))
	t.config.use(m.Settings)
	return t
}

// PartitionList returns all partitions, by number. The caller must not change the slice, and no one else does: add
// replaces it.
func (t *Topic) PartitionList() []*partition.Partition {
	if parts := t.list.Load(); parts != nil {
		return *parts
	}
	return nil
}

// ID returns the topic's identity: a topic that was deleted and created again under the same name has another one.
func (t *Topic) ID() uuid.UUID { return t.shared.ID }

// OfPartitions returns what the partitions know of the topic. A partition is made with it.
func (t *Topic) OfPartitions() *partition.Topic { return &t.shared }

// CreatedNs returns when the topic was created: engine's time, ns since 1970.
func (t *Topic) CreatedNs() int64 { return t.created }
func (t *Topic) Name() string     { return t.shared.Name }

// Partitions returns the number of partitions of the topic, on whatever nodes they are. It only grows.
func (t *Topic) Partitions() int { return len(t.PartitionList()) }

// nextPartition returns the partition for the next put that has no key: round robin, and one that has a leader if there
// is any.
func (t *Topic) nextPartition() *partition.Partition {
	parts := t.PartitionList()
	if len(parts) == 1 {
		return parts[0]
	}
	n := int(t.next.Add(1))
	for i := range parts { // prefer a partition that has a leader
		if pt := parts[(n+i)%len(parts)]; pt.Target() != 0 {
			return pt
		}
	}
	return parts[n%len(parts)]
}

// Pause keeps messages that are published from now on back from all channels, until Unpause. When Pause returns nil,
// the pause is durable. After an error some partitions may be paused; Pause and Unpause can be repeated.
func (t *Topic) Pause(ctx context.Context) error {
	return t.onLeaders(ctx, wire.Operation{Kind: wire.OpPauseTopic, Flag: true}, nil, nil)
}

// Unpause ends a pause: the channels get the messages that the pause kept back. Errors are those of Pause.
func (t *Topic) Unpause(ctx context.Context) error {
	return t.onLeaders(ctx, wire.Operation{Kind: wire.OpPauseTopic}, nil, nil)
}

// Empty drops the messages that wait at the topic, because they were published before it had a channel or during a
// pause. It does not drop messages that channels have already: see Channel.Empty. When Empty returns nil, that is
// durable. After an error some partitions may have been emptied; Empty can be repeated.
func (t *Topic) Empty(ctx context.Context) error {
	return t.onLeaders(ctx, wire.Operation{Kind: wire.OpEmptyTopic}, nil, nil)
}

// stateFull returns an error if one more deferred message would exceed a limit of the node, or of any partition of the
// topic.
func (t *Topic) stateFull() error {
	for _, pt := range t.PartitionList() {
		if err := pt.StateFull(1); err != nil {
			return err
		}
	}
	return nil
}
