package migrate

import (
	"context"
	"errors"
	"fmt"
)

// Limits of one call of Publish, chosen so that a target can store it efficiently.
const (
	MaxPublishBytes = 512 << 10 // exceeded only by a single larger message
	MaxPublishCount = 2048
)

var (
	// errInseparable is returned if the target would have to confirm messages for a channel and cannot (see
	// Target.Confirm).
	errInseparable = errors.New("migrate: the channels have different backlogs, which a running node cannot tell apart")
	// errTarget is returned if the topic already exists in the target in a state to which an import cannot add.
	errTarget = errors.New("migrate: the topic in the target cannot take an import")
)

// Target is the destination of an import. Every method returns only when its effect is on stable storage. One goroutine
// calls the methods.
type Target interface {
	// Topic describes a topic. The zero value means that the topic does not exist.
	Topic(ctx context.Context, name string) (TargetTopic, error)
	CreateTopic(ctx context.Context, name string) error
	CreateChannel(ctx context.Context, topic, channel string) error
	PauseTopic(ctx context.Context, name string) error
	PauseChannel(ctx context.Context, topic, channel string) error

	// Publish stores all of the messages or none, and returns the id of the first one. It may use the bodies only until
	// it returns.
	Publish(ctx context.Context, topic string, bodies [][]byte) (uint64, error)

	// Exclusive reports whether the target is used by nobody else: nobody publishes to it or consumes from it, it
	// counts the waiting messages exactly, and consecutive publishes get consecutive ids. For a target that is not
	// exclusive, the ids that Publish returns are ignored, and LastID and Confirm are not called.
	Exclusive() bool
	// LastID returns the id of the newest message that waits in a channel.
	LastID(ctx context.Context, topic, channel string) (uint64, error)
	// Confirm confirms for a channel those of its waiting messages, up to the id last, for which drop returns true.
	Confirm(ctx context.Context, topic, channel string, last uint64, drop func(id uint64) bool) error
}

// TargetTopic describes a topic of a Target.
type TargetTopic struct {
	Exists     bool
	Partitions int
	Paused     bool
	Waiting    int64 // number of messages at the topic that no channel has yet
	Channels   map[string]TargetChannel
}

// TargetChannel describes a channel of a Target.
type TargetChannel struct {
	Waiting int64 // number of messages that are not confirmed
	Paused  bool
}

// Options are the options of Import; the zero value is ready to use.
type Options struct {
	Again bool // import all of a directory again in which an nsqd has worked since its import
	// Progress, if set, is called with the number of messages published so far, of those that Scan counted. Messages
	// that an earlier run published are included.
	Progress func(messages int64)
}

// Scan reads every queue of the source and returns the counts. A dry run shows them, and Import needs them.
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

// Import publishes the messages that Scan found into target. It returns how many messages it published. If the
// directory had been imported before, done is false and the error nil. An error that concerns one topic does not stop
// the import of the others; all such errors are joined. After an error, or a crash at any point, another Import with
// the same state continues where this one stopped. Into an exclusive target it publishes each message exactly once;
// into any other target it may publish the batch that was in progress at the crash a second time.
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
