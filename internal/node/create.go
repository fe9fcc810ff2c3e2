package node

import (
	"context"
	"fmt"
	"unicode/utf8"

	"penstock/internal/meta"
	"penstock/internal/node/catalog"
	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/names"
)

// Catalog has the topics of this node.
func (e *Engine) Catalog() *catalog.Catalog { return e.catalog }

// News returns a channel that is closed at the next change of what exists and who leads: when a topic is listed or
// removed or gets a partition, or when this node has applied changes of the cluster's metadata. A caller takes the
// channel before it looks at what it wants to know; it may also be woken for nothing.
func (e *Engine) News() <-chan struct{} { return e.news.Next() }

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

// check returns an ErrTopicOptions for what no topic can have.
func (o *TopicOptions) check() error {
	switch {
	case o.Partitions < 1 || o.Partitions > MaxPartitions:
		return fmt.Errorf("%w: it has 1 to %d partitions, not %d", errs.ErrTopicOptions, MaxPartitions, o.Partitions)
	case o.Replicas < 0 || o.Replicas > MaxReplicas:
		return fmt.Errorf("%w: it has 1 to %d replicas, not %d", errs.ErrTopicOptions, MaxReplicas, o.Replicas)
	case len(o.MadeBy) > names.MaxTokenBytes || !utf8.ValidString(o.MadeBy):
		return fmt.Errorf("%w: it remembers who made it by a name of at most %d bytes of UTF-8, not of %d",
			errs.ErrTopicOptions, names.MaxTokenBytes, len(o.MadeBy))
	}
	return nil
}

// Topic returns the topic of that name. If it does not exist, Topic creates it as CreateTopic does, with
// Options.DefaultPartitions partitions and Options.DefaultQuotaBytes, or returns ErrAutoCreateOff if
// Options.DisableAutoCreate is set.
func (e *Engine) Topic(ctx context.Context, name string) (*Topic, error) {
	return e.TopicAs(ctx, "", name)
}

// TopicAs is Topic for a client with a token that does not administer the node: a topic that it makes counts for the
// token. "": for any other client.
func (e *Engine) TopicAs(ctx context.Context, token, name string) (*Topic, error) {
	if t, ok := e.catalog.LookupTopic(name); ok {
		return t, nil
	}
	if !names.ValidTopic(name) {
		return nil, errs.ErrTopicName
	}
	if e.current().DisableAutoCreate {
		return nil, errs.ErrAutoCreateOff
	}
	return e.CreateTopicWith(ctx, name, TopicOptions{MadeBy: token, quotaBytes: e.current().DefaultQuotaBytes})
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
	if err := o.check(); err != nil {
		return nil, err
	}
	return e.catalog.Make(ctx, name, o.MadeBy, o.Partitions, func() (*Topic, error) {
		free, err := e.disk.FreeInodes() // if the file system does not tell, the creation itself finds out
		if err == nil && !flush.RoomForTopic(free, o.Partitions, len(e.store.Partitions())) {
			return nil, errs.ErrFewInodes
		}
		return e.members.createTopic(ctx, name, o)
	})
}

// DeleteTopic deletes a topic with all its messages and channels. Each consumer's Sink.Closed is called with
// ErrDeleted, and later puts get ErrDeleted. When DeleteTopic returns nil, the deletion is on stable storage; the files
// are removed in the background. It returns ErrNoTopic if there is no such topic, as a GoneError if the topic was
// deleted a moment ago.
func (e *Engine) DeleteTopic(ctx context.Context, name string) error {
	return e.members.deleteTopic(ctx, name)
}
