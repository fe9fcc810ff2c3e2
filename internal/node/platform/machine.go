package platform

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"penstock/replicate/peer"
)

// Machine is a real machine: the clocks, goroutines and timers of Go, and TCP. Each engine makes its own with
// NewMachine when it opens. All methods may be called from any goroutine.
type Machine struct {
	began time.Time
	awake *bootClock
	ran   chan error // gets the result of the commit log's run
}

// NewMachine returns a Machine whose clocks start now.
func NewMachine() *Machine {
	began := time.Now()
	c := &bootClock{
		cheap: func() (mono, wall int64) {
			t := time.Now()
			return int64(t.Sub(began)), t.UnixNano()
		},
		boot: func() int64 {
			var ts unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
				return int64(time.Since(began)) // a sandbox without this clock
			}
			return ts.Nano()
		},
	}
	return &Machine{began: began, awake: c.begin(), ran: make(chan error, 1)}
}

func (m *Machine) Wall() time.Time                        { return time.Now() }
func (m *Machine) Mono() time.Duration                    { return time.Since(m.began) }
func (m *Machine) Awake() time.Duration                   { return time.Duration(m.awake.now()) }
func (m *Machine) ReadAwake()                             { m.awake.measure() }
func (m *Machine) Instant() time.Time                     { return time.Now() }
func (m *Machine) Since(t time.Time) time.Duration        { return time.Since(t) }
func (m *Machine) Until(t time.Time) time.Duration        { return time.Until(t) }
func (m *Machine) NewUUID() uuid.UUID                     { return uuid.New() }
func (m *Machine) Spawn(f func())                         { go f() }
func (m *Machine) SpawnIn(wg *sync.WaitGroup, f func())   { wg.Go(f) }
func (m *Machine) Alongside(wg *sync.WaitGroup, f func()) { wg.Go(f) }
func (m *Machine) Lock(mu Mutex)                          { mu.Lock() }
func (m *Machine) Receive(ch <-chan struct{})             { <-ch }

func (m *Machine) Either(a, b <-chan struct{}) bool {
	select {
	case <-a:
		return true
	case <-b:
		return false
	}
}

func (m *Machine) EitherUntil(at time.Duration, a, b <-chan struct{}) (isA, byTime bool) {
	timer := time.NewTimer(at - m.Mono())
	defer timer.Stop()
	select {
	case <-a:
		return true, false
	case <-b:
		return false, false
	case <-timer.C:
		return false, true
	}
}

func (m *Machine) Result(ch <-chan error, stop <-chan struct{}) (err error, ok bool) {
	select {
	case err = <-ch:
		return err, true
	case <-stop:
		return nil, false
	}
}

func (m *Machine) Pause(d time.Duration, stop <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-stop:
		return false
	case <-timer.C:
		return true
	}
}

func (m *Machine) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func (m *Machine) Wait(wg *sync.WaitGroup, giveUp func() bool) bool {
	done := make(chan error, 1)
	go func() {
		wg.Wait()
		done <- nil
	}()
	_, ended := resultUnless(done, giveUp)
	return ended
}

// giveUpPoll is how often a waiting call asks whether to give up.
const giveUpPoll = 100 * time.Millisecond

// resultUnless receives the error from ch. ok is false if giveUp returned true before that.
func resultUnless(ch <-chan error, giveUp func() bool) (err error, ok bool) {
	poll := time.NewTicker(giveUpPoll)
	defer poll.Stop()
	for {
		select {
		case err := <-ch:
			return err, true
		case <-poll.C:
			if !giveUp() {
				continue
			}
			select {
			case err := <-ch:
				return err, true
			default:
				return nil, false
			}
		}
	}
}

// machineTimer is a time.Timer that does not run until Reset.
type machineTimer struct{ t *time.Timer }

func (m *Machine) NewTimer() Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return machineTimer{t}
}

// timerRounding is how early Go's timers may fire, because they round to a millisecond.
const timerRounding = 200 * time.Microsecond

func (t machineTimer) Reset(d time.Duration) { t.t.Reset(max(0, d) + timerRounding) }
func (t machineTimer) Stop()                 { t.t.Stop() }

func (m *Machine) Loop(wg *sync.WaitGroup, l Loop) {
	timeUp := l.Timer.(machineTimer).t.C
	wg.Go(func() {
		for {
			select {
			case <-l.Done:
				return
			case <-l.Woken:
				l.Run(false)
			case <-timeUp:
				l.Run(true)
			}
		}
	})
}

func (m *Machine) Listen(o peer.Options) (*Network, error) {
	n, err := peer.Listen(o)
	if err != nil {
		return nil, err
	}
	return &Network{real: n}, nil
}

func (m *Machine) Ask(ctx context.Context, o peer.Options, address string) (peer.Answer, error) {
	return peer.Ask(ctx, o, address)
}

func (m *Machine) InlineLog() bool { return false }

func (m *Machine) RunLog(_ Log, run func() error) error {
	go func() { m.ran <- run() }()
	return nil
}

func (m *Machine) StopLog(l Log, _, giveUp func() bool) (err error, ended bool) {
	l.Stop()
	return resultUnless(m.ran, giveUp)
}

func (m *Machine) AwaitDisk(<-chan struct{}) {}

func (m *Machine) DiskQueues() bool { return false }
