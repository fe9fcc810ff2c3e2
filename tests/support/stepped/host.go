package stepped

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/platform"
	"penstock/replicate/peer"
)

// World is what a simulation must provide for a Host: the clocks of one machine, a network, the state of its disk,
// and randomness. If the World and the disk draw from one random source, the same seed gives the same run.
type World interface {
	Now() time.Time         // the wall clock, which may step
	Instant() time.Duration // the monotonic clock, from any origin
	NewUUID() uuid.UUID
	// Listen creates the node's connections. Their events go to h, outside of any task.
	Listen(self peer.Node, cluster uuid.UUID, h peer.Handler) platform.Transport
	// Linger is how long a task that the engine starts now waits before it runs, because goroutines do not run at once
	// either.
	Linger() time.Duration
	// Hung says whether the disk hangs now. See platform.Host.AwaitDisk.
	Hung() bool
	// Slow says whether writes hang or take longer than usual. If so, each group of the commit log goes through the queue,
	// also a small one: the code that writes it itself cannot wait in the middle of a Step.
	Slow() bool
	// Choose picks one of n tasks, to be tried first.
	Choose(n int) int
}

// Answerer is a World that knows who answers at an address. It says so at once.
type Answerer interface {
	Ask(self peer.Node, address string) peer.Answer
}

// Host is a simulated machine on which one engine runs without goroutines; it implements platform.Host. Code that waits
// is a task (a coroutine). Exactly one task, or the caller of Step, runs at a time. Time passes only between calls of
// Step.
//
// All methods of a Host, and those of the engine on it, belong to one goroutine. Methods of the engine that wait must
// be called in a task (Go). A Host also runs the tasks of the engine's metadata store; see cluster.Options.Host.
type Host struct {
	world    World
	tasks    []*task
	running  *task // nil: the caller of Step
	timeouts []*timeout
	loops    []*loop
	log      platform.Log // nil: no commit log runs
	dead     bool

	markAfter time.Duration // the commit log writes a mark after resting this long; 0: never
	owes      uint64        // the group for which the commit log owes a mark; 0: none
	markAt    time.Duration // when the commit log is told to write it
}

// task is a function that can wait.
type task struct {
	own    bool          // started by the engine, not by the simulation
	ready  func() bool   // nil: the task waits only for its time
	at     time.Duration // when the task may run even if ready says false
	yield  func(struct{}) bool
	resume func() (struct{}, bool)
	stop   func()
}

type timeout struct {
	at     time.Duration
	cancel context.CancelFunc
}

type loop struct {
	platform.Loop
	timer *timer
}

type timer struct {
	s  *Host
	at time.Duration
}

func (t *timer) Reset(d time.Duration) { t.at = t.s.Mono() + max(0, d) }
func (t *timer) Stop()                 { t.at = never }

// maxRounds is more rounds than any step needs.
const maxRounds = 100_000

const never = time.Duration(1<<63 - 1)

// New returns a Host on which nothing runs yet. The commit log writes a mark when it has rested for markAfter, or never
// if markAfter is 0.
func New(w World, markAfter time.Duration) *Host {
	return &Host{world: w, markAfter: markAfter}
}

// Go starts a task of the simulation, which runs within a later Step.
func (s *Host) Go(f func()) { s.start(f, false, 0) }

func (s *Host) Spawn(f func()) { s.start(f, true, s.world.Linger()) }

func (s *Host) SpawnIn(_ *sync.WaitGroup, f func()) { s.Spawn(f) }

func (s *Host) Alongside(_ *sync.WaitGroup, f func()) { f() }

// errEnded unwinds a task that is stopped.
var errEnded = errors.New("stepped: the task was stopped")

func (s *Host) start(f func(), own bool, delay time.Duration) {
	if s.dead {
		return
	}
	t := &task{own: own, at: s.Mono() + delay}
	t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != any(errEnded) {
				panic(r)
			}
		}()
		t.yield = yield
		f()
	})
	s.tasks = append(s.tasks, t)
}

// WaitUntil lets other tasks run until ready returns true. It must be called in a task. Step calls ready often, outside
// of the task.
func (s *Host) WaitUntil(ready func() bool) {
	if !ready() {
		s.wait(ready, never)
	}
}

func (s *Host) wait(ready func() bool, at time.Duration) {
	t := s.running
	if t == nil {
		panic("BUG: stepped: something waits outside of a task")
	}
	t.ready, t.at = ready, at
	if !t.yield(struct{}{}) {
		panic(errEnded)
	}
}

