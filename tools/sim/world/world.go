// Package world simulates a cluster of whole nodes: the engine's own code (committer, replicas, recovery, flusher,
// channels, forwarding) on disks, a network, clocks and a metadata store that fail on a seed, under one scheduler with
// virtual time. The same seed is the same run, to the last frame.
//
//	w := world.Run(seed, world.Config{})
//	if w.Violation != "" { ... }
//
// A run is a time of faults and then peace, in which everything must come right again: every message that was answered
// OK is in the log of every replica and was delivered on every channel.
package world

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Config are the choices of a run that the seed does not make.
type Config struct {
	Nodes  int    // 0: the seed chooses
	Break  Mutant // a lie that the checkers must find
	Trace  func(line string)
	Engine slog.Handler // of the engines' logs; nil: none
	// Features are what the world does beside the rest; 0: the seed chooses. See FeaturePlain.
	Features Feature
	script   func(*World)   // what happens in place of all chances: see forget_test.go
	options  func(*options) // of a script's world
	witness  *witness       // for a transcript; nil: none
	// SmallSegments lets the largest batches be larger than the smallest segments.
	SmallSegments bool
}

// World is one run.
type World struct {
	Seed      uint64
	Violation string
	Stats     Stats

	rng       *rand.Rand
	more      *rand.Rand // what only features draw
	cfg       Config
	opt       options
	features  Feature
	extra     extra
	later     later
	gray      gray
	placing   placement
	agreement *agreement // FeatureCluster; nil: the store is the model
	now       int64      // ns since the beginning
	seq       uint64
	queue     queue
	burst     int
	hash      uint64 // of everything that was traced
	line      []byte // the last line, for the memory
	nodes     []*host
	store     *store
	net       *network
	topics    []*topicModel             // the latest of each name
	dead      []*topicModel             // their dead letters, in the same order
	models    map[uuid.UUID]*topicModel // all that the store has made
	corpse    corpse
	removal   *removal // of a node, while it goes on
	producers producers
	ghosts    ghosts
	keeping   keeping
	forget    forgetting
	leaps     *rand.Rand // of wall clocks, by days: see numbered.go; nil: none
	faults    bool
	loaded    bool // the workload goes on
	book      book
	checks    checks
}

// Stats say what a run has reached.
type Stats struct {
	Events, Steps, Frames, Acked, Refused, Unknown, Delivered, Redelivered, Finished          int
	Elections, Kills, Crashes, Stops, Restarts, Breaks, Cuts, Wipes, DiskFaults, Full, NoRoom int
	Cutoff, ISRChanges, Channels, Rots, Pauses, Truncations                                   int
	Remote, Moves, Undone, Back, Configured, DeadLetters, Carried, OverQuota, Dropped         int
	Deleted, Remade, Expanded, Removed, Returned, Unwanted, Sampled, Redriven                 int
	Slow, Hung, Failing, Rotten, Replaced, ClockSteps, Bound, Raised, Compacted, LostLeases   int
	RottenAtRest, Forced, Poisoned, Resized, Shrunk, Evened, Ordered, Transferred             int
	Opened, Repeats, Replayed, KeptGone, Forked, Haunted, Native                              int
	Forgotten, Twins, StandStill, Lost, Aside, Corpses                                        int
	Virtual                                                                                   time.Duration
}

// Add sums runs up.
func (s *Stats) Add(o *Stats) {
	a, b := s.fields(), o.fields()
	for i := range a {
		*a[i] += *b[i]
	}
	s.Virtual += o.Virtual
}

func (s *Stats) fields() []*int {
	return []*int{
		&s.Events, &s.Steps, &s.Frames, &s.Acked, &s.Refused, &s.Unknown, &s.Delivered, &s.Redelivered, &s.Finished,
		&s.Elections, &s.Kills, &s.Crashes, &s.Stops, &s.Restarts, &s.Breaks, &s.Cuts, &s.Wipes, &s.DiskFaults, &s.Full,
		&s.NoRoom, &s.Cutoff,
		&s.ISRChanges, &s.Channels, &s.Rots, &s.Pauses, &s.Truncations,
		&s.Remote, &s.Moves, &s.Undone, &s.Back, &s.Configured, &s.DeadLetters, &s.Carried, &s.OverQuota, &s.Dropped,
		&s.Deleted, &s.Remade, &s.Expanded, &s.Removed, &s.Returned, &s.Unwanted, &s.Sampled, &s.Redriven,
		&s.Slow, &s.Hung, &s.Failing, &s.Rotten, &s.Replaced, &s.ClockSteps, &s.Bound, &s.Raised, &s.Compacted, &s.LostLeases,
		&s.RottenAtRest, &s.Forced, &s.Poisoned, &s.Resized, &s.Shrunk, &s.Evened, &s.Ordered, &s.Transferred,
		&s.Opened, &s.Repeats, &s.Replayed, &s.KeptGone, &s.Forked, &s.Haunted, &s.Native,
		&s.Forgotten, &s.Twins, &s.StandStill, &s.Lost, &s.Aside, &s.Corpses,
	}
}

