package cluster

import (
	"context"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
)

// Host is the world of a store that runs by hand: for simulation. What waits is a task of the host, exactly one of them
// runs at a time, and time passes only while all wait. host.Stepped of the engine is one.
type Host interface {
	// Go starts a task.
	Go(f func())
	// WaitFor lets others run until ready says true or d has passed (0: there is no end), and says which it was.
	WaitFor(ready func() bool, d time.Duration) bool
	// WithTimeout is context.WithTimeout by the host's time.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	NewUUID() uuid.UUID
}

// Everything that a store asks of goroutines, timers and chance goes through the functions of this file: Go's own, or a
// Host's.

// spawn runs f beside the caller.
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
	byTime   woken = iota // it took as long as it might
	byEnd                 // ctx has ended
	byFirst               // a has something, or is closed
	bySecond              // b
)

// await waits for d (0: without an end), for the end of ctx, or for something in a or b, either of which may be nil.
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

// taken takes a value of ch, or learns that it was closed.
func taken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// receive waits for ch, whatever ends meanwhile.
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

// tasks counts what Close waits for.
type tasks struct {
	mu   lock.Mutex[lock.ClusterTasks]
	n    int
	done chan struct{} // of those that run; nil: none does
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

// ended is closed when none runs; nil: none does now.
func (t *tasks) ended() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done
}