// WaitFor is WaitUntil with a limit: it gives up after d, unless d is 0. It says whether ready returned true.
func (s *Host) WaitFor(ready func() bool, d time.Duration) bool {
	if d == 0 {
		s.WaitUntil(ready)
		return true
	}
	if ready() {
		return true
	}
	was := false
	s.wait(func() bool { was = ready(); return was }, s.Mono()+d)
	return was
}

// Sleep waits for d, and returns false if ctx ended before. It is for tasks of the simulation.
func (s *Host) Sleep(ctx context.Context, d time.Duration) bool { return s.Pause(d, ctx.Done()) }

func (s *Host) Pause(d time.Duration, stop <-chan struct{}) bool {
	stopped := false
	s.wait(func() bool { stopped = platform.Taken(stop); return stopped }, s.Mono()+d)
	return !stopped
}

func (s *Host) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	t := &timeout{s.Mono() + d, cancel}
	s.timeouts = append(s.timeouts, t)
	return ctx, func() {
		cancel()
		s.timeouts = slices.DeleteFunc(s.timeouts, func(o *timeout) bool { return o == t })
	}
}

// Wait waits for all tasks of the engine except the running one, whatever the group, because it is called when the
// engine ends.
func (s *Host) Wait(*sync.WaitGroup, func() bool) bool {
	s.WaitUntil(func() bool {
		return !slices.ContainsFunc(s.tasks, func(t *task) bool { return t.own && t != s.running })
	})
	return true
}

func (s *Host) Lock(mu platform.Mutex) { s.WaitUntil(mu.TryLock) }

func (s *Host) Receive(ch <-chan struct{}) { s.WaitUntil(func() bool { return platform.Taken(ch) }) }

func (s *Host) Either(a, b <-chan struct{}) bool {
	var first bool
	s.WaitUntil(func() bool { first = platform.Taken(a); return first || platform.Taken(b) })
	return first
}

func (s *Host) EitherUntil(at time.Duration, a, b <-chan struct{}) (isA, byTime bool) {
	var isB bool
	s.wait(func() bool {
		isA = platform.Taken(a)
		isB = !isA && platform.Taken(b)
		return isA || isB
	}, at)
	return isA, !isA && !isB
}

func (s *Host) Result(ch <-chan error, stop <-chan struct{}) (err error, ok bool) {
	s.WaitUntil(func() bool {
		select {
		case err = <-ch:
			ok = true
			return true
		default:
			return platform.Taken(stop)
		}
	})
	return err, ok
}

func (s *Host) Wall() time.Time                 { return s.world.Now() }
func (s *Host) Mono() time.Duration             { return s.world.Instant() }
func (s *Host) Awake() time.Duration            { return s.world.Instant() }
func (s *Host) ReadAwake()                      {}
func (s *Host) Instant() time.Time              { return time.Unix(0, int64(s.Mono())) }
func (s *Host) Since(t time.Time) time.Duration { return s.Instant().Sub(t) }
func (s *Host) Until(t time.Time) time.Duration { return t.Sub(s.world.Now()) }
func (s *Host) NewUUID() uuid.UUID              { return s.world.NewUUID() }

func (s *Host) NewTimer() platform.Timer { return &timer{s: s, at: never} }

func (s *Host) Loop(_ *sync.WaitGroup, l platform.Loop) {
	s.loops = append(s.loops, &loop{l, l.Timer.(*timer)})
}

// Ask asks the world, if it has an answer (Answerer). Otherwise nobody is at any address.
func (s *Host) Ask(_ context.Context, o peer.Options, address string) (peer.Answer, error) {
	if w, ok := s.world.(Answerer); ok {
		return w.Ask(o.Self, address), nil
	}
	return peer.Answer{Nobody: true}, nil
}

func (s *Host) Listen(o peer.Options) (*platform.Network, error) {
	return platform.Simulated(s.world.Listen(o.Self, o.Cluster, o.Handler)), nil
}

func (s *Host) AwaitDisk(stop <-chan struct{}) {
	s.WaitUntil(func() bool { return !s.world.Hung() || platform.Taken(stop) })
}

// DiskQueues also has half of the other groups go through the queue, where several can be in flight.
func (s *Host) DiskQueues() bool { return s.world.Slow() || s.world.Choose(2) == 0 }

