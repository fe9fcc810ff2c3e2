package engine

import (
	"encoding/json"
	"time"
)

// A node remembers for a moment what was deleted. Who deletes a topic at every node, as NSQ's tools do because with nsqd each node has its own,
// finds it gone at the second one: GoneError lets a server tell that from a topic that never was.

const (
	rememberDeletedFor = 10 * time.Second
	maxDeletedNames    = 1024 // names of topics, and of one topic's channels
)

// GoneError is ErrNoTopic or ErrNoChannel of one that was deleted a moment ago, through this node or another.
type GoneError struct {
	Ago time.Duration // since when, at most: not counted is how long the answer was on its way
	err error
}

// Error implements error.
func (e *GoneError) Error() string { return e.err.Error() }

// Unwrap returns ErrNoTopic or ErrNoChannel.
func (e *GoneError) Unwrap() error { return e.err }

// deletedNames is what was deleted, and when.
type deletedNames map[string]time.Time

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

// missing is err, or that it was there a moment ago.
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

// inLogs says of a channel that this node does not have whether a partition that it leads has it all the same, and whether the end of the log of one is
// not committed.
func (t *Topic) inLogs(name string) (held, open bool) {
	for _, pt := range t.partitions() {
		if pt.rep == nil || ephemeral(name) || !pt.rep.leads.Load() {
			continue
		}
		pt.rep.mu.Lock()
		held = held || pt.fold.Channel(name) != nil
		open = open || pt.rep.committed() < pt.machine.State().Next
		pt.rep.mu.Unlock()
	}
	return held, open
}

// deletion is what leaders answer to opDeleteChannel.
type deletion struct {
	Deleted bool  `json:"deleted,omitempty"`
	Gone    bool  `json:"gone,omitempty"` // it was deleted a moment ago
	AgoMs   int64 `json:"ago_ms,omitempty"`
}

// deletionOf is the answer about a channel that was, or was not, deleted with err.
func deletionOf(err error) (json.RawMessage, error) {
	switch gone, ok := err.(*GoneError); {
	case ok:
		return marshal(deletion{Gone: true, AgoMs: gone.Ago.Milliseconds() + 1}, nil) // never later than it was
	case err == ErrNoChannel:
		return nil, nil
	}
	return marshal(deletion{Deleted: true}, err)
}

// add takes the answer of one more leader.
func (d *deletion) add(result json.RawMessage) error {
	var one deletion
	if err := json.Unmarshal(result, &one); err != nil {
		return err
	}
	d.Deleted = d.Deleted || one.Deleted
	if one.Gone && (!d.Gone || one.AgoMs < d.AgoMs) {
		d.Gone, d.AgoMs = true, one.AgoMs
	}
	return nil
}

// err is what became of a deletion that all leaders answered.
func (d *deletion) err() error {
	switch {
	case d.Deleted:
		return nil
	case d.Gone:
		return &GoneError{time.Duration(d.AgoMs) * time.Millisecond, ErrNoChannel}
	}
	return ErrNoChannel
}
