package migrate

import (
	"context"
	"errors"
	"fmt"
)

// Limits of one Publish: what a target stores well at once.
const (
	MaxPublishBytes = 512 << 10 // more only for a single message
	MaxPublishCount = 2048
)

var (
	// ErrInseparable is for a target that cannot confirm messages for a channel (see Target.Confirm).
	ErrInseparable = errors.New("migrate: the channels have different backlogs, which a running node cannot tell apart")
	// ErrTarget is for a topic that is in the target in a way that an import cannot add to.
	ErrTarget = errors.New("migrate: the topic in the target cannot take an import")
)

// Target is where messages go. Every method returns after its effect is on stable storage. They are called by one
// goroutine.
type Target interface {
	// Topic describes a topic; the zero value says that there is none.
	Topic(ctx context.Context, name string) (TargetTopic, error)
	CreateTopic(ctx context.Context, name string) error
	CreateChannel(ctx context.Context, topic, channel string) error
	PauseTopic(ctx context.Context, name string) error
	PauseChannel(ctx context.Context, topic, channel string) error

	// Publish stores messages all or nothing and returns the first one's id; the bodies are borrowed until it returns.
	Publish(ctx context.Context, topic string, bodies [][]byte) (uint64, error)

	// Exclusive says that nobody else publishes to the target or consumes from it, that it can count exactly what waits,
	// and that the ids of consecutive publishes are consecutive. Otherwise ids mean nothing, and LastID and Confirm are
	// not called.
	Exclusive() bool
	// LastID is the id of the newest message that waits in a channel.
	LastID(ctx context.Context, topic, channel string) (uint64, error)
	// Confirm confirms for a channel those of its waiting messages, up to the id last, of which drop says so.
	Confirm(ctx context.Context, topic, channel string, last uint64, drop func(id uint64) bool) error
}

// TargetTopic describes a topic of a Target.
type TargetTopic struct {
	Exists     bool
	Partitions int
	Paused     bool
	Waiting    int64 // at the topic: no channel has them yet
	Channels   map[string]TargetChannel
}

// TargetChannel describes a channel of a Target.
type TargetChannel struct {
	Waiting int64 // everything that is not confirmed
	Paused  bool
}

// Options are the choices of Import; the zero value is ready.
type Options struct {
	Again bool // import a directory in which an nsqd worked since an import of it, as a whole
	// told how many messages, of those that Scan counted, are published so far; those of an earlier run count
	Progress func(messages int64)
}

// Scan reads every queue of the source, and returns what each has. It is what a dry run shows and what Import needs.
func Scan(ctx context.Context, s *Source, progress func(messages int64)) (map[*Queue]Counts, error) {
	counts := map[*Queue]Counts{}
	n := int64(0)
	for _, q := range append(s.Queues(), s.Unlisted...) {
		c, err := q.Read(func(*Message) error {
			n++
			if n%MaxPublishCount == 0 {
				if progress != nil {
					progress(n)
				}
				return ctx.Err()
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		counts[q] = c
	}
	return counts, nil
}

// Import publishes what Scan found into target. It returns how many messages it published, and done false with a nil
// error when the directory had been imported before. An error that concerns one topic does not stop the others; all are
// joined. After an error, or a crash at any point, another Import with the same state goes on where this one stopped.
// Into an exclusive target it publishes each message exactly once; into another one it may publish the last batch of
// the crash again.
func Import(
	ctx context.Context, s *Source, counts map[*Queue]Counts, target Target, state *State, o Options,
) (published int64, done bool, err error) {
	if s.Running {
		return 0, false, ErrRunning
	}
	fingerprint, err := s.Fingerprint()
	if err != nil {
		return 0, false, err
	}
	rec, err := state.record(s.Path, fingerprint, o.Again)
	if err != nil {
		return 0, false, err
	}
	if rec.Done {
		return 0, false, nil
	}
	im := &importer{ctx: ctx, target: target, state: state, counts: counts, progress: o.Progress}
	for i := range s.Topics {
		t := &s.Topics[i]
		if topicErr := im.topic(rec, t); topicErr != nil {
			err = errors.Join(err, fmt.Errorf("topic %s: %w", t.Name, topicErr))
		}
		if ctx.Err() != nil {
			return im.published, false, ctx.Err()
		}
	}
	if err != nil {
		return im.published, false, err
	}
	rec.Done = true
	return im.published, true, state.save()
}
