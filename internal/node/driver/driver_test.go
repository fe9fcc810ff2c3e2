package driver

import (
	"sync"
	"testing"
	"time"
)

type partition struct{ name string }

// machine is a Host whose clock goes on at each look.
type machine struct{ now time.Duration }

func (m *machine) Mono() time.Duration { m.now += time.Microsecond; return m.now }
func (m *machine) InlineLog() bool     { return false }
func (m *machine) Either(a, b <-chan struct{}) bool {
	select {
	case <-a:
		return true
	case <-b:
		return false
	}
}

// idleLog is a commit log that is idle, and counts what it is asked for. A step takes all that waits.
type idleLog struct {
	d                              *Driver[partition]
	steps, gathers, writes, beside int
	wakes                          int
	busy                           bool // no caller may do the log's work
	stepping                       bool
	onStep                         func()
}

func (l *idleLog) StepOnSpot() bool   { l.steps++; return !l.busy && l.step() }
func (l *idleLog) GatherOnSpot() bool { l.gathers++; return !l.busy && l.step() }
func (l *idleLog) WriteOnSpot() bool  { l.writes++; return true }
func (l *idleLog) CanLeave() bool     { return !l.stepping }
func (l *idleLog) Wake()              { l.wakes++ }
func (l *idleLog) StepBeside() bool   { l.beside++; return !l.busy && l.step() }

// step gathers a group and tells of it.
func (l *idleLog) step() bool {
	l.stepping = true
	defer func() { l.stepping = false }()
	if !l.d.Begins() {
		return false
	}
	n := 0
	l.d.Each(func(*partition) bool { n++; return true })
	l.d.Gathered(true, n > 1)
	if l.onStep != nil {
		l.onStep()
	}
	l.d.Told(n)
	return true
}

func newDriver(cluster bool) (*Driver[partition], *idleLog) {
	d := new(Driver[partition])
	l := &idleLog{d: d}
	d.Init(new(machine), make(chan struct{}), func() bool { return false })
	d.Use(l, cluster)
	return d, l
}

// blockedCalls is a Blocker that counts its calls.
type blockedCalls int

func (b *blockedCalls) MayBlock() { *b++ }

// A put that comes alone over a connection to another node is written on that connection's goroutine, which says before
// the write that it may hang. If the last write was slow, the put is left to writeGathered. The next fast write ends
// that. A client's connection never writes.
//
// F6.
func TestLonePutOfAConnection(t *testing.T) {
	d, l := newDriver(true)
	pt := new(partition)
	var fast, slow blockedCalls
	d.Push(pt, true, &fast)
	if fast != 1 || l.writes != 1 || len(d.gathered) != 0 || l.gathers != 1 || l.steps != 0 {
		t.Errorf("said %d times that it may hang, %+v, and %d groups are left to another goroutine", fast, l, len(d.gathered))
	}
	if took := d.lastWrite.Load(); took <= 0 || took > int64(time.Minute) {
		t.Errorf("the write took %v", time.Duration(took))
	}

	d.lastWrite.Store(int64(maxSpotWrite))
	if d.Push(pt, true, &slow); slow != 0 || l.writes != 1 || len(d.gathered) != 1 {
		t.Errorf("the goroutine of a connection writes to a slow disk: %d, %+v", slow, l)
	}
	if d.writeHere(); l.writes != 2 || d.lastWrite.Load() == int64(maxSpotWrite) {
		t.Errorf("the last write took %v", time.Duration(d.lastWrite.Load()))
	}
	if d.Push(pt, true, &fast); fast != 2 || l.writes != 3 {
		t.Errorf("after a fast write it is left to others: %d, %+v", fast, l)
	}
	if d.Push(pt, true, nil); l.writes != 3 || len(d.gathered) != 1 {
		t.Errorf("a client's connection writes: %+v", l)
	}
}

// While groups are small and goroutines wait for them, the commit log's goroutine leaves them to stepBeside, also when
// the puts never stop for long enough to let it sleep.
func TestSmallGroupsAreWrittenBeside(t *testing.T) {
	d, l := newDriver(false)
	const rounds = 100
	own, left := 0, 0
	for range rounds {
		d.ready = append(d.ready, new(partition), new(partition)) // as Push does while a group is on the disk
		if d.Begins() {
			own++
			d.Each(func(*partition) bool { return true })
			d.Gathered(true, true)
			d.Told(2)
			continue
		}
		left++
		if len(d.beside) != 1 {
			t.Fatal("a group is left, and nobody is told")
		}
		<-d.beside
		for d.hasReady() && d.suitsBeside() && d.log.StepBeside() {
		}
	}
	if own > maxSmall+1 || left != l.beside || left < rounds/2 {
		t.Errorf("of %d small groups the commit log's goroutine wrote %d itself, %d were left: %+v", rounds, own, left, l)
	}
	d.large = func() bool { return true }
	if d.ready = append(d.ready, new(partition)); !d.Begins() {
		t.Error("a large group is left")
	}
}

// The goroutine beside the log's writes what is left to it, and wakes the log for what does not suit it.
func TestStepBeside(t *testing.T) {
	d, l := newDriver(false)
	stop := make(chan struct{})
	d.stop = stop
	d.waited.Store(true)
	done := make(chan struct{}, 1)
	l.onStep = func() { done <- struct{}{} }
	var running sync.WaitGroup
	d.Run(func(f func()) { running.Go(f) })
	d.Push(new(partition), false, nil)
	<-done
	close(stop)
	running.Wait()
	if l.beside != 1 || l.wakes != 0 {
		t.Errorf("%+v", l)
	}
}

// A lone caller does the work itself, unless the last group had several puts. While a group is on the disk, nobody is
// woken.
func TestLonePut(t *testing.T) {
	d, l := newDriver(false)
	if d.Push(new(partition), true, nil); l.steps != 1 || l.wakes != 0 || !d.Drained() {
		t.Errorf("a lone put: %+v", l)
	}
	d.lastGroupShared.Store(true)
	if d.Push(new(partition), true, nil); l.steps != 1 || l.wakes != 1 || d.Drained() {
		t.Errorf("behind a group of several puts: %+v", l)
	}
	d.inFlight.Add(1)
	if d.Push(new(partition), true, nil); l.steps != 1 || l.wakes != 1 {
		t.Errorf("while a group is on the disk: %+v", l)
	}
}

// What does not fit into a group comes with the next one, in order.
func TestFullGroup(t *testing.T) {
	d, _ := newDriver(false)
	var sealed string
	for _, name := range []string{"a", "b", "c"} {
		d.ready = append(d.ready, &partition{name})
	}
	room := 2
	seal := func(p *partition) bool {
		if room--; room < 0 {
			return false
		}
		sealed += p.name
		return true
	}
	if d.Begins() {
		d.Each(seal)
		d.Gathered(true, true)
		d.Told(1)
	}
	if sealed != "ab" || d.Drained() {
		t.Errorf("%q is sealed, drained %v", sealed, d.Drained())
	}
	room = 2
	if d.Begins() {
		d.Each(seal)
		d.Gathered(true, false)
		d.Told(1)
	}
	if sealed != "abc" || !d.Drained() {
		t.Errorf("%q is sealed, drained %v", sealed, d.Drained())
	}
}
