package data

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"

	"penstock/batch"
	"penstock/internal/migrate"
	"penstock/internal/node"
	"penstock/internal/node/errs"
)

const (
	// maxImportBatchBytes is the size of the largest batch that an engine can store: one message of
	// migrate.MaxBodyBytes.
	maxImportBatchBytes = 15 << 20
	// importHoldTime is the message timeout of drain: how long messages may stay in flight while other messages are
	// being confirmed. A message that times out would be delivered again.
	importHoldTime = 24 * time.Hour
)

// DirTarget imports into the data directory of a stopped node.
type DirTarget struct{ e *node.Engine }

// OpenDirTarget opens the directory, or makes it, for messages of at most largest bytes.
func OpenDirTarget(ctx context.Context, dir string, largest int, logTo io.Writer) (*DirTarget, error) {
	o := node.Options{
		DataPath: dir, LockWait: time.Second, MaxMsgTimeout: importHoldTime,
		Logger: slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if largest > 1<<20 {
		o.MaxMessageBytes, o.MaxBatchBytes = largest, maxImportBatchBytes
	}
	e, err := node.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &DirTarget{e}, nil
}

func (d *DirTarget) Close() error    { return d.e.Close() }
func (d *DirTarget) Exclusive() bool { return true }

func (d *DirTarget) Topic(_ context.Context, name string) (migrate.TargetTopic, error) {
	var out migrate.TargetTopic
	for _, t := range d.e.Stats(name, "") {
		out = migrate.TargetTopic{
			Exists: true, Partitions: t.Partitions, Paused: t.Paused, Waiting: t.Depth,
			Channels: map[string]migrate.TargetChannel{},
		}
		for _, c := range t.Channels {
			out.Channels[c.Name] = migrate.TargetChannel{
				Waiting: c.Depth + int64(c.InFlightCount) + int64(c.DeferredCount), Paused: c.Paused,
			}
		}
	}
	return out, nil
}

func (d *DirTarget) CreateTopic(ctx context.Context, name string) error {
	_, err := d.e.CreateTopic(ctx, name, 1)
	return err
}

func (d *DirTarget) CreateChannel(ctx context.Context, topic, channel string) error {
	t, err := d.topic(topic)
	if err != nil {
		return err
	}
	_, err = t.CreateChannel(ctx, channel)
	return err
}

func (d *DirTarget) topic(name string) (*node.Topic, error) {
	t, ok := d.e.Catalog().LookupTopic(name)
	if !ok {
		return nil, errs.ErrNoTopic
	}
	return t, nil
}

func (d *DirTarget) channel(topic, channel string) (*node.Channel, error) {
	t, err := d.topic(topic)
	if err != nil {
		return nil, err
	}
	c, ok := t.LookupChannel(channel)
	if !ok {
		return nil, errs.ErrNoChannel
	}
	return c, nil
}

func (d *DirTarget) PauseTopic(ctx context.Context, name string) error {
	t, err := d.topic(name)
	if err != nil {
		return err
	}
	return t.Pause(ctx)
}

func (d *DirTarget) PauseChannel(ctx context.Context, topic, channel string) error {
	c, err := d.channel(topic, channel)
	if err != nil {
		return err
	}
	return c.Pause(ctx)
}

func (d *DirTarget) Publish(ctx context.Context, topic string, bodies [][]byte) (uint64, error) {
	t, err := d.topic(topic)
	if err != nil {
		return 0, err
	}
	id, err := t.PublishBatch(ctx, bodies)
	return uint64(id), err
}

func (d *DirTarget) LastID(ctx context.Context, topic, channel string) (uint64, error) {
	last := uint64(0)
	err := d.drain(ctx, topic, channel, math.MaxUint64, func(id uint64) bool {
		last = max(last, id)
		return false
	})
	return last, err
}

// Confirm takes delivery of all messages up to the id last, finishes those for which drop returns true, and gives the
// others back. The attempts that this adds are kept in memory only, so they are gone once the directory is closed.
func (d *DirTarget) Confirm(ctx context.Context, topic, channel string, last uint64, drop func(uint64) bool) error {
	c, err := d.channel(topic, channel)
	if err != nil {
		return err
	}
	// An earlier run that was killed in the last lines of Confirm may have left the channel paused. A channel that
	// somebody else paused was refused before.
	if err := c.Unpause(ctx); err != nil {
		return err
	}
	if err := d.drain(ctx, topic, channel, last, drop); err != nil {
		return err
	}
	// Pause and Unpause are behind the confirmations in the log: once they are durable, so are the confirmations.
	if err := c.Pause(ctx); err != nil {
		return err
	}
	return c.Unpause(ctx)
}

// drain takes delivery of the messages that wait in a channel, up to the id last, and finishes those for which drop
// returns true.
func (d *DirTarget) drain(ctx context.Context, topic, channel string, last uint64, drop func(uint64) bool) error {
	c, err := d.channel(topic, channel)
	if err != nil {
		return err
	}
	s := &drainSink{last: last, drop: drop, turn: make(chan struct{}, 1)}
	k, err := c.Attach(node.ConsumerOptions{MsgTimeout: importHoldTime}, s)
	if err != nil {
		return err
	}
	defer k.Close()
	if err := k.Ready(math.MaxInt32); err != nil {
		return err
	}
	k.Pump()
	tick := time.NewTicker(10 * time.Millisecond) // deferred messages may become due without a new turn of the sink
	defer tick.Stop()
	for {
		ids, full, closed := s.take()
		for _, id := range ids {
			if err := k.Finish(id); err != nil {
				return fmt.Errorf("message %s of channel %s cannot be confirmed: %w", id, channel, err)
			}
		}
		if closed != nil {
			return closed
		}
		if full || len(ids) == 0 && d.drained(topic, channel) {
			return nil
		}
		k.Pump()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.turn:
		case <-tick.C:
		}
	}
}

// drained reports whether nothing waits any more: every message that is not confirmed has been delivered to the sink.
func (d *DirTarget) drained(topic, channel string) bool {
	for _, t := range d.e.Stats(topic, channel) {
		for _, c := range t.Channels {
			return c.Depth == 0
		}
	}
	return true
}

// drainSink collects the ids of a channel's messages. A sink must not call its consumer, so the caller has to finish
// them. The engine calls Deliver, Flush and Closed; drain calls take. mu guards the fields below it.
type drainSink struct {
	last uint64
	drop func(uint64) bool
	turn chan struct{}

	mu     sync.Mutex
	ids    []batch.ID
	full   bool // the message last, or one behind it, was delivered
	closed error
}

func (s *drainSink) Deliver(m *node.Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := uint64(m.ID); id <= s.last && s.drop(id) {
		s.ids = append(s.ids, m.ID)
	}
	if uint64(m.ID) >= s.last {
		s.full = true
	}
	return !s.full
}

func (s *drainSink) Flush() { s.wake() }

func (s *drainSink) Closed(err error) {
	s.mu.Lock()
	s.closed = err
	s.mu.Unlock()
	s.wake()
}

func (s *drainSink) wake() {
	select {
	case s.turn <- struct{}{}:
	default:
	}
}

// take returns the ids that were collected since the last call.
func (s *drainSink) take() (ids []batch.ID, full bool, closed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids, s.ids = s.ids, nil
	return ids, s.full, s.closed
}
