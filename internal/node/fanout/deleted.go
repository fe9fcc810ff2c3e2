package fanout

import (
	"time"

	"penstock/internal/node/errs"
	"penstock/replicate/wire"
)

// A node remembers deleted names for a short time. NSQ's tools delete a topic at every node, because each nsqd has its
// own topics. When such a tool asks the second node of a cluster, the topic is already gone. With GoneError a server
// can tell such a topic from one that never existed.

const (
	rememberDeletedFor = 10 * time.Second
	maxDeletedNames    = 1024 // names of topics, and of one topic's channels
)

// GoneError wraps ErrNoTopic or ErrNoChannel for a name that was deleted a moment ago, through this node or another.
type GoneError struct {
	Ago time.Duration // age of the deletion, not counting the time that the answer travelled
	err error
}

// NewGoneError returns the error for a name that was deleted that long ago. err is errs.ErrNoTopic or
// errs.ErrNoChannel.
func NewGoneError(ago time.Duration, err error) *GoneError { return &GoneError{ago, err} }

func (e *GoneError) Error() string { return e.err.Error() }
func (e *GoneError) Unwrap() error { return e.err }

// DeletedNames are the deleted names of topics, or of one topic's channels, with the times of their deletion. The
// caller's lock guards them. The zero value is empty. A crash forgets the names.
type DeletedNames map[string]time.Time

// Add notes a deletion. Beyond maxDeletedNames it notes nothing: the name then counts as one that never existed.
func (g *DeletedNames) Add(name string, now time.Time) {
	if *g == nil {
		*g = DeletedNames{}
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

// Missing returns err, wrapped in a GoneError if the name was deleted a moment ago.
func (g DeletedNames) Missing(name string, now time.Time, err error) error {
	if at, ok := g[name]; ok && now.Sub(at) <= rememberDeletedFor {
		return NewGoneError(now.Sub(at), err)
	}
	return err
}

// Deletion merges the leaders' answers to wire.OpDeleteChannel. One goroutine uses it.
type Deletion struct{ merged wire.Deletion }

// DeletionResult encodes a leader's answer to wire.OpDeleteChannel. err is the error of the deletion at this leader.
// The answer is empty if the channel never existed here.
func DeletionResult(err error) ([]byte, error) {
	var d wire.Deletion
	switch gone, ok := err.(*GoneError); {
	case ok:
		d.Gone, d.AgoMs = true, gone.Ago.Milliseconds()+1 // rounded up
	case err == errs.ErrNoChannel:
		return nil, nil
	case err != nil:
		return nil, err
	default:
		d.Deleted = true
	}
	return wire.EncodeResult(d, nil)
}

// Add merges the answer of one more leader.
func (d *Deletion) Add(result []byte) error {
	var one wire.Deletion
	if err := wire.DecodeResult(result, &one); err != nil {
		return err
	}
	m := &d.merged
	m.Deleted = m.Deleted || one.Deleted
	if one.Gone && (!m.Gone || one.AgoMs < m.AgoMs) {
		m.Gone, m.AgoMs = true, one.AgoMs
	}
	return nil
}

// Err is the result of a deletion once all leaders have answered.
func (d *Deletion) Err() error {
	switch m := &d.merged; {
	case m.Deleted:
		return nil
	case m.Gone:
		return NewGoneError(time.Duration(m.AgoMs)*time.Millisecond, errs.ErrNoChannel)
	}
	return errs.ErrNoChannel
}
