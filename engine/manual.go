package engine

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/engine/meta"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/peer"
)

// Host is the world of an engine that runs by hand. It is for simulation: with one source of chance behind it and behind the disk, the
// same seed is the same run.
type Host interface {
	Now() time.Time         // the wall clock, which may step; the engine reads it as it reads that of a machine (clock)
	Instant() time.Duration // the monotonic clock, from any beginning
	NewUUID() uuid.UUID
	// Listen makes the node's connections. What they bring goes to h, outside of any task.
	Listen(self meta.Node, cluster uuid.UUID, h peer.Handler) Network
	// Linger is how long a task that is started now waits before it runs: goroutines are not scheduled at once.
	Linger() time.Duration
	// Hung says whether the disk hangs now. The flusher, which writes to files itself and holds locks when it does, begins nothing then; all other writes
	// are a queue's, which completes none.
	Hung() bool
	// Slow says whether writes take longer than usual, or hang. Then no group of the commit log is written on the spot, as one alone is: what does that cannot
	// wait in the middle of a Step.
	Slow() bool
	// Choose picks one of n tasks that could run.
	Choose(n int) int
}

// Network is what an engine needs of peer.Net, with the same promises. Received.Buf of the frames that a Host delivers is nil; their
// payloads are never used again.
type Network interface {
	SetNodes(nodes map[replicate.NodeID]*meta.Node)
	TrySend(to replicate.NodeID, f *netproto.Frame) error
	Connected(node replicate.NodeID) bool
	Disconnect(node replicate.NodeID, reason error)
	Close()
}

// Manual runs an engine without goroutines of its own: what waits is a task (a coroutine), and exactly one of them, or the caller,
// runs at a time. Time passes only between calls of Step. Its methods, and those of its Engine, belong to one goroutine; methods of the
// Engine that wait must be called in a task (Go).
//
// ClusterOptions.Store is called in tasks and may Wait; the instants that it gives to Registration.Lease are time.Unix(0, Host.Instant()).
type Manual struct {
	host     Host
	e        *Engine
	tasks    []*task
	running  *task
	timeouts []*manualTimeout
	channels []*Channel
	marks    PartitionMarks // what EachMarks shows
	logging  bool           // the commit log was started
	dead     bool

	idle   Idle
	owes   uint64        // the group that the commit log owes a mark for; 0: none
	markAt time.Duration // when it gets it
}

// Idle says what an engine of a Manual does when it has nothing to do. One of Open does both by itself.
type Idle struct {
	MarkAfter  time.Duration // the commit log writes a mark when it has rested so long; 0: never
	ProbeAfter time.Duration // the disk is asked whether it answers when nothing was written for so long; 0: never
}

// task is a function that can wait.
type task struct {
	own    bool        // the engine's, not the host's
	ready  func() bool // nil: it only waits for its time
	at     time.Duration
	yield  func(struct{}) bool
	resume func() (struct{}, bool)
	stop   func()
}

type manualTimeout struct {
	at     time.Duration
	cancel context.CancelFunc
}

// maxRounds is more than any step needs.
const maxRounds = 100_000

const never = time.Duration(1<<63 - 1)

// NewManual makes a Manual that runs nothing yet.
func NewManual(h Host) *Manual { return &Manual{host: h} }

// Open is engine.Open; it must be called in a task.
func (m *Manual) Open(ctx context.Context, o Options) (*Engine, error) { return openEngine(ctx, o, m) }

// SetIdle chooses what is done when there is nothing to do; at first that is nothing. Call it before Open.
func (m *Manual) SetIdle(i Idle) { m.idle = i }

// Go starts a task. It runs within a later Step.
func (m *Manual) Go(f func()) { m.start(f, false, 0) }

func (m *Manual) spawn(f func()) { m.start(f, true, m.host.Linger()) }

// errEnded ends a task that is stopped.
var errEnded = errors.New("engine: the task was stopped")

func (m *Manual) start(f func(), own bool, delay time.Duration) {
	if m.dead {
		return
	}
	t := &task{own: own, at: m.host.Instant() + delay}
	t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != any(errEnded) {
				panic(r)
			}
		}()
		t.yield = yield
		f()
	})
	m.tasks = append(m.tasks, t)
}