func (s *Host) InlineLog() bool { return true }

// RunLog starts the log. Step then calls l.Step.
func (s *Host) RunLog(l platform.Log, _ func() error) error {
	if err := l.Start(); err != nil {
		return err
	}
	s.log = l
	return nil
}

// maxDrain bounds the wait for a log that cannot store everything it has accepted.
const maxDrain = 5 * time.Second

// StopLog waits until drained returns true, for at most maxDrain.
func (s *Host) StopLog(_ platform.Log, drained, _ func() bool) (err error, ended bool) {
	s.wait(drained, s.Mono()+maxDrain)
	s.log = nil
	return nil, true
}

// Step does everything that can be done now, and returns when there will be something to do if nothing else happens. An
// error says that the commit log has failed: the engine stores nothing more.
func (s *Host) Step() (next time.Duration, err error) {
	rounds := 0
	for progress := true; progress && !s.dead; rounds++ {
		if rounds > maxRounds {
			panic("BUG: stepped: it always finds something to do, and no time passes")
		}
		progress = s.expire()
		progress = s.runTask() || progress
		if err == nil && s.log != nil && !(s.log.NoRoom() && s.world.Hung()) { // a write without a queue would come back
			s.rest()
			var moved bool
			moved, err = s.log.Step(false)
			progress = moved || progress
		}
		progress = s.runLoops() || progress
	}
	return s.due(), err
}

// expire cancels the contexts whose timeouts have passed.
func (s *Host) expire() (any bool) {
	now := s.Mono()
	for i := 0; i < len(s.timeouts); {
		if t := s.timeouts[i]; t.at <= now {
			s.timeouts = slices.Delete(s.timeouts, i, i+1)
			t.cancel()
			any = true
			continue
		}
		i++
	}
	return any
}

// runTask lets one task run until it waits again. It says whether there was a task to run.
func (s *Host) runTask() bool {
	n := len(s.tasks)
	if n == 0 {
		return false
	}
	first := 0
	if n > 1 {
		first = s.world.Choose(n)
	}
	for i := range n {
		t := s.tasks[(first+i)%n]
		if t.at <= s.Mono() || t.ready != nil && t.ready() {
			s.resume(t)
			return true
		}
	}
	return false
}

func (s *Host) resume(t *task) {
	t.ready, t.at = nil, never
	s.running = t
	_, more := t.resume()
	s.running = nil
	if !more {
		s.tasks = slices.DeleteFunc(s.tasks, func(o *task) bool { return o == t })
	}
}

// rest tells the commit log when it has rested long enough. On a platform.Machine, the log has a timer for this.
func (s *Host) rest() {
	if s.markAfter == 0 {
		return
	}
	now := s.Mono()
	if seq := s.log.Owes(); seq != s.owes {
		s.owes, s.markAt = seq, now+s.markAfter
	}
	switch {
	case s.owes == 0:
		s.markAt = never
	case now >= s.markAt:
		s.markAt = never
		s.log.Rested()
	}
}

// runLoops runs each loop that was woken or whose time has come. It says whether it ran any.
func (s *Host) runLoops() (any bool) {
	for i := 0; i < len(s.loops); i++ {
		l := s.loops[i]
		if platform.Taken(l.Done) {
			s.loops = slices.Delete(s.loops, i, i+1)
			i--
			continue
		}
		timeUp := l.timer.at <= s.Mono()
		if timeUp {
			l.timer.at = never
		}
		if woken := platform.Taken(l.Woken); timeUp || woken {
			l.Run(timeUp)
			any = true
		}
	}
	return any
}

// due returns when something happens next without an event from outside.
func (s *Host) due() time.Duration {
	next := never
	if s.log != nil && s.owes != 0 { // a log that has ended owes no mark
		next = s.markAt
	}
	for _, t := range s.tasks {
		next = min(next, t.at)
	}
	for _, t := range s.timeouts {
		next = min(next, t.at)
	}
	for _, l := range s.loops {
		next = min(next, max(s.Mono(), l.timer.at))
	}
	return next
}

// Kill ends everything that runs, as the end of a process does: nothing more is written, sent or answered. The
// simulation must have copied the contents of the disk before.
func (s *Host) Kill() {
	s.dead = true
	tasks := s.tasks
	s.tasks = nil
	for _, t := range tasks {
		s.running = t
		t.stop()
	}
	s.running = nil
}
