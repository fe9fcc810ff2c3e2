package platform

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

// Host is a machine: a Machine, or a simulated one (tests/support/stepped). Its methods may be called from any
// goroutine, except that those of a simulated machine that wait must be called in one of its tasks, which are
// coroutines.
type Host interface {
	// Wall reads the wall clock, which may step.
	Wall() time.Time
	// Mono reads the monotonic clock, from any origin. It does not count the time in which the machine was suspended.
	Mono() time.Duration
	// Awake is Mono plus the time in which the machine was suspended (to memory or disk), from any origin. Leases are
	// measured by it, because the other nodes' clocks go on during a suspension.
	Awake() time.Duration
	// ReadAwake reads the clock behind Awake itself. Awake is called for every message, and so reads that clock only
	// when cheaper clocks disagree. A goroutine that can afford it calls ReadAwake from time to time.
	ReadAwake()
	// Instant is Mono as a time.Time, for measuring spans: only the difference of two Instants has a meaning.
	Instant() time.Time
	// Since is the monotonic time since an Instant.
	Since(t time.Time) time.Duration
	// Until returns the time left until a caller's deadline. A deadline with a monotonic reading survives steps of the
	// wall clock.
	Until(deadline time.Time) time.Duration

	NewUUID() uuid.UUID

	// Spawn runs f concurrently with the caller.
	Spawn(f func())
	// SpawnIn is Spawn for a function that Wait(wg) must wait for.
	SpawnIn(wg *sync.WaitGroup, f func())
	// Alongside is SpawnIn for a function that waits for nothing but the disk, and whose caller calls wg.Wait at once.
	Alongside(wg *sync.WaitGroup, f func())
	// Wait waits until everything spawned in wg has ended, and returns true. If giveUp returns true before that, Wait
	// returns false.
	Wait(wg *sync.WaitGroup, giveUp func() bool) bool

	// Lock locks a mutex whose holder may wait for something else while it holds the mutex.
	Lock(mu Mutex)
	// Receive receives a value from ch, or returns when ch is closed.
	Receive(ch <-chan struct{})
	// Either waits until a or b has a value, which it receives, or is closed. It says whether that was a.
	Either(a, b <-chan struct{}) bool
	// EitherUntil is Either with a limit: it returns with byTime when Mono reaches at.
	EitherUntil(at time.Duration, a, b <-chan struct{}) (isA, byTime bool)
	// Result receives an error from ch. ok is false if stop was closed before.
	Result(ch <-chan error, stop <-chan struct{}) (err error, ok bool)
	// Pause waits for d, and returns false if stop was closed before.
	Pause(d time.Duration, stop <-chan struct{}) bool
	// WithTimeout is context.WithTimeout by the host's clock.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)

	// NewTimer returns a timer for a Loop. The timer is not set.
	NewTimer() Timer
	// Loop runs l, on a goroutine that is counted in wg, until l.Done is closed.
	Loop(wg *sync.WaitGroup, l Loop)

	// Listen opens the node's connections to the other nodes of its cluster.
	Listen(o peer.Options) (*Network, error)

	// Ask finds out which process answers at an address of the cluster; see peer.Ask.
	Ask(ctx context.Context, o peer.Options, address string) (peer.Answer, error)

	// InlineLog says that the commit log must prepare its files within Step, without its own goroutines.
	InlineLog() bool
	// RunLog runs the commit log until StopLog. A real machine calls run; a simulated one calls l.Start and then l.Step.
	// RunLog returns the error of l.Start if it is known at once; StopLog returns the error of run.
	RunLog(l Log, run func() error) error
	// StopLog ends the commit log once everything that was accepted is stored; drained says whether it is. ended is
	// false if giveUp returned true before that.
	StopLog(l Log, drained, giveUp func() bool) (err error, ended bool)

	// AwaitDisk returns when the disk answers or stop is closed. On a real machine it returns at once, because there a
	// write to a hung disk blocks by itself.
	AwaitDisk(stop <-chan struct{})
	// DiskQueues says that the caller's goroutine must not wait for the disk in a write: the write has to go through a
	// queue.
	DiskQueues() bool
}

// Log is the commit log. *clog.Log implements it.
type Log interface {
	Start() error
	Step(block bool) (progress bool, err error)
	Stop()
	Owes() uint64
	Rested()
	NoRoom() bool // it waits for room: then Step writes without a queue
}

// Timer fires once at its time, in the Loop that it belongs to. It is not safe for concurrent use: the goroutine that
// sets it holds a lock.
type Timer interface {
	Reset(d time.Duration) // at least d from now; replaces an earlier setting
	Stop()
}

// Loop is a function that runs whenever it is woken or its timer fires, one run at a time.
type Loop struct {
	Woken <-chan struct{} // a value makes the loop run
	Done  <-chan struct{} // closed: Run is never called again
	Timer Timer           // from NewTimer of the same host
	Run   func(timeUp bool)
}

// Wake puts a value into ch, which has room for one, unless it has one.
func Wake(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Taken receives a value from ch without blocking. It says whether it received one, or ch is closed.
func Taken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
