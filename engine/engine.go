package engine

import (
	"context"

	"penstock/internal/node"
)

// Engine owns a data directory, its commit log and its memory. Open makes one, Close ends it. A crash loses nothing
// that was answered: the next Open of the directory has it.
type Engine struct{ n *node.Engine }

// Open opens the data directory, creates it if it is missing, and recovers what a crash left. It returns ErrOptions for
// options that contradict each other, and ErrForgotten if messages that were answered OK are missing. In a cluster it
// waits until the node has joined, at most a minute.
func Open(ctx context.Context, o Options) (*Engine, error) {
	all, done, err := o.node(ctx)
	if err != nil {
		return nil, err
	}
	n, err := node.Open(ctx, all)
	if err != nil {
		done()
		return nil, err
	}
	return &Engine{n}, nil
}

// Close stores what is on its way, hands leaderships over, and ends the engine. Publishing methods that still wait
// return ErrClosed.
func (e *Engine) Close() error { return e.n.Close() }

// Leave hands over all that this node leads, before a Close that shall disturb nobody. A single node has nobody to hand
// over to: it returns at once.
func (e *Engine) Leave(ctx context.Context) error { return e.n.Leave(ctx) }

// Health returns nil while the engine can store messages, or why it cannot.
func (e *Engine) Health() error { return e.n.Health() }

// Topic returns the topic of that name. It makes it, with the options' defaults, if it does not exist.
func (e *Engine) Topic(ctx context.Context, name string) (*Topic, error) {
	t, err := e.n.Topic(ctx, name)
	return topic(t, err)
}

// CreateTopic returns the topic of that name. It makes it with these options if it does not exist; if it does, the
// options change nothing.
func (e *Engine) CreateTopic(ctx context.Context, name string, o TopicOptions) (*Topic, error) {
	t, err := e.n.CreateTopicWith(ctx, name, node.TopicOptions{Partitions: o.Partitions, Replicas: o.Replicas})
	return topic(t, err)
}

// Topics returns the topics that this node knows, by name.
func (e *Engine) Topics() []*Topic {
	var all []*Topic
	for _, t := range e.n.Catalog().Topics() {
		all = append(all, &Topic{t})
	}
	return all
}

// DeleteTopic deletes a topic, its channels and its messages, on all nodes.
func (e *Engine) DeleteTopic(ctx context.Context, name string) error {
	return e.n.DeleteTopic(ctx, name)
}
