package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/replicate/peer"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/stepped"
)

// host is a machine with a disk and clocks; a process of the engine runs on it, or not. It is that process's
// stepped.World.
type host struct {
	w                 *World
	index             int
	name              string
	rate              float64 // of its clocks
	skew              int64   // of its wall clock
	lowSkew, highSkew int64   // what it was, at least and at most
	media             *faultaio.Disk
	disk              *disk

	m         *stepped.Host   // nil: no process runs
	inside    *node.Inspector // of its engine
	e         *node.Engine    // when Open has returned
	life      int             // counts processes
	id        uint32          // replicate.NodeID, once it joined
	client    *client
	agreed    meta.Store // FeatureCluster: its process's way to the agreement
	ports     *ports
	asleep    int64 // SIGSTOP until
	frozen    []func()
	dirty     bool
	wakeAt    int64
	failed    bool // the commit log failed: it has to be restarted
	closing   bool
	agents    []*agent
	power     bool           // false: do not boot
	broken    bool           // the disk was told to fail
	wiped     bool           // its disk is another one than the store knows
	wipes     int            // how often it got another one
	before    *faultaio.Disk // MutantRollback
	binary    int            // the feature level that its version knows; 0: the newest
	forgot    memoryLoss     // FeatureForget
	twin      *host          // another process of this name, at another address; nil: there never was one
	brokeAt   int64          // when it last lost a connection or found it full
	secretly  bool           // its disk hangs, and nobody knows: MutantSecondHang
	fullUntil int64          // its disk has almost no room
	ill       illness        // of its disk
	stepped   int64          // ns that its wall clock was set by since the process began
	leapt     int64          // ns that its monotonic clock has leapt: MutantBothClocks

	// FeatureIdle.
	flying       int    // writes of its commit log that did not come back
	rotAtRest    bool   // a bit rotted in the last group of its commit log, and no process has said so
	cameBack     uint64 // writes of any kind that its process had back, as judgeDisks saw last
	unawareSince int64  // since when nothing came back, or when the process knew that its disk hangs
}

func newNode(w *World, index int) *host {
	n := &host{w: w, index: index, name: fmt.Sprintf("n%d", index+1), power: true}
	n.rate = 1 + (w.rng.Float64()*2-1)*w.opt.drift
	n.setSkew(w.between(-5*ms, 5*ms))
	n.media = faultaio.New(faultaio.Options{Seed: w.rng.Uint64(), CapacityBytes: diskBytes})
	return n
}

const diskBytes = 64 << 20

func (n *host) running() bool { return n.m != nil && n.w.now >= n.asleep }

// local is the monotonic clock.
func (n *host) local() int64 { return int64(float64(n.w.now)*n.rate) + n.leapt }

func (n *host) setSkew(d int64) {
	n.skew, n.lowSkew, n.highSkew = d, min(n.lowSkew, d), max(n.highSkew, d)
}

// Now implements stepped.World.
func (n *host) Now() time.Time { return time.Unix(bootTime, n.local()-n.leapt+n.skew+n.stepped) }

// Instant implements stepped.World.
func (n *host) Instant() time.Duration { return time.Duration(n.local()) }

// NewUUID implements stepped.World.
func (n *host) NewUUID() uuid.UUID { return n.sameBoot(n.w.newUUID()) }

// Linger implements stepped.World.
func (n *host) Linger() time.Duration {
	if !n.w.chance(n.w.opt.lingerOften) {
		return 0
	}
	return time.Duration(n.w.skewed(0, n.w.opt.linger))
}

// Choose implements stepped.World.
func (n *host) Choose(k int) int { return n.w.rng.IntN(k) }

// Listen implements stepped.World.
func (n *host) Listen(self peer.Node, _ uuid.UUID, h peer.Handler) platform.Transport {
	n.id = uint32(self.ID)
	n.noteBoot(self.Boot)
	n.ports = n.w.net.listen(n, self, h)
	return n.ports
}

// poke says that something happened to the process.
func (n *host) poke() { n.dirty = true }

// later runs fn on this process, if it still runs then; a stopped one does it when it goes on.
func (n *host) later(ns int64, fn func()) {
	life := n.life
	n.w.after(ns, func() { n.do(life, fn) })
}

