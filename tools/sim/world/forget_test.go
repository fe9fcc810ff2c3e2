package world

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// Histories of copies that forgot, each a script: everything else is calm. They are the ten that any mechanism has to
// pass before it can be trusted; several broke earlier designs on paper.

// history is a script with what it needs.
type history struct {
	name    string
	options func(*options)
	run     func(*script)
	seeds   uint64
}

// script tells a world what happens.
type script struct {
	w *World
	k int
}

// host is a machine, from 0.
func (s *script) node(i int) *host { return s.w.nodes[i] }

// load lets clients publish for a while.
func (s *script) load(t int64) {
	s.w.loaded = true
	s.pass(t)
}

// rest lets time pass without a message.
func (s *script) rest(t int64) {
	s.w.loaded = false
	s.pass(t)
	s.w.loaded = true
}

func (s *script) pass(t int64) { s.w.runTo(s.w.now+t, nil) }

// until lets time pass until something is so.
func (s *script) until(what string, is func() bool) {
	for end := s.w.now + 30_000*ms; !is() && s.w.Violation == ""; {
		if s.pass(2 * ms); s.w.now > end {
			s.w.broken(3, "the script waits in vain until %s", what)
		}
	}
}

// off takes the power from machines, on gives it back.
func (s *script) off(nodes ...int) {
	for _, i := range nodes {
		s.node(i).halt()
	}
}

func (s *script) on(nodes ...int) {
	for _, i := range nodes {
		s.node(i).power = true
		s.node(i).boot()
	}
}

// open waits until nodes are open.
func (s *script) open(nodes ...int) {
	for _, i := range nodes {
		s.until(fmt.Sprintf("n%d is open", i+1), func() bool { return s.node(i).e != nil })
	}
}

// back sets the disk of a machine that is off to what it was.
func (s *script) back(i int, m *moment) {
	s.node(i).replaceMedia(m.disks[i])
	s.w.forgets(s.node(i), m.at, "its disk is an older one")
}

func (s *script) row() *meta.Partition {
	for _, p := range s.w.store.snap.Partitions.All() {
		return p
	}
	return nil
}

