package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/names"
	"penstock/internal/node/partition"
)

// creation is a topic that one caller is creating. Other callers that want the same topic wait for done. err is set
// before done is closed.
type creation struct {
	partitions int
	madeBy     string // TopicOptions.MadeBy
	done       chan struct{}
	err        error
}

// Topic returns the topic of that name. If it does not exist, Topic creates it as CreateTopic does, with
// Options.DefaultPartitions partitions and Options.DefaultQuotaBytes, or returns ErrAutoCreateOff if
// Options.DisableAutoCreate is set.
func (e *Engine) Topic(ctx context.Context, name string) (*Topic, error) {
	return e.TopicAs(ctx, "", name)
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
	if !names.ValidTopic(name) {
		return nil, errs.ErrTopicName
	}
	if o.Partitions == 0 {
		o.Partitions = e.current().DefaultPartitions
	}
	if o.Partitions < 1 || o.Partitions > MaxPartitions {
		return nil, fmt.Errorf("%w: it has 1 to %d partitions, not %d", errs.ErrTopicOptions, MaxPartitions, o.Partitions)
	}
	if o.Replicas < 0 || o.Replicas > MaxReplicas {
		return nil, fmt.Errorf("%w: it has 1 to %d replicas, not %d", errs.ErrTopicOptions, MaxReplicas, o.Replicas)
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
			return nil, errs.ErrClosed
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
		return errs.ErrFewInodes
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
		return errs.ErrClosed
	case !ok || t.OfPartitions().Deleted.Load():
		e.mu.Unlock()
		return e.noTopic(name)
	}
	e.deletedTopics.Add(name, e.Now())
	e.mu.Unlock()
	return e.deleteParts(t, t.PartitionList())
}

// noteTopicDeleted makes noTopic return a GoneError for this name for a while. It takes mu.
func (e *Engine) noteTopicDeleted(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deletedTopics.Add(name, e.Now())
}

// noTopic returns the ErrNoTopic for a name, as a GoneError if the topic was deleted a moment ago. It takes mu.
func (e *Engine) noTopic(name string) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.deletedTopics.Missing(name, e.Now(), errs.ErrNoTopic)
}

// deleteParts deletes this node's copies (parts) of a topic; there is at least one. It waits for the tombstone to be
// durable.
func (e *Engine) deleteParts(t *Topic, parts []*partition.Partition) error {
	return t.Local().Delete(parts, func(release func()) {
		e.mu.Lock()
		e.unlist(t)
		e.mu.Unlock()
		e.trashTopic(t, parts, release)
	})
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
	e.trashFiles(t.ID(), t.Name(), release)
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

// dropEphemeral deletes the ephemeral topics that an earlier process left behind. Only a single node calls it, at the
// end of Open.
func (e *Engine) dropEphemeral() {
	for _, t := range e.Topics() {
		if !names.Ephemeral(t.Name()) {
			continue
		}
		if err := e.DeleteTopic(context.Background(), t.Name()); err != nil {
			e.log.Warn("an ephemeral topic of the last run could not be deleted", "topic", t.Name(), "error", err)
		}
	}
}

// createTopicFiles writes a topic's directory and topic.json durably. It must return before any put of the topic is
// answered. It takes catalog and mu, and keeps m.
func (e *Engine) createTopicFiles(m *datadir.Topic) error {
	e.host.Lock(&e.catalog)
	defer e.catalog.Unlock()
	if err := m.Write(e.disk); err != nil {
		return err
	}
	e.mu.Lock()
	if e.noted[m.ID] != nil {
		e.noted[m.ID] = m
	}
	e.mu.Unlock()
	return nil
}

// showTopic lists a topic that the cluster has under its name. Open may have listed another topic of that name.
func (e *Engine) showTopic(t *Topic) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.list(t)
	}
}

// hideTopic makes a topic that the cluster does not know invisible, and ends its replicas. Its files stay.
func (e *Engine) hideTopic(t *Topic) {
	for _, pt := range t.PartitionList() {
		pt.Replica().End(errs.ErrNoLeader)
	}
	t.Local().Close(errs.ErrDeleted)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unlist(t)
}

// list makes t the topic of its name, in place of any other one. mu is held.
func (e *Engine) list(t *Topic) {
	if old := e.topics[t.Name()]; old != nil && old != t {
		old.SetListed(false)
	}
	e.topics[t.Name()] = t
	t.SetListed(true)
	t.Relimit() // a Change just before did not see it
	if e.noted != nil {
		e.noted[t.ID()] = t.File()
	}
	e.news.Raise()
}

// unlist removes t from the list of topics, unless its name refers to another topic by now. mu is held.
func (e *Engine) unlist(t *Topic) {
	if e.topics[t.Name()] == t {
		delete(e.topics, t.Name())
		e.news.Raise()
		t.SetListed(false)
	}
}

// topicByID returns the listed topic with this UUID; nil if there is none. It takes mu.
func (e *Engine) topicByID(id uuid.UUID) *Topic {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, t := range e.topics {
		if t.ID() == id {
			return t
		}
	}
	return nil
}

// News returns a channel that is closed at the next change of what exists and who leads: when a topic is listed or
// removed or gets a partition, or when this node has applied changes of the cluster's metadata. A caller takes the
// channel before it looks at what it wants to know; it may also be woken for nothing.
func (e *Engine) News() <-chan struct{} { return e.news.Next() }

// LookupTopicID returns the topic with this identity if it exists on this node. It looks through all topics, so callers
// keep the result. Of a topic that was deleted since, all methods return ErrDeleted.
func (e *Engine) LookupTopicID(id uuid.UUID) (*Topic, bool) {
	t := e.topicByID(id)
	return t, t != nil
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
func (o *TopicOptions) settings() (s meta.TopicSettings) {
	if o.quotaBytes > 0 {
		s.Version, s.QuotaBytes, s.QuotaMode = 1, o.quotaBytes, meta.QuotaReject
	}
	return s
}
