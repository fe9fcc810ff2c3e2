package world

import (
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// Copies that forgot. What operators, hypervisors and file systems do to a node's directory: files of it are removed
// while its process runs or is down, it is set back to an earlier state, it is copied and both run, a resumed machine
// goes on as the process that it was. Each copy that the node has may then lack what it acknowledged, and its log still
// ends cleanly. The rules are in forgetcheck.go, what happens is in forgetkinds.go, two processes of one name are in
// twins.go.

// forgetting is what only worlds with FeatureForget have.
type forgetting struct {
	r     *rand.Rand
	kind  forgetKind // what happens in this world
	every int64      // about so often
	// loose: any number of nodes may forget, so that nothing whole may be left. Of all rules only the one of cuts holds.
	loose   bool
	behind  map[nodePart]bool // members that joined under a leader that lacked something
	tainted bool              // at some time no member of an ISR was whole: what was answered then may be nowhere
	endedAt int64             // when all who replicate ended at once, and a disk came back older: the newest such time
	saying  bool              // one of the rules that hold in a loose world is broken
	twins   []*host
	moments []moment // earlier states of all disks
	busy    bool     // the nodes that are to come back are not back yet
	most    int      // nodes that lacked something at the same time, at most
	away    *host    // it is off while the others have peace
	refused map[*host]string
	damaged map[*host]int64                    // since when a row says that a copy there is damaged
	asks    map[meta.PartitionID]int64         // since when its leader waits for an operator
	forced  map[meta.PartitionID]bool          // an operator has chosen a leader
	letters map[*channelModel]map[node.ID]bool // that are in the dead-letter topics
	armed   bool                               // the power goes at the next removal of a log's file
}

// memoryLoss is what a node has forgotten.
type memoryLoss struct {
	at      int64 // when it forgot last; 0: never
	unsound bool  // what its process acknowledges may be nowhere, until the next begins
	lacks   bool  // it was not seen since with all that was acknowledged
	readAt  int64 // when all of it may be read next
	shared  bool  // its disk is another process's, too

	boot     uuid.UUID // of the last process that came to listen
	again    uuid.UUID // what the next process takes for its own boot; nil: a new one
	drawn    []uuid.UUID
	bootAt   int // the place of the boot in what a process draws
	hadNode  bool
	restarts int
	firstOps []int // at these operations of its first starts the power goes
}

// moment is the state of all disks at one time.
type moment struct {
	at    int64
	disks []*faultaio.Disk
	boots []uuid.UUID
}

const (
	// firstForgetSeed is the first seed that may draw FeatureForget.
	firstForgetSeed = 8_000_000
	maxMoments      = 8
	// cannotForget are features that take or damage copies in ways that the book of holders does not follow.
	cannotForget = FeatureMoves | FeatureTopics | FeatureNodes | FeatureErrors | FeatureRot | FeatureLevels |
		FeatureBound | FeaturePlacement | FeatureIdle
)

// drawForget chooses it, from a stream of its own: older seeds stay what they were.
func (w *World) drawForget() {
	if w.Seed < firstForgetSeed {
		return
	}
	r := rand.New(rand.NewPCG(w.Seed, 0xc2b2ae3d27d4eb4f))
	if r.IntN(4) == 0 {
		return
	}
	w.features = w.features&^cannotForget | FeatureForget
	if r.IntN(2) == 0 {
		w.features |= FeatureCluster
	}
}

// drawForgetKind chooses the way to forget.
func (w *World) drawForgetKind() {
	if !w.has(FeatureForget) {
		return
	}
	f := &w.forget
	f.r = rand.New(rand.NewPCG(w.Seed, 0x165667b19e3779f9))
	f.kind = forgetKind(f.r.IntN(int(forgetKinds)))
	if f.kind == forgetTwin || f.kind == forgetShared {
		w.features |= FeatureCluster // the model of the store does not know that a process can be replaced
	}
}

// prepareForget chooses what else happens.
func (w *World) prepareForget() {
	if !w.has(FeatureForget) {
		return
	}
	f, o := &w.forget, &w.opt
	f.damaged, f.behind = map[*host]int64{}, map[nodePart]bool{}
	f.refused, f.asks, f.forced = map[*host]string{}, map[meta.PartitionID]int64{}, map[meta.PartitionID]bool{}
	o.nodes, o.replicas = 3, 3
	if f.r.IntN(6) == 0 {
		o.nodes = 4
	}
	o.min = 2 - f.r.IntN(2)
	o.wipe, o.diskFault, o.diskFull = 0, 0, 0
	o.chaos = max(o.chaos, 2500*ms) + f.r.Int64N(2000*ms)
	f.loose = f.r.IntN(8) == 0
	f.every = 300*ms + f.r.Int64N(900*ms)
	if w.cfg.script != nil {
		w.calmOptions()
		return
	}
	if f.r.IntN(3) > 0 { // most worlds have few other faults, so that a node is mostly well when it forgets
		o.kill, o.crash, o.stop, o.cut, o.pause, o.leave, o.crashAt = o.kill/4, o.crash/4, 0, o.cut/4, o.pause/4, 0, 0
	}
}

// calmOptions are those of scripts: nothing happens by chance.
func (w *World) calmOptions() {
	o := &w.opt
	w.forget.loose = false
	o.nodes, o.replicas, o.min, o.topics, o.partitions, o.consumers = 3, 3, 2, 1, 1, 1
	o.packets, o.slow, o.drop, o.dup, o.full, o.storeDrop, o.drift, o.tidy = false, 0, 0, 0, 0, 0, 0.001, 1
	o.kill, o.crash, o.stop, o.cut, o.pause, o.rot, o.leave, o.crashAt = 0, 0, 0, 0, 0, 0, 0, 0
	o.storeOut, o.jump, o.cpu = 0, 0, 0
	o.delay, o.syncDelay, o.putEvery, o.adminEvery = 2*ms, 2*ms, 10*ms, 1<<50
	o.commitFile, o.commitLive, o.minSegment, o.maxSegment = 128<<10, 1<<20, 1<<20, 1<<20
	o.leaseTTL, o.leaseMargin, o.cfg.LagMaxNs = 600*ms, 100*ms, 300*ms
	o.cfg.CatchUpBytesPerSec = 0
	if w.cfg.options != nil {
		w.cfg.options(o)
	}
}

// startForget lets nodes forget.
func (w *World) startForget() {
	if !w.has(FeatureForget) {
		return
	}
	f := &w.forget
	w.tracef("nodes forget: %v about every %.3f ms, loose %v", f.kind, float64(f.every)/1e6, f.loose)
	w.repeat(50*ms, w.watchLacking)
	w.repeat(500*ms, func() {
		if !w.faults {
			w.decideForgot()
		}
	})
	if w.cfg.script != nil {
		return
	}
	if f.kind == forgetFirstStart {
		for _, n := range w.nodes {
			for range f.r.IntN(4) {
				n.forgot.firstOps = append(n.forgot.firstOps, f.r.IntN(40))
			}
		}
	}
	w.repeat(150*ms+f.r.Int64N(300*ms), w.remember)
	var again func()
	again = func() {
		if w.mayFail() && w.loaded && !f.busy {
			w.forgetSomething()
		}
		w.after(f.every/2+f.r.Int64N(f.every), again)
	}
	w.after(w.opt.quiet+f.r.Int64N(f.every), again)
}

// repeat is every without a draw.
func (w *World) repeat(ns int64, fn func()) {
	var again func()
	again = func() {
		fn()
		w.after(ns, again)
	}
	w.after(ns, again)
}

// remember keeps the state of all disks, as volumes are snapshotted together.
func (w *World) remember() {
	f := &w.forget
	if !w.faults {
		return
	}
	f.moments = append(f.moments, w.thisMoment())
	if len(f.moments) > maxMoments {
		f.moments = slices.Delete(f.moments, 1, 2) // the oldest stays: of a life before
	}
}

func (w *World) thisMoment() moment {
	m := moment{at: w.now}
	for _, n := range w.nodes {
		var d *faultaio.Disk
		if !n.media.Crashed() {
			d = n.media.Crash(w.forget.r.Uint64())
		}
		m.disks, m.boots = append(m.disks, d), append(m.boots, n.forgot.boot)
	}
	return m
}

// beginLife is called when a process of a node begins.
func (n *host) beginLife() {
	if !n.w.has(FeatureForget) {
		return
	}
	g := &n.forgot
	g.unsound = g.shared
	g.drawn = g.drawn[:0]
	_, err := n.media.ReadFile("node.json", 1<<20)
	g.hadNode = err == nil
	if g.restarts < len(g.firstOps) {
		at := g.firstOps[g.restarts]
		n.w.tracef("the power of %s will go at operation %d of this start", n.name, at)
		n.media.CrashAt(n.media.Ops() + at)
	}
	g.restarts++
}

// sameBoot gives a process that was resumed the boot that it had.
func (n *host) sameBoot(id uuid.UUID) uuid.UUID {
	g := &n.forgot
	if !n.w.has(FeatureForget) || n.m == nil {
		return id
	}
	if g.again != uuid.Nil && len(g.drawn) == g.bootAt && g.hadNode {
		id = g.again
	}
	if len(g.drawn) < 16 {
		g.drawn = append(g.drawn, id)
	}
	return id
}

// noteBoot remembers which of the numbers that a process draws is its boot.
func (n *host) noteBoot(boot uuid.UUID) {
	g := &n.forgot
	if !n.w.has(FeatureForget) {
		return
	}
	if g.again != uuid.Nil && g.hadNode && boot != g.again {
		n.w.fail("BUG of the simulation: %s was resumed as %v, and is %v", n.name, g.again, boot)
	}
	g.again, g.boot = uuid.Nil, boot
	if g.bootAt = slices.Index(g.drawn, boot); !g.hadNode {
		g.bootAt-- // an empty directory draws its own id before
	}
}

// noteHolders says who has a value that was answered OK: the members of the ISR whose disks are sound since before it
// was sent.
func (w *World) noteHolders(v *value) {
	if !w.has(FeatureForget) || v.fate != acked {
		return
	}
	v.holders = 0
	row := w.store.snap.Partitions.Get(meta.PartitionID{Topic: v.topic.id, Partition: v.id.Partition()})
	if row == nil {
		return
	}
	for _, m := range row.State.ISR {
		node := w.store.snap.Nodes[m.Node]
		for i, n := range w.nodes {
			if node != nil && node.Name == n.name && node.Store == m.Store && !n.forgot.unsound &&
				(n.forgot.at == 0 || n.forgot.at < v.submitted) {
				v.holders |= 1 << i
			}
		}
	}
}

// mayForget says whether each value that was answered after since is also on a node that is not one of these.
func (w *World) mayForget(since int64, nodes ...*host) bool {
	if w.forget.loose {
		return true
	}
	bits := uint8(0)
	for _, n := range nodes {
		bits |= 1 << n.index
	}
	if w.leaveNobody(bits) {
		return false
	}
	for i := range w.book.values {
		v := &w.book.values[i]
		if v.fate == acked && v.answered >= since && v.holders&bits != 0 && v.holders&^bits == 0 {
			return false
		}
	}
	return true
}

// leaveNobody says whether some partition has no member in sync that is whole, but those nodes.
func (w *World) leaveNobody(bits uint8) bool {
	for _, p := range w.store.snap.Partitions.All() {
		whole := 0
		for _, m := range p.State.ISR {
			for i, n := range w.nodes {
				row := w.store.snap.Nodes[m.Node]
				if row != nil && row.Name == n.name && row.Store == m.Store && bits&(1<<i) == 0 && !n.forgot.lacks &&
					!n.forgot.unsound && !n.wiped && !w.forget.behind[nodePart{n, p.ID}] {
					whole++
				}
			}
		}
		if whole == 0 {
			return true
		}
	}
	return false
}

// noteJoins sees who joins an ISR under a leader that lacks something: it has what that leader has, until it joins
// under one that is whole.
func (w *World) noteJoins(old *meta.Snapshot) {
	for _, p := range w.store.snap.Partitions.All() {
		was := old.Partitions.Get(p.ID)
		if was == nil || p == was || p.State.Leader == 0 {
			continue
		}
		l := w.nodeOf(p.State.Leader)
		lacks := l.forgot.lacks || w.forget.behind[nodePart{l, p.ID}]
		for _, m := range p.State.ISR {
			if n := w.nodeOf(m.Node); n != l && !slices.Contains(was.State.ISR, m) {
				w.forget.behind[nodePart{n, p.ID}] = lacks
			}
		}
	}
}

// watchSound sees whether a partition is without a whole member, though nobody chose that: those in sync have changed
// since.
func (w *World) watchSound(old *meta.Snapshot) {
	f := &w.forget
	if w.has(FeatureForget) {
		w.noteJoins(old)
	}
	if f.tainted || f.loose || !w.has(FeatureForget) || !slices.ContainsFunc(w.nodes, func(n *host) bool {
		return n.forgot.lacks || n.forgot.unsound
	}) {
		return
	}
	if w.leaveNobody(0) {
		w.tracef("somewhere no member in sync is whole")
		f.tainted = true
	}
}

// forgets says that a node lacks what was answered since then.
func (w *World) forgets(n *host, since int64, why string) {
	w.Stats.Forgotten++
	w.tracef("%s forgets what was answered since %.3f: %s", n.name, float64(since)/1e6, why)
	n.forgot.at, n.forgot.lacks = w.now, true
	for i := range w.book.values {
		if v := &w.book.values[i]; v.answered >= since {
			v.holders &^= 1 << n.index
		}
	}
	w.watchLacking()
}

// watchLacking sees which nodes have again all that was acknowledged.
func (w *World) watchLacking() {
	f := &w.forget
	count := 0
	for _, n := range w.nodes {
		if n.e != nil {
			delete(f.refused, n)
		}
		if n.forgot.lacks && !n.forgot.unsound && w.hasAll(n) {
			n.forgot.lacks = false
			w.tracef("%s has all again", n.name)
		}
		if n.forgot.lacks {
			count++
		}
	}
	f.most = max(f.most, count)
}

// hasAll says whether all copies of a node that are in sync end behind everything that was answered.
func (w *World) hasAll(n *host) bool {
	if n.e == nil || n.failed || n.m == nil {
		return false
	}
	ends := map[meta.PartitionID]msgID{}
	for i := range w.book.values {
		if v := &w.book.values[i]; v.fate == acked && v.hasID && !v.topic.doomed {
			id := meta.PartitionID{Topic: v.topic.id, Partition: v.id.Partition()}
			ends[id] = max(ends[id], v.id.MsgID()+1)
		}
	}
	have := map[meta.PartitionID]bool{}
	for _, v := range n.inside.Partitions() {
		row := w.store.snap.Partitions.Get(v.ID)
		have[v.ID] = row != nil && v.Visible >= ends[v.ID] && slices.Contains(members(row.State.ISR), n.replica()) &&
			!v.Stuck && !slices.Contains(members(row.Damaged), n.replica())
	}
	for _, id := range w.store.snap.Partitions.IDs() {
		if slices.Contains(w.store.snap.Partitions.Get(id).State.Replicas, n.replica()) && !have[id] {
			return false
		}
	}
	// The ends look right. Reading all of it costs more, and finds damage as a scrub does.
	if w.now < n.forgot.readAt {
		return false
	}
	n.forgot.readAt = w.now + 500*ms
	w.readLetters()
	copies := map[meta.PartitionID]*held{}
	for i := range w.book.values {
		v := &w.book.values[i]
		if v.fate != acked || v.holders == 0 || v.topic.doomed || v.topic.of != nil {
			continue
		}
		id := meta.PartitionID{Topic: v.topic.id, Partition: v.id.Partition()}
		if !have[id] {
			continue // it is no replica
		}
		if copies[id] == nil {
			copies[id] = w.readHeld(n, id)
		}
		if !copies[id].has(w, i) {
			return false
		}
	}
	return true
}

// cutPowerAtRemoval takes the power away when a file of a log is removed, or right after that.
func (n *host) cutPowerAtRemoval(name string) {
	w := n.w
	f := &w.forget
	if !w.has(FeatureForget) || !isLogFile(name) || !f.armed && (f.kind != forgetRetention || !w.mayFail()) {
		return
	}
	if f.armed || f.r.IntN(3) == 0 {
		f.armed = false
		w.Stats.Forgotten++
		w.tracef("the power of %s goes when %s is removed", n.name, name)
		n.media.CrashAt(n.media.Ops() + f.r.IntN(4))
	}
}
