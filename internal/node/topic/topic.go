package topic

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/inbox"
	"penstock/internal/node/machine"
	"penstock/internal/node/partition"
	"penstock/internal/node/route"
	"penstock/replicate/wire"
)

// Topic is a named topic with one or more partitions. Package node makes it, and lists it in its catalog; it needs no
// close. Its methods are safe for concurrent use. Messages may be published through any node of a cluster, which passes
// them to the leader of their partition.
type Topic struct {
	// mu guards channels, deletedChannels and unreconciled, and is held for a few instructions. changing is held during a
	// whole creation, deletion, pause or expansion, which waits for commits; mu is taken inside it. After a crash,
	// recovery restores the channels and the pause from the logs, and the settings from topic.json.

	shared partition.Topic // what the partitions know of their topic

	env  *Shared
	list atomic.Pointer[[]*partition.Partition] // by number; replaced as a whole, and partitions are only added
	next atomic.Uint32                          // round robin over partitions

	hasRedrive atomic.Bool // set once this process has seen the channel redrive of this dead-letter topic committed
	paused     atomic.Bool

	settings atomic.Pointer[TopicSettings] // configure sets it, together with partition.Topic.Limits

	mu              lock.Mutex[lock.Topic]
	channels        map[string]*Channel
	deletedChannels fanout.DeletedNames // names of channels that were deleted a moment ago
	unreconciled    unreconciled        // channels whose settings the leaders may see differently
	// changing is held by one creation, deletion, pause or expansion at a time. The holder may wait for commits, the
	// disk or other nodes, so nothing that must answer in time may take it.
	changing lock.Mutex[lock.TopicChanging]
	adoption route.Adoption // which partitions the channels have; changing guards it
	created  int64          // when the topic was created: engine's time, ns since 1970

	listed  atomic.Bool  // whether recount counts the topic
	counted atomic.Int64 // what it has counted

	incomplete []incompletePart // set by Restore, consumed by Complete
}

// New makes a topic without partitions. It lists nothing and writes no file.
func New(s *Shared, m *datadir.Topic) *Topic {
	t := &Topic{
		shared: partition.Topic{Name: m.Name, ID: m.ID},
		env:    s, created: m.CreatedNs, channels: map[string]*Channel{},
	}
	if s.Cluster != nil { // a single node serves all its partitions until it closes
		t.shared.ServingChanged = t.syncChannels
	}
	t.shared.Share.Store(s.Store.Share(m.MadeBy))
	t.configure(m.Settings)
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

// Add adds a partition to the end. Only one goroutine at a time may call it; readers need no lock.
func (t *Topic) Add(pt *partition.Partition) {
	parts := append(slices.Clone(t.PartitionList()), pt)
	t.list.Store(&parts)
	t.recount()
}

// ID returns the topic's identity: a topic that was deleted and created again under the same name has another one.
func (t *Topic) ID() uuid.UUID { return t.shared.ID }

// OfPartitions returns what the partitions know of the topic. A partition is made with it.
func (t *Topic) OfPartitions() *partition.Topic { return &t.shared }

// CreatedNs returns when the topic was created: engine's time, ns since 1970.
func (t *Topic) CreatedNs() int64 { return t.created }

// Name returns the topic's name.
func (t *Topic) Name() string { return t.shared.Name }

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

// Abandon closes the logs of a topic that was made and never listed.
func (t *Topic) Abandon() {
	for _, pt := range t.PartitionList() {
		if pt.Log() != nil {
			_ = pt.Log().Close() // nothing was written
		}
	}
}

// Pause keeps messages that are published from now on back from all channels, until Unpause. When Pause returns nil,
// the pause is durable. After an error some partitions may be paused; Pause and Unpause can be repeated.
func (t *Topic) Pause(ctx context.Context) error { return t.pause(ctx, true) }

func (t *Topic) pause(ctx context.Context, paused bool) error {
	return t.onLeaders(ctx, wire.Operation{Kind: wire.OpPauseTopic, Flag: paused}, nil, nil)
}

// Unpause ends a pause: the channels get the messages that the pause kept back. Errors are those of Pause.
func (t *Topic) Unpause(ctx context.Context) error { return t.pause(ctx, false) }

// pauseLocal pauses or unpauses the partitions that this node leads, and returns when that is committed. It takes
// changing.
func (t *Topic) pauseLocal(ctx context.Context, paused bool) error {
	if err := t.lockInitialized(ctx); err != nil {
		return err
	}
	defer t.changing.Unlock()
	// The entry is written even if the topic is already in that state: a partition that another node led until now may
	// have missed an earlier request.
	err := t.writeControls(ctx, []machine.Control{{Kind: machine.TopicPaused, Flag: paused}}, nil)
	if err != nil {
		return err
	}
	t.paused.Store(paused)
	for _, c := range t.Channels() {
		c.local.Wake()
	}
	return nil
}

// Empty drops the messages that wait at the topic, because they were published before it had a channel or during a
// pause. It does not drop messages that channels have already: see Channel.Empty. When Empty returns nil, that is
// durable. After an error some partitions may have been emptied; Empty can be repeated.
func (t *Topic) Empty(ctx context.Context) error {
	return t.onLeaders(ctx, wire.Operation{Kind: wire.OpEmptyTopic}, nil, nil)
}

// emptyLocal empties the partitions that this node leads, and returns when that is committed. It takes changing.
func (t *Topic) emptyLocal(ctx context.Context) error {
	if err := t.lockInitialized(ctx); err != nil {
		return err
	}
	defer t.changing.Unlock()
	return t.writeControls(ctx, []machine.Control{{Kind: machine.TopicEmptied}}, nil)
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

// Delete deletes this node's copies (parts) of the topic; there is at least one. It takes changing, and waits for the
// tombstone to be durable. Then it calls gone, which takes the topic out of the catalog and moves its files to the
// trash; release frees the files of the commit log from the tombstone on. After a crash before the tombstone is
// durable, the topic is still there; after it, the next start moves the files to the trash.
func (t *Topic) Delete(parts []*partition.Partition, gone func(release func())) error {
	t.shared.Deleted.Store(true)
	t.env.Host.Lock(&t.changing)
	defer t.changing.Unlock()
	t.CloseChannels(errs.ErrDeleted)
	for _, pt := range parts {
		pt.Tell()
	}
	for _, pt := range parts[1:] {
		pt.CloseAndRefuse(errs.ErrDeleted, false)
	}
	// The tombstone goes through the inbox of the first partition, behind all puts that the inbox has accepted.
	own := &inbox.Special{OnCommit: func() { t.env.Store.RemoveTopic(t.ID()) }}
	if err := parts[0].WriteTombstone(own); err != nil {
		return err
	}
	parts[0].CloseAndRefuse(errs.ErrDeleted, false)
	gone(own.Release)
	return nil
}
