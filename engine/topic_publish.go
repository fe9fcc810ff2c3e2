package engine

import (
	"context"
	"time"

	"penstock/engine/inbox"
)

// Publish stores one message and returns when it is on stable storage. It borrows body until then. An error that is
// neither ErrDisk nor ErrClosed means that nothing was stored.
func (t *Topic) Publish(ctx context.Context, body []byte) (ID, error) {
	return t.publish(ctx, body, nil, 0)
}

// PublishDeferred is Publish for a message whose first delivery waits for delay.
func (t *Topic) PublishDeferred(ctx context.Context, body []byte, delay time.Duration) (ID, error) {
	return t.publish(ctx, body, nil, delay)
}

// PublishBatch stores all messages or none, in order and with consecutive ids in one partition, and returns the first
// id. It borrows the bodies until it returns.
func (t *Topic) PublishBatch(ctx context.Context, bodies [][]byte) (ID, error) {
	return t.publish(ctx, nil, bodies, 0)
}

func (t *Topic) publish(ctx context.Context, body []byte, bodies [][]byte, delay time.Duration) (ID, error) {
	w := inbox.NewWaiter()
	defer w.Free()
	if w.Messages = bodies; bodies == nil {
		w.Carry(body)
	}
	w.Defer, w.Alone, w.Waits = delay, true, true
	if err := t.submit(ctx, &w.Put, nil); err != nil {
		return 0, err
	}
	return w.Wait(ctx)
}

// PublishSealed stores a batch that segment.Builder sealed, without encoding its records again. It borrows the batch
// until it returns.
func (t *Topic) PublishSealed(ctx context.Context, batch []byte) (ID, error) {
	w := inbox.NewWaiter()
	defer w.Free()
	w.Kind, w.Special, w.Alone, w.Waits = inbox.Sealed, &inbox.Special{Sealed: batch}, true, true
	if err := t.submit(ctx, &w.Put, nil); err != nil {
		return 0, err
	}
	return w.Wait(ctx)
}

// PublishAsync submits one message, and calls done exactly once: when the message is on stable storage, or was refused.
// It borrows body until then. done may run on the committer and must not block: it may send on a buffered channel,
// count, or hand over. PublishAsync blocks only while the inbox is full, at most Options.AdmitTimeout. If it returns an
// error, done is not called.
func (t *Topic) PublishAsync(body []byte, done func(ID, error)) error {
	a := t.e.store.asyncPut(body, done)
	if err := t.submit(context.Background(), &a.Put, nil); err != nil {
		return err
	}
	return nil
}

// Submit submits a Put. It blocks only while the inbox is full, at most Options.AdmitTimeout, and then returns
// ErrOverloaded. If it returns an error, nothing was stored and Done is not called.
func (t *Topic) Submit(p *inbox.Put) error { return t.submit(context.Background(), p, nil) }

// submit measures p and puts it into the inbox of pt; nil: of the topic's next partition.
func (t *Topic) submit(ctx context.Context, p *inbox.Put, pt *partition) error {
	e := t.e
	if err := e.limits.Measure(p); err != nil {
		return err
	}
	if t.shared.deleted.Load() {
		return ErrDeleted
	}
	// The engine's watch sets the default deadline, for a put that is still in the inbox at its next round: to read the
	// clock for every put would cost as much as storing it.
	p.DeadlineNs = 0
	if !p.Deadline.IsZero() {
		p.DeadlineNs = e.clock.NowNs() + int64(e.host.Until(p.Deadline))
	}
	if pt == nil {
		pt = t.nextPartition()
	}
	return pt.enqueue(ctx, p)
}
