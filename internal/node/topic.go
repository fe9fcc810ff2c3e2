package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/internal/node/base"
	"penstock/internal/node/datadir"
	"penstock/internal/node/fanout"
	"penstock/internal/node/flush"
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
	"penstock/internal/node/route"
	"penstock/replicate/wire"
)

// Topic is a named topic with one or more partitions. Engine.Topic and Engine.CreateTopicWith return it; it needs no
// close. Its methods are safe for concurrent use. Messages may be published through any node of a cluster, which passes
// them to the leader of their partition.
type Topic struct {
	// mu guards channels, deletedChannels and unreconciled, and is held for a few instructions. changing is held during a
	// whole creation, deletion, pause or expansion, which waits for commits; mu is taken inside it. After a crash,
	// recovery restores the channels and the pause from the logs, and the settings from topic.json.

	shared partition.Topic // what the partitions know of their topic

	e    *Engine
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

	incomplete []incompletePart // set by restore, consumed by completeChannels
}

// creation is a topic that one caller is creating. Other callers that want the same topic wait for done. err is set
// before done is closed.
type creation struct {
	partitions int
	madeBy     string // TopicOptions.MadeBy
	done       chan struct{}
	err        error
}

// newTopic makes a topic without partitions. It lists nothing and writes no file.
func newTopic(e *Engine, m *datadir.Topic) *Topic {
	t := &Topic{
		shared: partition.Topic{Name: m.Name, ID: m.ID},
		e:      e, created: m.CreatedNs, channels: map[string]*Channel{},
	}
	if e.cluster != nil { // a single node serves all its partitions until it closes
		t.shared.ServingChanged = func() { e.cluster.syncChannels(t) }
	}
	t.shared.Share.Store(e.store.Share(m.MadeBy))
	t.configure(m.Settings)
	return t
}

// partitions returns all partitions, by number. The caller must not change the slice, and no one else does: add
// replaces it.
func (t *Topic) partitions() []*partition.Partition {
	if parts := t.list.Load(); parts != nil {
		return *parts
	}
	return nil
}

// add adds a partition to the end. Only one goroutine at a time may call it; readers need no lock.
func (t *Topic) add(pt *partition.Partition) {
	parts := append(slices.Clone(t.partitions()), pt)
	t.list.Store(&parts)
	t.recount()
}

// Name returns the topic's name.
func (t *Topic) Name() string { return t.shared.Name }

// Partitions returns the number of partitions of the topic, on whatever nodes they are. It only grows.
func (t *Topic) Partitions() int { return len(t.partitions()) }

