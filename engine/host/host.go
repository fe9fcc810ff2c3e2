// Package host is what the engine asks of the machine that it runs on, beside the disk: clocks, goroutines, waiting,
// chance, the network, and somebody who runs the commit log.
//
// There are two implementations. Machine is a real one: Go's clocks, goroutines and timers, and TCP. Stepped belongs
// to a simulation: what waits is a coroutine, exactly one runs at a time, and time passes only between two calls of
// Step; so one seed is one history. The engine has no other way to start or wait for anything that a simulation runs,
// and does not know which of the two it has.
package host

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/replicate/peer"
)

// Mutex is what Lock locks: a lock.Mutex of any class.
type Mutex interface {
	Lock()
	TryLock() bool
}

// Host is a machine, real or simulated. Its methods may be called from any goroutine; those of a Stepped that wait
// only from a task.
type Host interface {
	// Wall reads the wall clock, which may step.
	Wall() time.Time
	// Mono is the monotonic clock, from any beginning. It does not count the time in which the machine stood still.
	Mono() time.Duration
	// Awake is the monotonic clock that also counts the time in which the machine stood still (suspended to memory or
	// disk), from any beginning. Leases are measured by it: the other nodes' clocks went on meanwhile.
	Awake() time.Duration
	// ReadAwake reads the clock that is behind Awake itself. Awake is asked for every message and so looks there only
	// when the cheaper clocks disagree; whoever has the time calls ReadAwake now and then.
	ReadAwake()
	// Instant is Mono as a time.Time, for spans: only differences of two of them mean something.
	Instant() time.Time
	// Since is the monotonic time since an Instant.
	Since(t time.Time) time.Duration
	// Until is the time left to a caller's deadline. One with a monotonic reading survives steps of the wall clock.
	Until(deadline time.Time) time.Duration

	NewUUID() uuid.UUID

	// Spawn runs f beside the caller.
	Spawn(f func())
	// SpawnIn is Spawn of what somebody will wait for with Wait(wg).
	SpawnIn(wg *sync.WaitGroup, f func())
	// Alongside is SpawnIn of what only uses the disk, and whose starter calls wg.Wait at once.
	Alongside(wg *sync.WaitGroup, f func())
	// Wait waits until everything that was spawned in wg has ended, or giveUp says true; then it returns false.
	Wait(wg *sync.WaitGroup, giveUp func() bool) bool

	// Lock locks a mutex whose holder may wait for something else while it holds it.
	Lock(mu Mutex)
	// Receive takes a value of ch, or learns that it was closed.
	Receive(ch <-chan struct{})
	// Either takes a value of a or b, or learns that one was closed. It says whether it was a.
	Either(a, b <-chan struct{}) bool
	// EitherUntil is Either that ends, with byTime, when Mono reaches at.
	EitherUntil(at time.Duration, a, b <-chan struct{}) (isA, byTime bool)
	// Result takes the error that comes in ch; ok is false if stop was closed before.
	Result(ch <-chan error, stop <-chan struct{}) (err error, ok bool)
	// Pause waits for d, and returns false if stop was closed before.
	Pause(d time.Duration, stop <-chan struct{}) bool
	// WithTimeout is context.WithTimeout by the host's clock.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)

	// NewTimer makes a timer for a Loop. It is not set.
	NewTimer() Timer
	// Loop runs l, on a goroutine that is counted in wg, until l.Done is closed.
	Loop(wg *sync.WaitGroup, l Loop)

	// Listen begins to talk to the other nodes of a cluster.
	Listen(o peer.Options) (*Network, error)

	// InlineLog says that the commit log must prepare its files within Step, without goroutines of its own.
	InlineLog() bool
	// RunLog runs the commit log until StopLog: run does so on a real machine, and a Stepped steps l. The error is that
	// of l.Start, where it is known at once; run's error is what StopLog returns.
	RunLog(l Log, run func() error) error
	// StopLog ends the commit log when what was accepted is stored, which drained tells. ended is false if giveUp said
	// true before that.
	StopLog(l Log, drained, giveUp func() bool) (err error, ended bool)

	// AwaitDisk returns when the disk answers or stop is closed. On a real machine it returns at once: there a write to
	// a disk that hangs waits by itself.
	AwaitDisk(stop <-chan struct{})
	// DiskQueues says that no write may wait for the disk on the caller's goroutine: it has to go through a queue.
	DiskQueues() bool
}

// Log is the commit log: *clog.Log has these methods.
type Log interface {
	Start() error
	Step(block bool) (progress bool, err error)
	Stop()
	Owes() uint64
	Rested()
}

// Timer fires once, when its time has come, in the Loop that it belongs to. It is not safe for concurrent use: whoever
// sets it holds a lock.
type Timer interface {
	Reset(d time.Duration) // at least d from now; a time that was set before is forgotten
	Stop()
}

// Loop is a function that runs whenever somebody wakes it or its time has come, one run at a time.
type Loop struct {
	Woken <-chan struct{} // one value: run
	Done  <-chan struct{} // closed: never again
	Timer Timer           // of the same host's NewTimer
	Run   func(timeUp bool)
}

// taken takes a value of ch if there is one, or learns that it was closed.
func taken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
