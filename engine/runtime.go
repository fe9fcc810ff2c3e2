package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"penstock/engine/meta"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/peer"
	"penstock/segment"
)

// Everything that the engine asks of the machine beside the disk (time, goroutines, waiting, chance) goes through the functions of
// this file. On an Engine of Open they are Go's own; on one of a Manual they are the Host's, and nothing happens by itself.

// now is the engine's time: the wall clock as it was when the engine opened, and what has passed since then. It never jumps.
func (e *Engine) now() time.Time { return time.Unix(0, e.clock.nowNs()) }

// wallNow reads the wall clock of a process. Only a test build replaces it, before any engine is opened
// (clock_offset.go).
var wallNow = time.Now

// clockOf is the clock of an engine that opens now.
func clockOf(o *Options, m *Manual) *clock {
	wall := o.wall
	if wall == nil {
		wall = wallNow
	}
	if m != nil {
		return newClock(m.host.Now, m.host.Instant)
	}
	began := time.Now()
	return newClock(wall, func() time.Duration { return time.Since(began) })
}

// probes says whether an idle disk is asked: always, but where a Host does not want it.
func (e *Engine) probes() bool { return e.manual == nil || e.manual.idle.ProbeAfter > 0 }

// queues says whether the commit log must leave a group to its queue: see Host.Slow.
func (e *Engine) queues() bool { return e.manual != nil && e.manual.host.Slow() }

// waitWhileHung waits as a write to a disk that hangs does, which a Host's disk cannot.
func (e *Engine) waitWhileHung() {
	if m := e.manual; m != nil {
		m.Wait(func() bool { return !m.host.Hung() || taken(e.stop) })
	}
}

// deadlineNs is a caller's deadline by the engine's clock. A deadline that Go's clock made (with its monotonic
// reading) survives steps.
func (e *Engine) deadlineNs(t time.Time) int64 {
	if e.manual != nil {
		return e.clock.nowNs() + int64(t.Sub(e.manual.host.Now()))
	}
	return e.clock.nowNs() + int64(time.Until(t))
}

// instant is for spans of time: its differences are those of the monotonic clock.
func (e *Engine) instant() time.Time {
	if e.manual != nil {
		return time.Unix(0, int64(e.manual.host.Instant()))
	}
	return time.Now()
}

// since is the monotonic time since an instant.
func (e *Engine) since(t time.Time) time.Duration {
	if e.manual != nil {
		return e.instant().Sub(t)
	}
	return time.Since(t)
}

// machineClock is the clock of leases on a real machine.
func machineClock() *bootClock {
	began := time.Now()
	c := &bootClock{
		cheap: func() (mono, wall int64) {
			t := time.Now()
			return int64(t.Sub(began)), t.UnixNano()
		},
		boot: func() int64 {
			var ts unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
				return int64(time.Since(began)) // a sandbox that knows no such clock
			}
			return ts.Nano()
		},
	}
	return c.begin()
}

func (e *Engine) newUUID() uuid.UUID {
	if e.manual != nil {
		return e.manual.host.NewUUID()
	}
	return uuid.New()
}

// firstRequest is where this process begins to number its requests. Its predecessor may have asked the same nodes, whose answers still
// come: they must not be taken for answers to this one's.
func (e *Engine) firstRequest() uint64 {
	id := e.newUUID()
	return binary.LittleEndian.Uint64(id[8:]) >> 2
}

// spawn runs f beside the caller.
func (e *Engine) spawn(f func()) {
	if e.manual != nil {
		e.manual.spawn(f)
		return
	}
	go f()
}

// spawnIn is spawn for what somebody waits for with wait.
func (e *Engine) spawnIn(wg *sync.WaitGroup, f func()) {
	if e.manual != nil {
		e.manual.spawn(f)
		return
	}
	wg.Go(f)
}

// hungPoll is how often somebody who waits for the disk looks whether it hangs.
const hungPoll = 100 * time.Millisecond

// waitUnlessHung waits for everything that was spawned in wg, when the engine ends; it gives up with false when the disk hangs. Then what was waited for goes
// on to wait.
func (e *Engine) waitUnlessHung(wg *sync.WaitGroup) bool {
	if e.manual != nil {
		e.manual.waitForSpawned()
		return true
	}
	done := make(chan error, 1)
	go func() {
		wg.Wait()
		done <- nil
	}()
	return e.resultUnlessHung(done) == nil
}

// resultUnlessHung takes the error that comes in ch, or returns ErrDiskHung when the disk hangs.
func (e *Engine) resultUnlessHung(ch <-chan error) error {
	poll := time.NewTicker(hungPoll)
	defer poll.Stop()
	for {
		select {
		case err := <-ch:
			return err
		case <-poll.C:
			if e.disks.hangs() {
				select {
				case err := <-ch:
					return err
				default:
					return ErrDiskHung
				}
			}
		}
	}
}