// nextPartition returns the partition for the next put that has no key: round robin, and one that has a leader if there
// is any.
func (t *Topic) nextPartition() *partition.Partition {
	parts := t.partitions()
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

// Topic returns the topic of that name. If it does not exist, Topic creates it as CreateTopic does, with
// Options.DefaultPartitions partitions and Options.DefaultQuotaBytes, or returns ErrAutoCreateOff if
// Options.DisableAutoCreate is set.
func (e *Engine) Topic(ctx context.Context, name string) (*Topic, error) {
	return e.TopicAs(ctx, "", name)
}

// TopicOptions describe a new topic.
type TopicOptions struct {
	Partitions int // 1 to MaxPartitions; 0: Options.DefaultPartitions
	// Replicas is the number of nodes that store each partition. A cluster without that many live nodes refuses to
	// create the topic, and a single node refuses anything but 1. 0: ClusterOptions.Replicas, or as many as there are
	// live nodes if these are fewer.
	Replicas int
	// MadeBy is the name of the token for which the topic counts: see Options.TokenShare. Empty: for nobody.
	MadeBy string

	quotaBytes int64 // TopicSettings.QuotaBytes of the new topic
}

// settings returns the settings of a new topic; the zero value: nothing is configured.
func (o *TopicOptions) settings() (s TopicSettings) {
	if o.quotaBytes > 0 {
		s.Version, s.QuotaBytes, s.QuotaMode = 1, o.quotaBytes, QuotaReject
	}
	return s
}

// CreateTopic is CreateTopicWith, with the default number of replicas.
func (e *Engine) CreateTopic(ctx context.Context, name string, partitions int) (*Topic, error) {
	return e.CreateTopicWith(ctx, name, TopicOptions{Partitions: partitions})
}

// CreateTopicWith returns the topic of that name. If it does not exist, CreateTopicWith creates it, even if
// DisableAutoCreate is set. A topic that exists keeps the partitions and replicas that it has. A new topic is on stable
// storage when CreateTopicWith returns it. After ErrTopicName, ErrTopicOptions, ErrTooManyTopics, ErrTooManyPartitions
// or ErrFewInodes nothing was created. After any other error the topic may have been created; CreateTopicWith can be
// called again.
func (e *Engine) CreateTopicWith(ctx context.Context, name string, o TopicOptions) (*Topic, error) {
	if !base.ValidTopicName(name) {
		return nil, ErrTopicName
	}
	if o.Partitions == 0 {
		o.Partitions = e.opts.DefaultPartitions
	}
	if o.Partitions < 1 || o.Partitions > MaxPartitions {
		return nil, fmt.Errorf("%w: it has 1 to %d partitions, not %d", ErrTopicOptions, MaxPartitions, o.Partitions)
	}
	if o.Replicas < 0 || o.Replicas > MaxReplicas {
		return nil, fmt.Errorf("%w: it has 1 to %d replicas, not %d", ErrTopicOptions, MaxReplicas, o.Replicas)
	}
	if err := checkMaker(o.MadeBy); err != nil {
		return nil, err
	}
	for {
		e.mu.Lock()
		if t, ok := e.topics[name]; ok {
			e.mu.Unlock()
			return t, nil
		}
		if e.closed {
			e.mu.Unlock()
			return nil, ErrClosed
		}
		if cr, ok := e.creating[name]; ok {
			e.mu.Unlock()
			if !e.host.Either(cr.done, ctx.Done()) {
				return nil, ctx.Err()
			}
			if cr.err != nil {
				return nil, cr.err
			}
			continue
		}
		err := e.mayMakeTopic(o.MadeBy)
		if err == nil {
			err = e.mayMake(o.MadeBy, o.Partitions)
		}
		if err != nil {
			e.mu.Unlock()
			return nil, err
		}
		cr := &creation{partitions: o.Partitions, madeBy: o.MadeBy, done: make(chan struct{})}
		e.creating[name] = cr
		e.mu.Unlock()
		var t *Topic
		if err = e.inodesForTopic(o.Partitions); err == nil {
			t, err = e.members.createTopic(ctx, name, o)
		}
		e.mu.Lock()
		delete(e.creating, name)
		e.mu.Unlock()
		cr.err = err
		close(cr.done)
		return t, err
	}
}

// inodesForTopic returns ErrFewInodes if a topic of so many partitions would take inodes that others need.
func (e *Engine) inodesForTopic(partitions int) error {
	free, err := e.disk.FreeInodes()
	if err == nil && !flush.RoomForTopic(free, partitions, len(e.store.Partitions())) {
		return ErrFewInodes
	}
	return nil // if the file system does not tell, the creation itself finds out
}

// topicCount returns the number of topics, with those that are being created. mu is held.
func (e *Engine) topicCount() int {
	n := len(e.topics)
	for name := range e.creating {
		if e.topics[name] == nil { // a creation lists its topic before it ends
			n++
		}
	}
	return n
}

// abandon closes the logs of a topic that was made and never listed.
func (t *Topic) abandon() {
	for _, pt := range t.partitions() {
		if pt.Log() != nil {
			_ = pt.Log().Close() // nothing was written
		}
	}
}

func (e *Engine) isClosed() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.closed
}

// DeleteTopic deletes a topic with all its messages and channels. Each consumer's Sink.Closed is called with
// ErrDeleted, and later puts get ErrDeleted. When DeleteTopic returns nil, the deletion is on stable storage; the files
// are removed in the background. It returns ErrNoTopic if there is no such topic, as a GoneError if the topic was
// deleted a moment ago.
func (e *Engine) DeleteTopic(ctx context.Context, name string) error {
	return e.members.deleteTopic(ctx, name)
}