// Wait lets others run until ready says true. It must be called in a task. ready is called often, by whoever runs.
func (m *Manual) Wait(ready func() bool) {
	if !ready() {
		m.wait(ready, never)
	}
}

func (m *Manual) wait(ready func() bool, at time.Duration) {
	t := m.running
	if t == nil {
		panic("BUG: engine: something waits outside of a task")
	}
	t.ready, t.at = ready, at
	if !t.yield(struct{}{}) {
		panic(errEnded)
	}
}

// pause waits for d, and says false if stop was closed before.
func (m *Manual) pause(d time.Duration, stop <-chan struct{}) bool {
	stopped := false
	m.wait(func() bool { stopped = taken(stop); return stopped }, m.host.Instant()+d)
	return !stopped
}

// Sleep is for tasks of the host; it ends early when ctx does.
func (m *Manual) Sleep(ctx context.Context, d time.Duration) bool { return m.pause(d, ctx.Done()) }

// WaitFor is Wait that ends after d, unless d is 0. It says whether ready did.
func (m *Manual) WaitFor(ready func() bool, d time.Duration) bool {
	if d == 0 {
		m.Wait(ready)
		return true
	}
	if ready() {
		return true
	}
	was := false
	m.wait(func() bool { was = ready(); return was }, m.host.Instant()+d)
	return was
}

// WithTimeout is context.WithTimeout by the host's time.
func (m *Manual) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return m.withTimeout(ctx, d)
}

// NewUUID is the host's.
func (m *Manual) NewUUID() uuid.UUID { return m.host.NewUUID() }

func (m *Manual) withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	t := &manualTimeout{m.host.Instant() + d, cancel}
	m.timeouts = append(m.timeouts, t)
	return ctx, func() {
		cancel()
		m.timeouts = slices.DeleteFunc(m.timeouts, func(o *manualTimeout) bool { return o == t })
	}
}

// waitForSpawned waits for all tasks of the engine but the running one.
func (m *Manual) waitForSpawned() {
	m.Wait(func() bool {
		return !slices.ContainsFunc(m.tasks, func(t *task) bool { return t.own && t != m.running })
	})
}

// Step does everything that can be done now, and says when there will be something to do if nothing else happens. An error says that
// the commit log failed: the engine stores nothing more.
func (m *Manual) Step() (next time.Duration, err error) {
	rounds := 0
	for progress := true; progress && !m.dead; rounds++ {
		if rounds > maxRounds {
			panic("BUG: engine: it always finds something to do, and no time passes")
		}
		progress = m.expire()
		progress = m.runTask() || progress
		if err == nil {
			var moved bool
			moved, err = m.stepLog()
			progress = moved || progress
		}
		progress = m.pump() || progress
	}
	return m.due(), err
}

func (m *Manual) expire() (any bool) {
	now := m.host.Instant()
	for i := 0; i < len(m.timeouts); {
		if t := m.timeouts[i]; t.at <= now {
			m.timeouts = slices.Delete(m.timeouts, i, i+1)
			t.cancel()
			any = true
			continue
		}
		i++
	}
	return any
}

// runTask lets one task run until it waits again.
func (m *Manual) runTask() bool {
	n := len(m.tasks)
	if n == 0 {
		return false
	}
	first := 0
	if n > 1 {
		first = m.host.Choose(n)
	}
	for i := range n {
		t := m.tasks[(first+i)%n]
		if t.at <= m.host.Instant() || t.ready != nil && t.ready() {
			m.resume(t)
			return true
		}
	}
	return false
}

func (m *Manual) resume(t *task) {
	t.ready, t.at = nil, never
	m.running = t
	_, more := t.resume()
	m.running = nil
	if !more {
		m.tasks = slices.DeleteFunc(m.tasks, func(o *task) bool { return o == t })
	}
}

func (m *Manual) stepLog() (bool, error) {
	e := m.e
	if !m.logging {
		return false, nil
	}
	m.rest()
	return e.clog.Step(false)
}