// waitLock is a mutex whose holder may wait for something else.
type waitLock struct{ mu sync.Mutex }

func (l *waitLock) lock(e *Engine) {
	if e.manual != nil {
		e.manual.Wait(l.mu.TryLock)
		return
	}
	l.mu.Lock()
}

func (l *waitLock) unlock() { l.mu.Unlock() }

// receive takes a value of ch, or learns that it was closed.
func (e *Engine) receive(ch <-chan struct{}) {
	if e.manual != nil {
		e.manual.Wait(func() bool { return taken(ch) })
		return
	}
	<-ch
}

// either takes a value of a or b, and says whether it was a's.
func (e *Engine) either(a, b <-chan struct{}) bool {
	if e.manual != nil {
		var first bool
		e.manual.Wait(func() bool { first = taken(a); return first || taken(b) })
		return first
	}
	select {
	case <-a:
		return true
	case <-b:
		return false
	}
}

// result takes the error that comes in ch, or says false when stop is closed before.
func (e *Engine) result(ch <-chan error, stop <-chan struct{}) (err error, ok bool) {
	if e.manual != nil {
		e.manual.Wait(func() bool {
			select {
			case err = <-ch:
				ok = true
				return true
			default:
				return taken(stop)
			}
		})
		return err, ok
	}
	select {
	case err = <-ch:
		return err, true
	case <-stop:
		return nil, false
	}
}

// pause waits for d, and says false if stop was closed before.
func (e *Engine) pause(d time.Duration, stop <-chan struct{}) bool {
	if e.manual != nil {
		return e.manual.pause(d, stop)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-stop:
		return false
	case <-timer.C:
		return true
	}
}

func (e *Engine) withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if e.manual != nil {
		return e.manual.withTimeout(ctx, d)
	}
	return context.WithTimeout(ctx, d)
}

// context ends with the engine, as far as anything that waits for other nodes is concerned.
func (e *Engine) context() context.Context {
	if e.cluster != nil {
		return e.cluster.ctx
	}
	return context.Background()
}

func taken(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// wires are the connections to other nodes: those of a peer.Net, or a Host's.
type wires struct {
	real *peer.Net
	host Network
}

// listen begins to talk to other nodes.
func (e *Engine) listen(o peer.Options) (*wires, error) {
	if e.manual != nil {
		return &wires{host: e.manual.host.Listen(o.Self, o.Cluster, o.Handler)}, nil
	}
	n, err := peer.Listen(o)
	if err != nil {
		return nil, err
	}
	return &wires{real: n}, nil
}

// TrySend is peer.Net's. A Host gets a copy of the frame, so that those of a peer.Net can stay on the stack.
func (w *wires) TrySend(to replicate.NodeID, f *netproto.Frame) error {
	if w.real != nil {
		return w.real.TrySend(to, f)
	}
	own := *f
	return w.host.TrySend(to, &own)
}

func (w *wires) Connected(node replicate.NodeID) bool {
	if w.real != nil {
		return w.real.Connected(node)
	}
	return w.host.Connected(node)
}

func (w *wires) Disconnect(node replicate.NodeID, reason error) {
	if w.real != nil {
		w.real.Disconnect(node, reason)
		return
	}
	w.host.Disconnect(node, reason)
}

func (w *wires) SetNodes(nodes map[replicate.NodeID]*meta.Node) {
	if w.real != nil {
		w.real.SetNodes(nodes)
		return
	}
	w.host.SetNodes(nodes)
}

func (w *wires) Close() {
	if w.real != nil {
		w.real.Close()
		return
	}
	w.host.Close()
}

// keep retains a receive buffer; a Host's frames come without.
func keep(b *netproto.RecvBuf) {
	if b != nil {
		b.Retain()
	}
}

// letGo releases what keep retained.
func letGo(b *netproto.RecvBuf) {
	if b != nil {
		b.Release()
	}
}

// alongside is spawnIn for what is waited for at once, and only uses the disk.
func (e *Engine) alongside(wg *sync.WaitGroup, f func()) {
	if e.manual != nil {
		f()
		return
	}
	wg.Go(f)
}

// What is done for each of a map's entries is done in the order of their keys: the same history makes the same run.

func sortedIDs[V any](m map[uuid.UUID]V) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

func sortedPartitions[V any](m map[segment.Identity]V) []segment.Identity {
	return slices.SortedFunc(maps.Keys(m), func(a, b segment.Identity) int {
		return cmp.Or(bytes.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Partition, b.Partition))
	})
}
