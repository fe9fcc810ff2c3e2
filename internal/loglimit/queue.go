package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A program that embeds the engine gives it a logger, which may do anything: publish into the engine, or write to the
// disk that hangs. So a line of the log goes through a queue to a goroutine of its own. Who logs waits for the line to
// be written, because lines are then in order with what happens, but only for maxWait; while the logger is that
// slow, nobody waits. Lines that do not fit into the queue are dropped and counted.
const (
	maxWait  = 20 * time.Millisecond
	maxLines = 1024
	endWait  = time.Second // how long End waits for the logger
)

// Queue keeps an engine from waiting for its logger. Any goroutine may use it. The engine makes it when it opens,
// and ends it when it has closed.
type Queue struct {
	lines   chan line
	slow    atomic.Bool // nobody waits, until the queue is empty
	dropped atomic.Uint64
	stop    chan struct{} // closed by End
	ended   chan struct{} // closed when the goroutine has ended
	once    sync.Once
}

type line struct {
	ctx     context.Context
	handler slog.Handler
	record  slog.Record
	written chan struct{} // closed when handler has returned
}

// NewQueue returns a queue with a goroutine that runs until End.
func NewQueue() *Queue {
	q := &Queue{
		lines: make(chan line, maxLines), stop: make(chan struct{}), ended: make(chan struct{}),
	}
	go q.run()
	return q
}

// Logger returns a logger whose lines go to l through the queue.
func (q *Queue) Logger(l *slog.Logger) *slog.Logger {
	return slog.New(&handler{q, l.Handler()})
}

// Dropped returns how many lines were dropped.
func (q *Queue) Dropped() uint64 { return q.dropped.Load() }

// End ends the goroutine once it has written what is in the queue, and returns after endWait at the latest. Later
// lines are written by those who log them.
func (q *Queue) End() {
	q.once.Do(func() { close(q.stop) })
	t := time.NewTimer(endWait)
	defer t.Stop()
	select {
	case <-q.ended:
	case <-t.C:
	}
}

func (q *Queue) run() {
	defer close(q.ended)
	told := uint64(0)
	for {
		select {
		case l := <-q.lines:
			told = q.write(l, told)
			continue
		default:
			q.slow.Store(false)
		}
		select {
		case l := <-q.lines:
			told = q.write(l, told)
		case <-q.stop:
			for len(q.lines) > 0 {
				told = q.write(<-q.lines, told)
			}
			return
		}
	}
}

// write gives a line to its handler, and says how many were dropped since that was told last.
func (q *Queue) write(l line, told uint64) uint64 {
	_ = l.handler.Handle(l.ctx, l.record)
	close(l.written)
	dropped := q.dropped.Load()
	if dropped > told {
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "lines of the log were dropped, because the logger was too slow", 0)
		r.AddAttrs(slog.Uint64("lines", dropped-told))
		_ = l.handler.Handle(context.Background(), r)
	}
	return dropped
}

// handler is a slog.Handler whose lines go through the queue.
type handler struct {
	q    *Queue
	next slog.Handler
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.next.Enabled(ctx, l)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.q, h.next.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.q, h.next.WithGroup(name)}
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	q := h.q
	select {
	case <-q.stop:
		return h.next.Handle(ctx, r)
	default:
	}
	l := line{context.WithoutCancel(ctx), h.next, r.Clone(), make(chan struct{})}
	select {
	case q.lines <- l:
	default:
		q.dropped.Add(1)
		return nil
	}
	if q.slow.Load() {
		return nil
	}
	t := time.NewTimer(maxWait)
	defer t.Stop()
	select {
	case <-l.written:
	case <-q.ended:
	case <-t.C:
		q.slow.Store(true)
	}
	return nil
}
