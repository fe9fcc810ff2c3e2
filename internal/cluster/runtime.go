package cluster

import (
	"context"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
)

// Host replaces goroutines, timers and chance in a simulation. Everything that waits is a task of the Host. Exactly one
// task runs at a time, and time passes only while all of them wait. The stepped.Host of
// tests/support is such a Host.
type Host interface {
	// Go starts a task.
	Go(f func())
	// WaitFor lets other tasks run until ready returns true or d has passed (0: no limit), and says which of the two it
	// was.
	WaitFor(ready func() bool, d time.Duration) bool
	// WithTimeout is context.WithTimeout on the host's clock.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	NewUUID() uuid.UUID
}

// The store uses goroutines, timers and random uuids only through the functions of this file. They use Go's own, or
// those of a Host.

// spawn runs f on a new goroutine or task.
func (s *store) spawn(f func()) {
	if h := s.opts.Host; h != nil {
		h.Go(f)
		return
	}
	go f()
}

// woken says what ended a wait.
type woken int

const (
	byTime   woken = iota // d has passed
	byEnd                 // ctx has ended
	byFirst               // a had a value, or is closed
	bySecond              // b had a value, or is closed
)

// await waits until d has passed (0: no limit), ctx has ended, or a or b has a value. a and b may be nil.
func (s *store) await(ctx context.Context, d time.Duration, a, b <-chan struct{}) (why woken) {
	if h := s.opts.Host; h != nil {
		h.WaitFor(func() bool {
			switch {
			case ctx.Err() != nil:
				why = byEnd
			case taken(a):
				why = byFirst
			case taken(b):
				why = bySecond
			}
			return why != byTime
		}, d)
		return why
	}
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-ctx.Done():
		return byEnd
	case <-a:
		return byFirst
	case <-b:
		return bySecond
	case <-over:
		return byTime
	}
}

// taken takes a value from ch without waiting. It also returns true if ch is closed.
func taken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// receive waits for ch, however long that takes.
func (s *store) receive(ch <-chan struct{}) { s.await(context.Background(), 0, ch, nil) }

func (s *store) withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if h := s.opts.Host; h != nil {
		return h.WithTimeout(ctx, d)
	}
	return context.WithTimeout(ctx, d)
}

func (s *store) newUUID() uuid.UUID {
	if h := s.opts.Host; h != nil {
		return h.NewUUID()
	}
	return uuid.New()
}

// tasks counts the goroutines that Close waits for. mu guards its fields.
type tasks struct {
	mu   lock.Mutex[lock.ClusterTasks]
	n    int
	done chan struct{} // closed when the last one ends; nil: none runs
}

func (t *tasks) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n += n; t.done == nil {
		t.done = make(chan struct{})
	}
}

func (t *tasks) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 {
		close(t.done)
		t.done = nil
	}
}

// ended returns a channel that is closed when no goroutine runs any more, or nil if none runs now.
func (t *tasks) ended() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done
}
