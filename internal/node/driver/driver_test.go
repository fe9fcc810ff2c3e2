package driver

import "testing"

type partition struct{ name string }

// idleLog is a commit log that is idle, and counts what it is asked for. A step takes all that waits.
type idleLog struct {
	d            *Driver[partition]
	steps, wakes int
}

func (l *idleLog) StepOnSpot() bool { l.steps++; return l.step() }
func (l *idleLog) Wake()            { l.wakes++ }

// step gathers a group and tells of it.
func (l *idleLog) step() bool {
	if !l.d.Begins() {
		return false
	}
	n := 0
	l.d.Each(func(*partition) bool { n++; return true })
	l.d.Gathered(true, n > 1)
	l.d.Told(n)
	return true
}

func newDriver(cluster bool) (*Driver[partition], *idleLog) {
	d := new(Driver[partition])
	l := &idleLog{d: d}
	d.Init(func() bool { return false })
	d.Use(l, cluster)
	return d, l
}

// A lone caller does the work itself, unless the last group had several puts. While a group is on the disk, nobody is
// woken.
func TestLonePut(t *testing.T) {
	d, l := newDriver(false)
	if d.Push(new(partition), true); l.steps != 1 || l.wakes != 0 || !d.Drained() {
		t.Errorf("a lone put: %+v", l)
	}
	d.lastGroupShared.Store(true)
	if d.Push(new(partition), true); l.steps != 1 || l.wakes != 1 || d.Drained() {
		t.Errorf("behind a group of several puts: %+v", l)
	}
	d.inFlight.Add(1)
	if d.Push(new(partition), true); l.steps != 1 || l.wakes != 1 {
		t.Errorf("while a group is on the disk: %+v", l)
	}
}

// In a cluster no caller writes, however alone its put is: a disk that hangs must not stop who waits for other nodes.
//
// F6.
func TestNoCallerWritesInACluster(t *testing.T) {
	d, l := newDriver(true)
	if d.Push(new(partition), true); l.steps != 0 || l.wakes != 1 {
		t.Errorf("a lone put: %+v", l)
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