type event struct {
	at  int64
	seq uint64
	fn  func()
}

// queue is a binary heap of events by time, those of one time in the order in which they came. container/heap would put
// each into an interface, twice.
type queue []event

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (q *queue) push(e event) {
	h := append(*q, e)
	*q = h
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() event {
	h := *q
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	*q = h
	for i := 0; ; {
		least := i
		for down := 2*i + 1; down <= 2*i+2 && down < last; down++ {
			if h[down].before(&h[least]) {
				least = down
			}
		}
		if least == i {
			return first
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

const ms = int64(time.Millisecond)

// newWorld makes the world of a seed, in which nothing has happened yet.
func newWorld(seed uint64, cfg Config) *World {
	w := &World{
		Seed: seed, cfg: cfg, rng: rand.New(rand.NewPCG(seed, 0x5851f42d4c957f2d)), faults: true, loaded: true,
		models: map[uuid.UUID]*topicModel{},
	}
	w.opt = w.draw()
	w.drawFeatures()
	return w
}

// Run makes one run.
func Run(seed uint64, cfg Config) (w *World) {
	w = newWorld(seed, cfg)
	defer w.end()
	defer func() {
		if r := recover(); r != nil {
			text := fmt.Sprint(r)
			if !strings.Contains(text, "BUG") || cfg.Trace != nil {
				text += "\n" + string(debug.Stack())
			}
			w.forget.saying = true
			w.fail("panic: %s", text)
		}
	}()
	w.build()
	w.tracef("%+v", w.opt)
	if w.features != 0 {
		w.tracef("features: %v %+v", w.features, w.extra)
	}
	if w.cfg.script != nil {
		w.cfg.script(w)
		if w.Violation != "" {
			return w
		}
	} else if !w.runUntil(w.opt.chaos) {
		return w
	}
	w.heal()
	if !w.forgetPeace() {
		return w
	}
	if w.strand() && w.heals() {
		w.checkEnd()
	}
	if w.Violation != "" {
		w.dump()
	}
	return w
}

// maxHealing is how long it may take until everything is right again. A world may have more to deliver than its
// consumers take in that time: an ordered channel waits until each confirmation is committed, and one consumer with a
// RDY of 1, far from the leaders, takes some dozens in a second. Such a world gets more time for as long as each half
// of maxHealing takes minMelting of the backlog away. Publishers may add to it meanwhile.
const (
	maxHealing = 40_000 * ms
	minMelting = 0.02
)

// heals waits until everything is right again. Nobody begins to publish any more.
func (w *World) heals() bool {
	ended, finished := w.now, w.Stats.Finished
	for half := 1; ; half++ {
		if w.runTo(ended+int64(half)*maxHealing/2, w.whole) {
			return true
		}
		melted := w.Stats.Finished - finished
		if left := w.backlog(); half >= 2 && (melted == 0 || float64(melted) < minMelting*float64(left)) {
			w.fail("not whole %v after the faults ended: %s", time.Duration(w.now-ended), w.whole())
		}
		if finished = w.Stats.Finished; w.Violation != "" {
			return false
		}
	}
}

// maxEvents is many times what a run needs: a typical one has 20,000, the busiest of thousands 100,000.
const maxEvents = 2_000_000

func (w *World) build() {
	w.store = newStore(w)
	w.net = &network{w: w}
	w.book.init(w)
	w.checks.init(w)
	for i := range w.opt.nodes {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	for _, n := range w.nodes {
		w.after(w.between(0, 50*ms), n.boot)
	}
	if w.has(FeatureCluster) {
		w.startCluster()
	} else {
		w.every(w.opt.controlTick, w.store.control)
	}
	if w.cfg.Break == MutantRollback {
		w.every(300*ms, func() {
			for _, n := range w.nodes {
				if n.m != nil && !n.media.Crashed() {
					n.before = n.media.Kill(w.rng.Uint64())
				}
			}
		})
	}
	w.startWorkload()
	w.startGray()
	w.startPlacement()
	w.startProducers()
	w.startGhosts()
	w.startKeep()
	w.startForks()
	w.startForget()
	if w.has(FeatureMoves) {
		w.every(w.extra.operateEvery, func() {
			if w.faults {
				w.operate()
			}
		})
	}
	if w.has(FeatureTopics) {
		w.every(w.later.topicsEvery, w.changeTopics)
	}
	if w.has(FeatureNodes) {
		w.every(w.later.removeEvery, w.beginRemoval)
	}
	if w.extra.lateNode {
		late := w.nodes[len(w.nodes)-1]
		late.power = false
		w.after(w.between(w.opt.chaos/4, w.opt.chaos/2), func() {
			late.power = true
			late.boot()
		})
	}
	w.every(w.opt.mischiefEvery, func() {
		if w.mayFail() {
			w.mischief()
		}
	})
}

func (w *World) end() {
	w.Stats.Virtual = time.Duration(w.now)
	for _, n := range append(w.nodes[:len(w.nodes):len(w.nodes)], w.forget.twins...) {
		if n.m == nil {
			continue
		}
		inside := n.inside
		n.m = nil
		func() {
			defer func() { _ = recover() }() // what a violation leaves is not looked at
			_ = inside.Kill()
		}()
	}
}

func (w *World) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// between draws from [a, b].
func (w *World) between(a, b int64) int64 { return a + w.rng.Int64N(max(1, b-a+1)) }

// skewed draws from [a, b], mostly near a.
func (w *World) skewed(a, b int64) int64 {
	f := w.rng.Float64()
	return a + int64(f*f*f*float64(b-a))
}

func (w *World) newUUID() (id uuid.UUID) {
	for i := range 2 {
		v := w.rng.Uint64()
		for j := range 8 {
			id[8*i+j] = byte(v >> (8 * j))
		}
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}

func (w *World) after(ns int64, fn func()) {
	w.seq++
	w.queue.push(event{at: w.now + max(0, ns), seq: w.seq, fn: fn})
}

// every repeats fn for ever, about every ns.
func (w *World) every(ns int64, fn func()) {
	var again func()
	again = func() {
		fn()
		w.after(w.between(ns/2, ns*3/2), again)
	}
	w.after(w.between(0, ns), again)
}

// What hash/fnv has for 64a.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func (w *World) tracef(format string, args ...any) {
	p := append(strconv.AppendUint(w.line[:0], w.hash, 10), ' ')
	p = append(strconv.AppendInt(p, w.now, 10), ' ')
	head := len(p)
	p = fmt.Appendf(p, format, args...)
	w.line = p
	w.hash = fnvOffset
	for _, b := range p {
		w.hash = (w.hash ^ uint64(b)) * fnvPrime
	}
	if w.watched() {
		w.say(string(p[head:]))
	}
}

// Hash identifies everything that happened.
func (w *World) Hash() uint64 { return w.hash }

func (w *World) fail(format string, args ...any) {
	if w.forgives() {
		return
	}
	if w.Violation == "" {
		w.Violation = w.forgetting() + fmt.Sprintf(format, args...)
		w.tracef("VIOLATION: %s", w.Violation)
	}
}

// runUntil works off the queue until the time comes or something is wrong.
func (w *World) runUntil(ns int64) bool {
	w.runTo(ns, nil)
	return w.Violation == ""
}

// runTo also ends when done says so, and says whether that was before ns. Without done it says whether nothing is
// wrong.
func (w *World) runTo(ns int64, done func() string) bool {
	checked := w.now
	for len(w.queue) > 0 && w.queue[0].at <= ns && w.Violation == "" {
		e := w.queue.pop()
		if e.at > w.now {
			w.now, w.burst = e.at, 0
		}
		if w.burst++; w.burst > 200_000 {
			w.fail("time stands still")
		}
		if w.Stats.Events++; w.Stats.Events > maxEvents {
			w.fail("more than %d events: something asks again and again without an end", maxEvents)
		}
		e.fn()
		w.settle()
		if w.has(FeatureBound) {
			w.noteCalm()
		}
		if done != nil && w.now-checked >= 100*ms {
			checked = w.now
			if done() == "" {
				return w.Violation == ""
			}
		}
	}
	w.now = max(w.now, ns)
	return w.Violation == "" && done == nil
}

// settle lets the nodes that something happened to do what they can.
func (w *World) settle() {
	for again := true; again && w.Violation == ""; {
		again = false
		for _, n := range w.nodes {
			if n.dirty && n.running() {
				n.dirty = false
				n.step()
				again = true
			}
		}
		for _, n := range w.forget.twins {
			if n.dirty && n.running() {
				n.dirty = false
				n.step()
				again = true
			}
		}
	}
}

// showf is tracef for what is only made when somebody looks: it is not in the hash.
func (w *World) showf(format string, args ...any) {
	if w.watched() {
		w.say(fmt.Sprintf(format, args...))
	}
}
