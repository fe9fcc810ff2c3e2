package engine

import (
	"time"

	"penstock/engine/base"
	"penstock/replicate/wire"
)

// A node remembers deleted names for a short time. NSQ's tools delete a topic at every node, because each nsqd has its
// own. At the second node of a cluster the topic is gone already: with GoneError a server can tell that from a topic
// that never existed.

const (
	rememberDeletedFor = 10 * time.Second
	maxDeletedNames    = 1024 // names of topics, and of one topic's channels
)

// GoneError is ErrNoTopic or ErrNoChannel for one that was deleted a moment ago, through this node or another.
type GoneError struct {
	Ago time.Duration // age of the deletion, without the time that the answer travelled
	err error
}

// Error implements error.
func (e *GoneError) Error() string { return e.err.Error() }

// Unwrap returns ErrNoTopic or ErrNoChannel.
func (e *GoneError) Unwrap() error { return e.err }

// deletedNames are deleted names with the times of their deletion. Engine.mu guards those of topics, Topic.mu those of
// channels.
type deletedNames map[string]time.Time

// add notes a deletion. Beyond maxDeletedNames it notes nothing: the name then counts as one that never existed.
func (g *deletedNames) add(name string, now time.Time) {
	if *g == nil {
		*g = deletedNames{}
	}
	for old, at := range *g {
		if now.Sub(at) > rememberDeletedFor {
			delete(*g, old)
		}
	}
	if len(*g) < maxDeletedNames {
		(*g)[name] = now
	}
}

// missing returns err, wrapped in a GoneError if the name was deleted a moment ago.
func (g deletedNames) missing(name string, now time.Time, err error) error {
	if at, ok := g[name]; ok && now.Sub(at) <= rememberDeletedFor {
		return &GoneError{now.Sub(at), err}
	}
	return err
}

func (e *Engine) noteTopicDeleted(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deletedTopics.add(name, e.now())
}

func (e *Engine) noTopic(name string) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.deletedTopics.missing(name, e.now(), ErrNoTopic)
}

func (t *Topic) noChannel(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.deletedChannels.missing(name, t.e.now(), ErrNoChannel)
}

// inLogs is called for a channel that this node does not have. held: the log of a partition that this node leads has
// the channel nevertheless. open: the end of one of these logs is not committed.
func (t *Topic) inLogs(name string) (held, open bool) {
	for _, pt := range t.partitions() {
		if base.Ephemeral(name) || !pt.Leading.Load() {
			continue
		}
		has, end := pt.FindChannel(name)
		held, open = held || has, open || end
	}
	return held, open
}

// deletion merges the leaders' answers to wire.OpDeleteChannel.
type deletion struct{ wire.Deletion }

// deletionOf makes the answer for a channel whose deletion returned err.
func deletionOf(err error) ([]byte, error) {
	switch gone, ok := err.(*GoneError); {
	case ok:
		return marshal(wire.Deletion{Gone: true, AgoMs: gone.Ago.Milliseconds() + 1}, nil) // rounded up
	case err == ErrNoChannel:
		return nil, nil
	}
	return marshal(wire.Deletion{Deleted: true}, err)
}

// add merges the answer of one more leader.
func (d *deletion) add(result []byte) error {
	var one wire.Deletion
	if err := wire.DecodeResult(result, &one); err != nil {
		return err
	}
	d.Deleted = d.Deleted || one.Deleted
	if one.Gone && (!d.Gone || one.AgoMs < d.AgoMs) {
		d.Gone, d.AgoMs = true, one.AgoMs
	}
	return nil
}

// err is the result of a deletion once all leaders have answered.
func (d *deletion) err() error {
	switch {
	case d.Deleted:
		return nil
	case d.Gone:
		return &GoneError{time.Duration(d.AgoMs) * time.Millisecond, ErrNoChannel}
	}
	return ErrNoChannel
}