func (n *host) do(life int, fn func()) {
	switch {
	case n.m == nil || n.life != life:
	case n.w.now < n.asleep && n.w.features != 0:
		n.frozen = append(n.frozen, func() { n.do(life, fn) })
	case n.w.now < n.asleep:
		// a second freeze may end before the first: then what comes later overtakes this, and old seeds are such histories
		n.w.after(n.asleep-n.w.now, func() { n.do(life, fn) })
	default:
		fn()
		n.poke()
	}
}

// thaw lets a process go on, with what has happened meanwhile, in order.
func (n *host) thaw() {
	n.poke()
	if n.w.now < n.asleep {
		return
	}
	waiting := n.frozen
	n.frozen = nil
	for _, fn := range waiting {
		fn()
	}
}

// boot starts a process.
func (n *host) boot() {
	w := n.w
	if n.m != nil || !n.power {
		return
	}
	n.life++
	for _, rule := range n.ill.rules { // the device is what it was
		n.media.Inject(rule)
	}
	n.failed, n.closing, n.e, n.ports, n.wakeAt, n.stepped = false, false, nil, nil, 0, 0
	n.flying, n.unawareSince = 0, w.now
	n.chooseBinary()
	n.beginLife()
	n.m = stepped.New(n, w.marksAfter())
	n.inside = node.NewInspector(n.m)
	n.disk = newDisk(n)
	n.client = newClient(w, n)
	w.tracef("%s boots, life %d", n.name, n.life)
	w.Stats.Restarts++
	inside, faults := n.inside, w.faults
	n.m.Go(func() {
		e, err := inside.Open(context.Background(), n.engineOptions())
		if err != nil {
			w.tracef("%s could not open: %v", n.name, err)
			n.failed = true
			if w.has(FeatureForget) {
				w.refused(n, err)
			} else if n == w.gray.rotten && w.gray.flipped {
				w.after(200*ms, func() { w.replaceDisk(n) })
			} else if (!faults || !n.mayFailToOpen(err)) && !errors.Is(err, meta.ErrNewerLevel) {
				w.fail("%s could not open: %v", n.name, err)
			}
			return
		}
		w.tracef("%s is open", n.name)
		n.e = e
		n.opened(e)
	})
	n.poke()
}

func (n *host) mayFailToOpen(error) bool { return true }

func (n *host) engineOptions() node.Options {
	w, o := n.w, &n.w.opt
	h := w.cfg.Engine
	if h == nil {
		h = slog.DiscardHandler
	}
	return node.Options{
		Disk: n.disk, NodeID: n.name, Logger: slog.New(h),
		BufferBytes: 4 << 20, CommitFileBytes: o.commitFile, CommitLiveBytes: o.commitLive, GroupsInFlight: o.groups,
		MinSegmentBytes: o.minSegment, MaxSegmentBytes: o.maxSegment, RetentionInterval: 300 * time.Millisecond,
		MaxMessageBytes: 8 << 10, MaxBatchBytes: 32 << 10, MsgTimeout: time.Duration(o.msgTimeout),
		PublishTimeout:    publishTimeout,
		DisableAutoCreate: true, MaxLevel: n.binary, DiskPatience: diskPatience, DiskFailedAfter: 4 * diskPatience,
		DiskProbeAfter: w.probesAfter(), AdmitTimeout: -1, // who submits may not be in a task, and cannot wait for room
		Cluster: &node.ClusterOptions{
			PreferredLeader: w.preferred(), Store: n.metaStore(), Replication: o.cfg, Replicas: o.replicas,
			Node:        meta.Node{Rack: n.rack()},
			JoinTimeout: 20 * time.Second, LeaveTimeout: time.Second,
		},
	}
}

// preferred is who should lead, in worlds where leaders have to go.
func (w *World) preferred() func(*meta.Snapshot, meta.PartitionID) replicate.NodeID {
	switch {
	case !w.has(FeatureMoves | FeatureNodes | FeaturePlacement):
		return nil
	case w.cfg.Break == MutantDeafOrder:
		return func(*meta.Snapshot, meta.PartitionID) replicate.NodeID { return 0 }
	}
	return cluster.PreferredLeader
}