// leader waits until somebody serves the partition, and returns who.
func (s *script) leader() (leader int) {
	s.until("somebody serves", func() bool {
		for i, n := range s.w.nodes {
			if n.e != nil && len(s.w.topics) > 0 && n.serves(s.w.topics[0]) {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// isr waits until these and no others are in sync.
func (s *script) isr(nodes ...int) {
	s.until(fmt.Sprintf("in sync are %v", nodes), func() bool {
		p := s.row()
		if p == nil || len(p.State.ISR) != len(nodes) {
			return false
		}
		for _, i := range nodes {
			if !slices.Contains(members(p.State.ISR), s.node(i).replica()) {
				return false
			}
		}
		return true
	})
}

// begin waits until all is well, and returns the leader and the others.
func (s *script) begin() (leader int, others []int) {
	leader = s.leader()
	all := []int{}
	for i := range s.w.nodes {
		all = append(all, i)
		if i != leader {
			others = append(others, i)
		}
	}
	s.until("the channels are there", func() bool {
		t := s.w.topics[0]
		return len(t.channels) > 0 && t.channels[0].created != 0
	})
	s.isr(all...)
	return leader, others
}

// publishes demands that something that is published from now on is answered OK.
func (s *script) publishes() {
	from := len(s.w.book.values)
	s.until("something is published", func() bool {
		return slices.ContainsFunc(s.w.book.values[from:], func(v value) bool { return v.fate == acked })
	})
}

var histories = []history{
	{"two go back to one snapshot, the third starts late", nil, func(s *script) {
		a, rest := s.begin()
		s.load(600 * ms)
		m := s.w.thisMoment()
		s.load(900 * ms)
		s.rest(300 * ms)
		s.off(0, 1, 2)
		s.back(a, &m)
		s.back(rest[0], &m)
		s.on(a, rest[0])
		s.pass(2500 * ms)
		s.on(rest[1])
		s.pass(2000 * ms)
	}, 6},
	{"a node of an older epoch leads the next", nil, func(s *script) {
		a, _ := s.begin()
		s.load(500 * ms)
		m := s.w.thisMoment()
		s.load(100 * ms)
		s.off(a)
		s.leader()
		s.load(800 * ms)
		s.on(a)
		s.isr(0, 1, 2)
		s.load(800 * ms)
		s.rest(300 * ms)
		l := s.leader()
		s.off(0, 1, 2)
		n4 := (l + 1) % 3
		s.back(n4, &m)
		s.on(n4)
		s.pass(1500 * ms)
		s.on((l+2)%3, l)
		s.pass(2000 * ms)
	}, 6},
	{"a node that forgot hands over to one that joined", func(o *options) { o.min = 1 }, func(s *script) {
		a, rest := s.begin()
		b, c := rest[0], rest[1]
		s.load(300 * ms)
		s.off(c)
		s.isr(a, b)
		m := s.w.thisMoment()
		s.load(900 * ms)
		s.rest(300 * ms)
		s.off(a, b)
		s.back(a, &m)
		s.on(a, c)
		// Either A leads and C joins it, or nobody leads and the row says why.
		s.pass(3000 * ms)
		s.node(a).power = false
		s.node(a).leave()
		s.pass(1000 * ms)
		s.on(b)
		s.pass(1000 * ms)
		s.on(a)
		s.pass(2000 * ms)
	}, 6},
	{"a crash at each step of a life", nil, func(s *script) {
		a, _ := s.begin()
		for k := range 24 {
			n := s.node((a + k/12) % 3)
			s.load(100 * ms)
			n.halt()
			n.media.CrashAt(n.media.Ops() + k)
			n.power = true
			n.boot()
			s.pass(300 * ms)
			n.media.CrashAt(-1)
			if n.m == nil {
				n.boot()
			}
			s.open(n.index)
			s.isr(0, 1, 2)
		}
	}, 3},
	{"a copy and its original run in turn", nil, func(s *script) {
		l, rest := s.begin()
		n := rest[0]
		s.load(500 * ms)
		s.off(n)
		m := s.w.thisMoment()
		s.on(n) // the copy
		s.isr(0, 1, 2)
		s.load(900 * ms)
		s.rest(300 * ms)
		s.off(0, 1, 2)
		s.back(n, &m)
		// While etcd is away the original is started and ended once more.
		s.w.store.out = s.w.now + 400*ms
		s.on(n)
		s.pass(300 * ms)
		s.off(n)
		s.pass(200 * ms)
		s.on(n)
		s.pass(1500 * ms)
		s.on(l, rest[1])
		s.pass(2000 * ms)
	}, 6},
	{"metadata of the past", nil, func(s *script) {
		a, rest := s.begin()
		s.load(500 * ms)
		m := s.w.thisMoment()
		entries, revision := s.w.agreement.m.Entries()
		s.off(a)
		s.leader()
		s.load(500 * ms)
		s.on(a)
		s.isr(0, 1, 2)
		s.load(500 * ms)
		s.rest(300 * ms)
		s.off(0, 1, 2)
		s.back(a, &m)
		s.setBackStore(entries, revision)
		s.on(a, rest[1])
		s.pass(2500 * ms)
		s.on(rest[0])
		s.pass(2000 * ms)
	}, 6},
	{"a resumed machine stays in sync, the leader dies", nil, func(s *script) {
		a, rest := s.begin()
		n := s.node(rest[0])
		s.load(500 * ms)
		m := s.w.thisMoment()
		s.load(900 * ms)
		s.rest(300 * ms)
		s.off(n.index)
		n.forgot.again = m.boots[n.index]
		s.back(n.index, &m)
		s.off(a, rest[1])
		s.on(n.index)
		s.pass(2500 * ms)
		s.on(rest[1])
		s.pass(500 * ms)
		s.on(a)
		s.pass(2000 * ms)
	}, 6},
	{"an uncommitted tail, and its leader dies for good", nil, func(s *script) {
		c, rest := s.begin()
		s.load(400 * ms)
		w := s.w
		for i := range w.nodes {
			w.net.cut[c][i], w.net.cut[i][c] = i != c, i != c
		}
		s.load(150 * ms)
		s.off(c)
		w.net.cut = [8][8]bool{}
		a := s.leader()
		b := rest[0] + rest[1] - a
		s.isr(a, b)
		s.load(500 * ms)
		s.rest(300 * ms)
		s.off(a)
		s.node(b).kill("it restarts")
		s.open(b)
		s.on(c)
		s.publishes()
		s.pass(1000 * ms)
		s.on(a)
	}, 6},
	{"the power goes while retention removes", func(o *options) {
		o.minSegment, o.maxSegment, o.putEvery = 64<<10, 64<<10, 3*ms
	}, func(s *script) {
		s.begin()
		for range 6 {
			s.w.forget.armed = true
			before := s.w.Stats.Crashes
			s.until("the power goes", func() bool { return s.w.Stats.Crashes > before })
			s.isr(0, 1, 2)
		}
		s.w.forget.armed = false
	}, 3},
	{"the power goes at each step of a first start", nil, func(s *script) {
		s.node(0).forgot.firstOps = []int{s.k}
		s.node(1).forgot.firstOps = []int{s.k / 2, s.k}
		s.begin()
		s.load(200 * ms)
	}, 48},
	{"two of three clean their commit logs", nil, func(s *script) {
		a, rest := s.begin()
		s.load(900 * ms)
		s.rest(300 * ms)
		s.off(0, 1, 2)
		s.w.removeName(s.node(a), "clog")
		s.w.removeName(s.node(rest[0]), "clog")
		s.on(a, rest[0])
		s.pass(2500 * ms)
		s.on(rest[1])
		s.pass(2000 * ms)
	}, 6},
	{"the commit log is removed beneath a process, later it leads", nil, func(s *script) {
		s.removedBeneath(func(*host) string { return "clog" })
	}, 6},
	{"the current file of the log is removed beneath a process, later it leads", nil, func(s *script) {
		s.removedBeneath((*host).currentLog)
	}, 6},
	{"1,400 epochs while a copy is away", func(o *options) {
		o.nodes, o.replicas, o.min = 2, 2, 2
	}, func(s *script) {
		s.epochs(1400)
	}, 1},
	{"1,400 epochs while a copy is away, with segments", func(o *options) {
		o.nodes, o.replicas, o.min, o.minSegment, o.maxSegment, o.putEvery, o.consumers = 2, 2, 2, 64<<10, 64<<10, 3*ms, 1
	}, func(s *script) {
		s.epochs(1400)
	}, 1},
}

// removedBeneath removes something of a follower's directory while it runs. Later all nodes restart, and it is first.
func (s *script) removedBeneath(name func(*host) string) {
	a, rest := s.begin()
	n := s.node(rest[0])
	s.load(600 * ms)
	s.w.removeName(n, name(n))
	s.load(300 * ms)
	s.rest(300 * ms)
	s.off(0, 1, 2)
	s.on(n.index)
	s.pass(1500 * ms)
	s.on(a, rest[1])
	s.pass(2000 * ms)
}

// epochs lets a lone leader begin so many, while the other copy is away.
func (s *script) epochs(count int) {
	a, rest := s.begin()
	s.load(600 * ms)
	s.rest(300 * ms)
	end := s.end(rest[0])
	s.off(rest[0])
	s.w.loaded = false
	for range count {
		s.node(a).power = false
		s.node(a).kill("again")
		epoch := s.row().State.Epoch
		s.on(a)
		s.until("there is another epoch", func() bool { return s.row().State.Epoch > epoch })
		s.pass(4 * ms)
	}
	s.on(rest[0])
	s.open(rest[0])
	for range 1500 { // the leader dies as soon as the copy is cut, if it is
		if s.pass(ms); s.end(rest[0]) < end/2 {
			break
		}
	}
	s.off(a)
	s.pass(2000 * ms)
	s.on(a)
	s.pass(2000 * ms)
}

// end is where a node's copy ends.
func (s *script) end(of int) (end segment.Position) {
	if n := s.node(of); n.m != nil {
		n.inside.EachMarks(func(v *partition.Marks) { end = v.End })
	}
	return end
}

// setBackStore lets the metadata be what they were.
func (s *script) setBackStore(entries []kv.Entry, revision int64) {
	w := s.w
	entries = slices.DeleteFunc(slices.Clone(entries), func(e kv.Entry) bool { return e.Lease != 0 })
	a := w.agreement
	a.m = memory.New(memory.Options{Now: a.now, Entries: entries, Revision: revision})
	a.seen = 0
	clear(w.store.granted)
	clear(w.checks.leaders)
	a.look()
}

// Copies that forgot: see histories.
func TestForgotten(t *testing.T) {
	for i, h := range histories {
		t.Run(fmt.Sprintf("%d/%s", i+1, h.name), func(t *testing.T) {
			for seed := range h.seeds {
				if w := tell(h, seed, nil); w.Violation != "" {
					t.Errorf("seed %d: %s", seed, w.Violation)
				}
			}
		})
	}
}

// A node whose disk is set back to a state of its last life knows it, with the agreement of the cluster package and
// with the world's own. One that only lost its power is not taken for that.
func TestStateOfTheLastLife(t *testing.T) {
	h := history{run: func(s *script) {
		a, rest := s.begin()
		is := func(node, want int) {
			s.open(node)
			if n := s.node(node).e.Storage().OlderDirectory; n != want {
				s.w.broken(3, "n%d is taken for older: %d, want %d", node+1, n, want)
			}
		}
		s.load(300 * ms)
		m := s.w.thisMoment()
		s.load(6000 * ms) // it writes its row every five seconds
		s.off(rest[0])
		s.on(rest[0])
		is(rest[0], 0)
		s.isr(0, 1, 2)
		s.off(a)
		s.back(a, &m)
		s.on(a)
		is(a, 1)
		s.pass(2000 * ms)
	}}
	for seed := range uint64(6) {
		if w := tell(h, seed, nil); w.Violation != "" {
			t.Errorf("seed %d: %s", seed, w.Violation)
		}
		w := Run(seed, Config{Features: FeatureForget, script: func(w *World) { h.run(&script{w, int(seed)}) }})
		if w.Violation != "" {
			t.Errorf("seed %d, in the world's own agreement: %s", seed, w.Violation)
		}
	}
}

// Seeds that once broke a rule: a contested copy that another leader's retention made begin anew, or that stayed
// contested under a leader that had all of it, a channel that only forgotten members knew, a copy that had lost the
// file with which its log began, a leader whose log ended in front of what the others' retention had left, and one that
// took a member which went on elsewhere for a proof; a leader that waited for what a replica outside the ISR had
// appended before it left, partitions of which nobody asked an operator, a leader that was the only one to know what it
// had committed, and forgot it, a copy whose last file was gone, which waited, and kept the commit log full, and logs
// whose first segment was removed with its index.
func TestForgetSeedsThatFailed(t *testing.T) {
	runAll(t, Config{}, []uint64{
		8000022, 8000070, 8000221, 8000251, 8000268, 8000543, 8000148, 8001013, 8000087, 8001391, 8001582,
		20000744, 20001552, 20001582, 20002154, 20004811, 21000441, 22001339, 23004196, 24003825, 24006336, 24006686,
		21003648, 22007409, 23013488, 23013797, 23000620, 24017751, 32004162, 32003312, 32005682, 32006966,
		32009824, 32006462, 40000176,
	})
}

// Seeds that draw it: each way to forget comes up many times.
func TestForgetSeeds(t *testing.T) {
	var seeds []uint64
	for seed := uint64(firstForgetSeed); len(seeds) < 30; seed++ {
		if Draws(seed, Config{})&FeatureForget != 0 {
			seeds = append(seeds, seed)
		}
	}
	sum := runAll(t, Config{}, seeds)
	if !t.Failed() && (sum.Forgotten < 30 || sum.Twins < 2) {
		t.Errorf("nodes have forgotten %d times, and run twice %d times", sum.Forgotten, sum.Twins)
	}
}

// The same seed is the same run, also where nodes forget. Older seeds do not draw it.
func TestForgetIsDeterministic(t *testing.T) {
	for seed := uint64(firstForgetSeed); seed < firstForgetSeed+3; seed++ {
		a, b := Run(seed, Config{}), Run(seed, Config{})
		if a.Hash() != b.Hash() || a.Stats != b.Stats || a.Violation != b.Violation {
			t.Errorf("seed %d: two runs differ:\n%016x %+v\n%016x %+v", seed, a.Hash(), a.Stats, b.Hash(), b.Stats)
		}
	}
	for seed := uint64(firstForgetSeed - 40); seed < firstForgetSeed; seed++ {
		if Draws(seed, Config{})&FeatureForget != 0 {
			t.Errorf("seed %d draws it", seed)
		}
	}
}

// TEST_HISTORY=number/seed shows one of them.
func TestShowHistory(t *testing.T) {
	var number, seed int
	if _, err := fmt.Sscanf(os.Getenv("TEST_HISTORY"), "%d/%d", &number, &seed); err != nil {
		t.Skip("TEST_HISTORY names none")
	}
	w := tell(histories[number-1], uint64(seed), func(line string) { fmt.Println(line) })
	t.Logf("%s\n%+v", w.Violation, w.Stats)
}

// tell runs a history once.
func tell(h history, seed uint64, trace func(string)) *World {
	options := func(o *options) {
		if seed%2 == 1 { // nothing is flushed to segments
			o.commitFile, o.commitLive = 4<<20, 16<<20
		}
		if h.options != nil {
			h.options(o)
		}
	}
	cfg := Config{
		Features: FeatureForget | FeatureCluster, Trace: trace, options: options,
		script: func(w *World) { h.run(&script{w, int(seed)}) },
	}
	if trace != nil {
		cfg.Engine = slog.NewTextHandler(os.Stdout, nil)
	}
	return Run(seed, cfg)
}
