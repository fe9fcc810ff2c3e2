package clog

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"penstock/segment/aio"
)

func openDisk(t testing.TB, dir string, mode aio.Mode) aio.Disk {
	t.Helper()
	d, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: mode, LockWait: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestRealDisk runs the log with its goroutines on the machine's file system, with both kinds of queue, over several
// lives.
func TestRealDisk(t *testing.T) {
	for _, mode := range []aio.Mode{aio.ModeUring, aio.ModePwrite} {
		t.Run(string(mode), func(t *testing.T) {
			dir := t.TempDir()
			arena := testArena(t, 256<<10, 8)
			m := newModel()
			m.size = func(id uint64) int { return 100 + int(id*7919%3000) + int(id%97/96)*300_000 }
			for life := range 4 {
				runLife(t, dir, mode, arena, m, life)
			}
		})
	}
}

func runLife(t *testing.T, dir string, mode aio.Mode, arena *aio.Arena, m *model, life int) {
	disk := openDisk(t, dir, mode)
	defer func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := &replayed{m: m}
	l, report, err := Open(disk, arena, Options{FileBytes: 1 << 20, MaxLiveBytes: 4 << 20, Store: testStore}, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.check(); err != nil {
		t.Fatalf("life %d: %v (%+v)", life, err, report)
	}
	if life > 0 && r.next != m.added {
		t.Fatalf("life %d: %d records after a clean stop, %d were added", life, r.next, m.added)
	}
	m.files = append(m.files[:0], fileEnd{report.NewestFile, r.next})
	l.SetSource(m)
	done := make(chan error, 1)
	go func() { done <- l.Run() }()
	const puts = 300
	for range puts {
		m.put(5)
		l.Wake()
		if l.LiveBytes() > 2<<20 || l.Full() {
			l.Release(m.release())
		}
		runtime.Gosched()
	}
	for waiting := true; waiting; {
		m.mu.Lock()
		waiting = m.waiting > 0
		m.mu.Unlock()
		l.Release(m.release())
		runtime.Gosched()
	}
	l.Stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s := l.Stats()
	if m.acked != m.added || m.waiting != 0 || s.Groups == 0 || s.Files < 2 || s.Recycled == 0 {
		t.Fatalf("life %d: acked %d of %d, %d waiting: %+v", life, m.acked, m.added, m.waiting, s)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("life %d: %s; report %+v; stats %+v", life, disk.Info().Engine, *report, s)
}

// TestConcurrentProducers has many goroutines that wait for their own records, as publishers do.
func TestConcurrentProducers(t *testing.T) { concurrentProducers(t, func(*Log) {}) }

// TestConcurrentProducersOnSpot is the same test, but a producer that finds the log asleep writes the group itself.
func TestConcurrentProducersOnSpot(t *testing.T) {
	concurrentProducers(t, func(l *Log) { l.StepOnSpot() })
}

func concurrentProducers(t *testing.T, before func(*Log)) {
	disk := openDisk(t, t.TempDir(), aio.ModeAuto)
	defer disk.Close()
	arena := testArena(t, 64<<10, 4)
	src := newWaiters(200)
	src.before = before
	l, _, err := Open(disk, arena, Options{FileBytes: 1 << 20, MaxLiveBytes: 4 << 20, Store: testStore}, &replayed{
		m: newModel(),
	})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(src)
	src.durable = func(g *Group) { l.Release(g.FileSeq()) }
	done := make(chan error, 1)
	go func() { done <- l.Run() }()
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			w := src.waiter()
			for range 50 {
				src.commit(l, w)
			}
		})
	}
	wg.Wait()
	l.Stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s := l.Stats(); s.Records != 32*50 || s.Groups >= s.Records {
		t.Errorf("%d records in %d groups: concurrent ones must share", s.Records, s.Groups)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// waiters is a Source whose producers each wait for one record at a time.
type waiters struct {
	mu      sync.Mutex
	bytes   int
	waiting []*waiter
	bySlot  [MaxInFlight][]*waiter
	durable func(g *Group)
	before  func(*Log) // what a producer does before Wake; nil: nothing
}

type waiter struct{ done chan struct{} }

func newWaiters(payloadBytes int) *waiters { return &waiters{bytes: payloadBytes} }

func (s *waiters) waiter() *waiter { return &waiter{done: make(chan struct{}, 1)} }

func (s *waiters) commit(l *Log, w *waiter) {
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	if s.before != nil {
		s.before(l)
	}
	l.Wake()
	<-w.done
}

func (s *waiters) Gather(g *Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, w := range s.waiting {
		p := g.Reserve(Placement{Type: Tombstone, Offset: 1}, s.bytes)
		if p == nil {
			break
		}
		p[0] = 1
		s.bySlot[g.Slot()] = append(s.bySlot[g.Slot()], w)
		n++
	}
	s.waiting = s.waiting[:copy(s.waiting, s.waiting[n:])]
}

func (s *waiters) Durable(g *Group) {
	for _, w := range s.bySlot[g.Slot()] {
		w.done <- struct{}{}
	}
	s.bySlot[g.Slot()] = s.bySlot[g.Slot()][:0]
	if s.durable != nil {
		s.durable(g)
	}
}

func (s *waiters) Checkpoint(emit func([]byte)) { emit([]byte("state")) }
func (s *waiters) CheckpointBytes() int64       { return 5 }

func (s *waiters) Failed(err error) { panic(fmt.Sprint("failed: ", err)) }