// step lets the process do what it can now.
func (n *host) step() {
	w := n.w
	w.Stats.Steps++
	life := n.life
	next, err := n.m.Step()
	if n.life != life || n.m == nil {
		return
	}
	switch {
	case n.media.Crashed():
		w.tracef("%s loses its power in the middle of something", n.name)
		n.crash()
		return
	case err != nil && !n.failed:
		w.tracef("%s: the commit log failed: %v", n.name, err)
		n.failed = true
	}
	if n.failed && !n.closing {
		n.closing = true
		n.later(w.between(0, 200*ms), func() { n.kill("its disk failed") })
	}
	w.checks.node(n)
	n.wake(int64(next))
}

// wake makes sure that the process is stepped when its clock shows local.
func (n *host) wake(local int64) {
	if local >= 1<<62 {
		return
	}
	at := max(n.w.now, int64(float64(local-n.leapt)/n.rate)+1)
	if n.wakeAt > n.w.now && n.wakeAt <= at {
		return
	}
	n.wakeAt = at
	if n.w.features == 0 {
		// also when another call came before it: old seeds are histories with these steps
		n.later(at-n.w.now, func() { n.wakeAt = 0 })
		return
	}
	life := n.life
	n.w.after(at-n.w.now, func() {
		if n.life == life && n.wakeAt == at {
			n.do(life, func() { n.wakeAt = 0 })
		}
	})
}

// kill ends the process; the machine goes on.
func (n *host) kill(why string) {
	if n.m == nil {
		return
	}
	n.w.tracef("%s is killed: %s", n.name, why)
	n.w.Stats.Kills++
	if n.sharesDisk() {
		n.endProcess(false)
		n.restart()
		return
	}
	rest := n.disk.afterKill(n.w.rng.Uint64())
	if n.broken || n.failsWrites() {
		// A page cache shows what a failed write has lost. The engine reads around it; this disk cannot, so the machine goes
		// with the process.
		rest = n.disk.afterCrash(n.w.rng.Uint64())
	}
	n.broken = false
	n.endProcess(false)
	n.media = rest
	n.restart()
}

// crash cuts the power of the machine.
func (n *host) crash() {
	n.w.tracef("%s crashes", n.name)
	n.w.Stats.Crashes++
	rest := n.disk.afterCrash(n.w.rng.Uint64())
	if n.before != nil {
		rest = n.before.Kill(n.w.rng.Uint64())
	}
	n.loseTwin(rest)
	n.broken = false
	n.endProcess(true)
	n.media = rest
	n.restart()
}

func (n *host) endProcess(silent bool) {
	if n.m == nil {
		return
	}
	inside := n.inside
	n.m, n.inside, n.e, n.asleep, n.frozen = nil, nil, nil, 0, nil
	n.life++
	n.w.cfg.witness.ended(n)
	n.w.net.gone(n, silent)
	n.w.book.processGone(n)
	n.agents = nil
	if err := inside.Kill(); err != nil {
		n.w.fail("%s: memory is held after the end of its process: %v", n.name, err)
	}
}

func (n *host) restart() {
	if !n.power {
		return
	}
	d := n.w.skewed(ms, 1500*ms)
	if !n.w.faults {
		d = 50 * ms
	}
	n.w.after(d, n.boot)
}

// leave stops the process in order.
func (n *host) leave() {
	if n.e == nil || n.closing {
		return
	}
	w, e, life := n.w, n.e, n.life
	n.closing = true
	w.tracef("%s stops in order", n.name)
	w.Stats.Stops++
	n.m.Go(func() {
		err := e.Close()
		w.tracef("%s has stopped: %v", n.name, err)
		if err != nil && !errors.Is(err, context.Canceled) && !n.failed && !n.media.Crashed() {
			w.tracef("closing %s: %v", n.name, err)
		}
		w.after(0, func() {
			if n.life == life {
				n.kill("it has stopped")
			}
		})
	})
	n.poke()
	// One that does not come to an end is killed in the end, as init systems do.
	n.later(8000*ms, func() { n.kill("it does not stop") })
}
