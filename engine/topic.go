package engine

import (
	"context"
	"time"

	"penstock/internal/node"
)

// ID is the number of a message: 16 hex digits as text. Ids of one partition rise in the order of its log.
type ID uint64

// String returns the 16 hex digits that NSQ clients see.
func (id ID) String() string { return node.ID(id).String() }

// Header is a name with a value, beside a message's body. Names that begin with "penstock-" belong to the engine:
// publishing them is refused.
type Header struct{ Name, Value []byte }

// Message is what a program publishes.
type Message struct {
	Body    []byte // 1 to Options.MaxMessageBytes bytes
	Headers []Header
	Key     []byte        // messages of a key go to one partition, in order; nil: to any partition
	Delay   time.Duration // before the first delivery
}

// Topic is a name over one or more partitions, at one Engine.
type Topic struct{ t *node.Topic }

func topic(t *node.Topic, err error) (*Topic, error) {
	if err != nil {
		return nil, err
	}
	return &Topic{t}, nil
}

// Name returns the topic's name.
func (t *Topic) Name() string { return t.t.Name() }

// Partitions returns how many partitions the topic has, on all nodes.
func (t *Topic) Partitions() int { return t.t.Partitions() }

// Publish stores one message, and returns its id when the message is on stable storage. If ctx ends while the message
// waits in this node's memory, Publish takes it back and returns the error of ctx; later it ignores ctx, and the answer
// is at most about Options.PublishTimeout away while the disk answers.
func (t *Topic) Publish(ctx context.Context, m Message) (ID, error) {
	id, err := t.t.PublishMessage(ctx, m.outgoing())
	return ID(id), err
}

// PublishBatch stores all messages or none, in order and with consecutive ids in one partition, and returns the first
// id. Keys must belong to the same partition, and delays must be equal.
func (t *Topic) PublishBatch(ctx context.Context, ms []Message) (ID, error) {
	all := make([]node.Outgoing, len(ms))
	for i := range ms {
		all[i] = ms[i].outgoing()
	}
	id, err := t.t.PublishMessages(ctx, all)
	return ID(id), err
}

// PublishAsync is Publish for a goroutine that keeps many messages on their way. Unless it returns an error, it calls
// done exactly once, maybe before it returns, with what Publish would have returned. It waits only while the
// partition's inbox is full.
//
// The goroutine that calls done is mostly that of the commit log, which stores nothing meanwhile: done must not block.
// It may count, send on a channel that has room, or pass the result to another goroutine.
func (t *Topic) PublishAsync(m Message, done func(ID, error)) error {
	if done == nil {
		return t.t.PublishAsync(m.outgoing(), nil)
	}
	return t.t.PublishAsync(m.outgoing(), func(id node.ID, err error) { done(ID(id), err) })
}

// Channel returns the channel of that name. It makes it at the newest message if it does not exist; the first channel
// of a topic begins at the oldest.
func (t *Topic) Channel(ctx context.Context, name string) (*Channel, error) {
	c, err := t.t.Channel(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Channel{c}, nil
}

// DeleteChannel deletes a channel and what it knows; the topic's messages stay for the others.
func (t *Topic) DeleteChannel(ctx context.Context, name string) error {
	return t.t.DeleteChannel(ctx, name)
}

func (m *Message) outgoing() node.Outgoing {
	out := node.Outgoing{Body: m.Body, Key: m.Key, Delay: m.Delay}
	if len(m.Headers) > 0 {
		out.Headers = make([]node.Header, len(m.Headers))
		for i, h := range m.Headers {
			out.Headers[i] = node.Header{Key: h.Name, Value: h.Value}
		}
	}
	return out
}

func headers(dst []Header, src []node.Header) []Header {
	for _, h := range src {
		dst = append(dst, Header{Name: h.Key, Value: h.Value})
	}
	return dst
}
