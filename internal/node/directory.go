package node

import "github.com/google/uuid"

// ID returns the topic's identity: a topic that was deleted and created again under the same name has another one.
func (t *Topic) ID() uuid.UUID { return t.shared.ID }

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