// rest tells the commit log when it has rested: one of Open has a timer for that.
func (m *Manual) rest() {
	if m.idle.MarkAfter == 0 {
		return
	}
	now := m.host.Instant()
	if seq := m.e.clog.Owes(); seq != m.owes {
		m.owes, m.markAt = seq, now+m.idle.MarkAfter
	}
	switch {
	case m.owes == 0:
		m.markAt = never
	case now >= m.markAt:
		m.markAt = never
		m.e.clog.Rested()
	}
}

// pump does what the channels' own goroutines do.
func (m *Manual) pump() (any bool) {
	for i := 0; i < len(m.channels); i++ {
		c := m.channels[i]
		if taken(c.done) {
			m.channels = slices.Delete(m.channels, i, i+1)
			i--
			continue
		}
		due := c.due()
		if due {
			c.armed = 0
		}
		if woken := taken(c.woken); due || woken {
			c.pump()
			any = true
		}
	}
	return any
}

// due says whether the channel's timer has fired; only with a Host, where nobody else holds mu.
func (c *Channel) due() bool {
	return c.armed != 0 && c.e.until(c.armed) <= 0
}

// due is when the next thing happens by itself.
func (m *Manual) due() time.Duration {
	next := never
	if m.logging && m.owes != 0 { // a log that has ended promises nothing more
		next = m.markAt
	}
	for _, t := range m.tasks {
		next = min(next, t.at)
	}
	for _, t := range m.timeouts {
		next = min(next, t.at)
	}
	for _, c := range m.channels {
		if c.armed != 0 {
			next = min(next, m.host.Instant()+max(0, c.e.until(c.armed)))
		}
	}
	return next
}

// begin starts what the engine does by itself. A commit log that Open has found to be damaged does not start: the engine is up without one, as after Open.
func (m *Manual) begin() error {
	damaged := m.e.poisoned.Load() != nil
	if err := m.e.clog.Start(); err != nil && !damaged {
		return err
	}
	m.logging = !damaged
	m.spawn(m.flush)
	m.spawn(m.e.confirmer.runByHand)
	return nil
}

// flush is flusher.run.
func (m *Manual) flush() {
	f := m.e.flusher
	tick, retain := m.host.Instant()+flusherTick, m.host.Instant()+m.e.opts.RetentionInterval
	for !f.stopping() {
		m.wait(func() bool { return len(f.kick) > 0 || f.stopping() }, min(tick, retain))
		m.Wait(func() bool { return !m.host.Hung() || f.stopping() })
		if taken(f.kick) {
			f.checkSpace()
			f.work()
		}
		if now := m.host.Instant(); now >= tick {
			tick = now + flusherTick
			f.onTick()
		}
		if now := m.host.Instant(); now >= retain {
			retain = now + m.e.opts.RetentionInterval
			f.onRetain()
		}
	}
}

// maxDrain bounds the end of a log that cannot store what waits.
const maxDrain = 5 * time.Second

// drainLog waits until what was accepted is stored.
func (m *Manual) drainLog() error {
	c := &m.e.committer
	m.wait(func() bool { return c.flying.Load() == 0 && !c.pushed() || m.e.poisoned.Load() != nil }, m.host.Instant()+maxDrain)
	m.logging = false
	if err := m.e.poisoned.Load(); err != nil {
		return *err
	}
	return nil
}

// Kill ends the engine as the end of its process does: nothing more is written, sent or answered. What is left of its disk
// must have been taken before. It says what memory was still in use by what only the process could end.
func (m *Manual) Kill() error {
	m.dead = true
	tasks := m.tasks
	m.tasks = nil
	for _, t := range tasks {
		m.running = t
		t.stop()
	}
	m.running = nil
	if m.e == nil {
		return nil
	}
	for _, c := range m.channels {
		c.view.Release()
	}
	for _, pt := range m.e.parts {
		if pt.rep != nil {
			for _, rd := range pt.rep.reads {
				rd.out.Release()
			}
		}
	}
	_ = m.e.release() // the disk is another one by now
	if m.e.arena != nil {
		return m.e.arena.Close()
	}
	return nil
}