// deleteTopicLocal deletes the topic on this node.
func (e *Engine) deleteTopicLocal(name string) error {
	e.mu.Lock()
	t, ok := e.topics[name]
	switch {
	case e.closed:
		e.mu.Unlock()
		return ErrClosed
	case !ok || t.shared.Deleted.Load():
		e.mu.Unlock()
		return e.noTopic(name)
	}
	e.deletedTopics.Add(name, e.now())
	e.mu.Unlock()
	return e.deleteParts(t, t.partitions())
}

// noteTopicDeleted makes noTopic return a GoneError for this name for a while. It takes mu.
func (e *Engine) noteTopicDeleted(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deletedTopics.Add(name, e.now())
}

// noTopic returns the ErrNoTopic for a name, as a GoneError if the topic was deleted a moment ago. It takes mu.
func (e *Engine) noTopic(name string) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.deletedTopics.Missing(name, e.now(), ErrNoTopic)
}

// deleteParts deletes this node's copies (parts) of a topic; there is at least one. It takes changing, and waits for
// the tombstone to be durable. After a crash before that, the topic is still there; after it, the next Open moves the
// files to the trash.
func (e *Engine) deleteParts(t *Topic, parts []*partition.Partition) error {
	t.shared.Deleted.Store(true)
	t.e.host.Lock(&t.changing)
	defer t.changing.Unlock()
	t.closeChannels(ErrDeleted)
	for _, pt := range parts {
		pt.Tell()
	}
	for _, pt := range parts[1:] {
		pt.CloseAndRefuse(ErrDeleted, false)
	}
	// The tombstone goes through the inbox of the first partition, behind all puts that the inbox has accepted.
	own := &inbox.Special{OnCommit: func() { e.store.RemoveTopic(t.shared.ID) }}
	if err := parts[0].WriteTombstone(own); err != nil {
		return err
	}
	parts[0].CloseAndRefuse(ErrDeleted, false)
	e.mu.Lock()
	e.unlist(t)
	e.mu.Unlock()
	e.trashTopic(t, parts, own.Release)
	return nil
}

// trashTopic moves the files of a deleted topic to the trash. Until they are there, the tombstone must stay in the
// commit log, or the next Open would find the topic again. So trashTopic calls release, which frees the commit log
// files from the tombstone on, only afterwards.
func (e *Engine) trashTopic(t *Topic, parts []*partition.Partition, release func()) {
	var err error
	for _, pt := range parts {
		err = errors.Join(err, pt.CloseLog())
	}
	if err != nil {
		e.log.Warn("closing a deleted topic's files", "topic", t.Name(), "error", err)
	}
	e.trashFiles(t.shared.ID, t.Name(), release)
}

// trashFiles moves the files of a deleted topic to the trash, and calls release when they are durably there. If moving
// them fails, the flusher tries again and then calls release.
func (e *Engine) trashFiles(id uuid.UUID, name string, release func()) {
	if err := datadir.TrashTopic(e.disk, id); err != nil {
		if !e.isClosed() { // if the engine is closed, the next Open moves the files
			e.log.Warn("a deleted topic's files could not be moved away; it is tried again", "topic", name, "error", err)
		}
		e.store.Flusher().TrashLater(id, release)
		return
	}
	release()
	e.store.Flusher().WakeUp()
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
	err := t.writeControls(ctx, []fold.Control{{Kind: fold.TopicPaused, Flag: paused}}, nil)
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
	return t.writeControls(ctx, []fold.Control{{Kind: fold.TopicEmptied}}, nil)
}

// dropEphemeral deletes the ephemeral topics that an earlier process left behind. Only a single node calls it, at the
// end of Open.
func (e *Engine) dropEphemeral() {
	for _, t := range e.Topics() {
		if !base.Ephemeral(t.Name()) {
			continue
		}
		if err := e.DeleteTopic(context.Background(), t.Name()); err != nil {
			e.log.Warn("an ephemeral topic of the last run could not be deleted", "topic", t.Name(), "error", err)
		}
	}
}

// Engine returns the engine that the topic belongs to.
func (t *Topic) Engine() *Engine { return t.e }

// stateFull returns an error if one more deferred message would exceed a limit of the node, or of any partition of the
// topic.
func (t *Topic) stateFull() error {
	for _, pt := range t.partitions() {
		if err := pt.StateFull(1); err != nil {
			return err
		}
	}
	return nil
}
