package world

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/tests/support/seedtest"
)

// runAll runs seeds on all processors and reports those that break a promise.
func runAll(t *testing.T, cfg Config, seeds []uint64) (sum Stats) {
	t.Helper()
	var next atomic.Int64
	var mu sync.Mutex
	var all sync.WaitGroup
	for range runtime.NumCPU() {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(seeds)) && !t.Failed(); i = next.Add(1) - 1 {
				w := Run(seeds[i], cfg)
				mu.Lock()
				sum.Add(&w.Stats)
				mu.Unlock()
				if w.Violation != "" {
					how := ""
					if cfg.Features != 0 { // else the seed drew them: see World.Features
						how = fmt.Sprintf(" -features %v", cfg.Features)
					}
					t.Errorf("seed %d (%v): %s\n%s\nsee all of it: go run ./tools/sim -seed %d%s -v",
						seeds[i], w.Features(), w.Violation, Transcript(seeds[i], cfg), seeds[i], how)
				}
			}
		})
	}
	all.Wait()
	return sum
}

// someSeeds are in every test run; mutants.txt needs as many. CI runs new ones for ten minutes, and these must also
// bring about everything that the simulation is for: see Missing.
const someSeeds = 100

// Whole nodes under faults: nothing that was answered OK is lost, nothing is invented, everything is delivered, and
// after the faults everything comes right again.
//
// # B1 B2 B3 B7 B8 B9 B11 B12 B13 B14 B16 B17 B18 B19 B50 B68 B71 B72 B73 B74 B75 B76 B77 B78 B79 B81 B82 B83 B84 B94
//
// TEST_SIM_SEEDS=from-to chooses the seeds, for instance 0-100000. TEST_SIM_FEATURES=corpse,moves gives all of them
// these features, instead of what they draw.
func TestSeeds(t *testing.T) {
	from, to := seedtest.Range(t, someSeeds, someSeeds)
	var all []uint64
	for seed := from; seed < to; seed++ {
		all = append(all, seed)
	}
	var cfg Config
	if text := os.Getenv("TEST_SIM_FEATURES"); text != "" {
		var err error
		if cfg.Features, err = ParseFeatures(text); err != nil {
			t.Fatalf("TEST_SIM_FEATURES=%s: %v", text, err)
		}
	}
	sum := runAll(t, cfg, all)
	t.Logf("seeds %d-%d: %+v", from, to, sum)
}

// Missing names all of what no run brought about, and nothing else.
func TestMissing(t *testing.T) {
	all := len((&Stats{}).Missing())
	sum := Run(firstForgetSeed, Config{}).Stats
	if some := sum.Missing(); len(some) == 0 || len(some) > all-10 || slices.Contains(some, "answers") {
		t.Errorf("one run does not bring about %d of %d things: %q", len(some), all, some)
	}
	for _, f := range sum.fields() {
		*f = 1
	}
	if none := sum.Missing(); len(none) != 0 || all < 55 {
		t.Errorf("of %d things these are missing when nothing is: %q", all, none)
	}
}

// Segments that hold one batch each: nearly all cuts of logs, resets and checkpoints end where a segment ends.
//
// B17, B28, B43, B73, B74.
func TestSmallSegments(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(40) {
		seeds = append(seeds, seed)
	}
	sum := runAll(t, Config{SmallSegments: true, Features: FeatureSettings}, seeds)
	if sum.Crashes < 100 || sum.Wipes == 0 {
		t.Errorf("the power was cut %d times, %d disks were lost", sum.Crashes, sum.Wipes)
	}
}

// Replicas, racks, rebalancing and transfers: every partition ends with as many replicas as its topic wants, spread as
// evenly over racks and nodes as that is possible, and nothing is lost on the way. Seeds draw this only from
// firstPlacementSeed on.
func TestPlacement(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(24) {
		seeds = append(seeds, seed)
	}
	sum := runAll(t, Config{Features: FeaturePlacement}, seeds)
	more := runAll(t, Config{Features: FeaturePlacement | FeatureMoves | FeatureNodes | FeatureTopics | FeatureHung},
		seeds[:8])
	sum.Add(&more)
	for what, n := range map[string]int{
		"changes of replicas": sum.Resized, "replicas that were removed": sum.Shrunk, "moves of rebalances": sum.Evened,
		"orders to hand over": sum.Ordered, "orders that were carried out": sum.Transferred, "moves": sum.Moves,
		"nodes that were removed": sum.Removed, "topics that were made again": sum.Remade,
	} {
		if n == 0 {
			t.Errorf("the seeds bring about no %s: they do not reach what they are for", what)
		}
	}
	draws := func(from uint64) (count int) {
		for seed := from; seed < from+40; seed++ {
			w := &World{Seed: seed}
			if w.drawPlacement(); w.has(FeaturePlacement) {
				count++
			}
		}
		return count
	}
	if old, now := draws(0), draws(firstPlacementSeed); old != 0 || now == 0 {
		t.Errorf("%d old seeds and %d new ones draw placement", old, now)
	}
}

// Producers that send batches again until the answer is sure, through failovers, moves, deletions, wiped disks and an
// upgrade: each message is stored at most once, in order, and where its producer was told.
//
// B17, B19, B22, B81.
func TestProducers(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(20) {
		seeds = append(seeds, seed)
	}
	sum := runAll(t, Config{Features: FeatureProducers}, seeds)
	for _, more := range []Feature{
		FeatureMoves | FeatureNodes | FeatureTopics | FeatureHung, FeatureLevels | FeatureCluster,
		FeatureSettings | FeatureChannels | FeatureRemote | FeatureSlow,
	} {
		one := runAll(t, Config{Features: FeatureProducers | more}, seeds[:8])
		sum.Add(&one)
	}
	if sum.Opened < 60 || sum.Repeats < 150 {
		t.Errorf("producers were opened %d times, batches repeated %d times", sum.Opened, sum.Repeats)
	}
}

// Of the seeds that found something, those that say "always" are run here, and all by "sim -regressions".
func TestRegressions(t *testing.T) {
	list, err := Regressions()
	if err != nil {
		t.Fatal(err)
	}
	worlds := map[Feature][]uint64{}
	small := map[Feature][]uint64{}
	count := 0
	for _, g := range list {
		switch {
		case !g.Always:
			continue
		case g.Config.SmallSegments:
			small[g.Config.Features] = append(small[g.Config.Features], g.Seed)
		default:
			worlds[g.Config.Features] = append(worlds[g.Config.Features], g.Seed)
		}
		count++
	}
	if count < 40 || count > 70 {
		t.Errorf("%d of %d seeds are always run: see the head of testdata/seeds.txt", count, len(list))
	}
	for features, seeds := range worlds {
		runAll(t, Config{Features: features}, seeds)
	}
	for features, seeds := range small {
		runAll(t, Config{Features: features, SmallSegments: true}, seeds)
	}
}

func TestRegressionsAreRead(t *testing.T) {
	list, err := parseRegressions("# head\n7 drawn\n8 rot,idle small-segments always # why\n\n9 plain always\n")
	want := []Regression{
		{Seed: 7},
		{8, Config{Features: FeatureRot | FeatureIdle, SmallSegments: true}, true},
		{9, Config{Features: FeaturePlain}, true},
	}
	if err != nil || fmt.Sprintf("%+v", list) != fmt.Sprintf("%+v", want) {
		t.Errorf("read as %+v, %v", list, err)
	}
	for _, bad := range []string{"7", "x drawn", "7 nonsense", "7 drawn sometimes"} {
		if _, err := parseRegressions(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// The same seed is the same run, to the last frame.
func TestDeterminism(t *testing.T) {
	for seed := range uint64(4) {
		cfg := Config{}
		if seed >= 2 { // all gray failures there are, on the real agreement
			cfg.Features = grayFeatures
		}
		a, b := Run(seed, cfg), Run(seed, cfg)
		if a.Hash() != b.Hash() || a.Stats != b.Stats || a.Stats.Frames == 0 {
			t.Errorf("seed %d: two runs differ, or are empty:\n%016x %+v\n%016x %+v", seed, a.Hash(), a.Stats, b.Hash(), b.Stats)
		}
	}
}

// liesOf are the lies with the features that they need and the seeds in which they must be found: first the one that
// found the lie last, then all others from 0 on.
var liesOf = []struct {
	name     string
	features Feature
	seeds    uint64
	last     uint64
}{
	{"early-sync", 0, 20, 2},
	{"unclean-election", 0, 20, 0},
	{"empty-disk", FeatureChannels, 280, 2}, // of 900 seeds, 2 find it
	{"rollback", 0, 50, 3},
	{"short-retention", FeatureSettings, 420, 294}, // of 900 seeds, 5 find it
	{"same-topic", FeatureTopics, 30, 1},
	{"silent-growth", FeatureTopics, 100, 0},
	{"hasty-removal", FeatureNodes, 60, 1},
	{"other-filter", FeatureFilters, 20, 0},
	{"lost-letters", FeatureFilters, 150, 1},
	{"ill-disk", FeatureSlow, 50, 0},
	{"ill-disk", FeatureHung, 50, 0},
	{"spot", FeatureHung, 20, 0},
	{"deaf-disk", FeatureErrors, 50, 25},
	{"rot-everywhere", FeatureRot, 20, 0},
	{"both-clocks", FeatureClocks, 20, 1},
	{"early-level", FeatureLevels, 20, 0},
	{"second-hang", FeatureBound, 20, 3},
	{"stale-list", FeatureCluster, 20, 0},
	{"echo", FeatureStrict | FeatureRemote | FeatureChannels, 60, 0},
	{"blind-txn", FeatureCluster, 40, 13},
	{"no-marks", FeatureIdle | FeatureRot, 40, 7},
	{"wrong-rack", FeaturePlacement, 20, 1},
	{"many-moves", FeaturePlacement, 40, 11},
	{"hasty-shrink", FeaturePlacement, 20, 0},
	{"same-replicas", FeaturePlacement, 20, 0},
	{"deaf-pause", FeaturePlacement, 60, 0},
	{"deaf-order", FeaturePlacement, 20, 3},
	{"nameless", FeatureProducers, 20, 0},
	{"short-keep", FeatureKeep, 20, 0},
	{"keep-is-all", FeatureKeep, 40, 1},
	{"unnumbered", FeatureNumbered, 20, 0},
	{"fork-elsewhere", FeatureForks, 40, 0},
	{"no-probes", FeatureIdle | FeatureHung | FeatureMoves, 150, 9},
}

// A world that lies is seen through: that is what shows that the checks can see anything.
func TestMutantsAreFound(t *testing.T) {
	for _, lie := range liesOf {
		cfg := Config{Break: Mutants[lie.name], Features: lie.features}
		t.Run(fmt.Sprintf("%s/%v", lie.name, lie.features), func(t *testing.T) {
			found := func(seed uint64) bool {
				w := Run(seed, cfg)
				if w.Violation != "" {
					t.Logf("seed %d: %s", seed, w.Violation)
					judgeTranscript(t, Transcript(seed, cfg))
				}
				return w.Violation != ""
			}
			if found(lie.last) {
				return
			}
			for seed := range lie.seeds {
				if found(seed) {
					return
				}
			}
			t.Errorf("not found in %d seeds", lie.seeds)
		})
	}
}

// A disk is replaced only if other members of each ISR have what it has. The store counts a node as soon as it has
// registered, also if the answer to that was lost, so that the process does not know its id yet, or not its new one.
func TestDiskOfANodeThatDoesNotKnowItsIDIsCounted(t *testing.T) {
	one, two, three := uuid.UUID{1}, uuid.UUID{2}, uuid.UUID{3}
	for name, c := range map[string]struct {
		knows  uint32
		isr    []replicate.Member
		spares bool
	}{
		"it is the only member":              {0, []replicate.Member{{Node: 3, Store: three}}, false},
		"it is one of two":                   {0, []replicate.Member{{Node: 1, Store: one}, {Node: 3, Store: three}}, false},
		"it is no member":                    {0, []replicate.Member{{Node: 1, Store: one}}, true},
		"the only one, known by an older id": {2, []replicate.Member{{Node: 3, Store: three}}, false},
		"the only one, and knows its id":     {3, []replicate.Member{{Node: 3, Store: three}}, false},
		"one of three, and knows its id": {
			3, []replicate.Member{{Node: 1, Store: one}, {Node: 3, Store: three}, {Node: 2, Store: two}}, true,
		},
	} {
		w := &World{}
		w.nodes = []*host{{w: w, name: "n1", id: 1}, {w: w, name: "n2", id: c.knows}, {w: w, name: "n3", id: 2}}
		w.store = &store{w: w, snap: &meta.Snapshot{
			Nodes: map[replicate.NodeID]*meta.Node{
				1: {ID: 1, Name: "n1", Store: one}, 3: {ID: 3, Name: "n2", Store: three}, 2: {ID: 2, Name: "n3", Store: two},
			},
			Partitions: meta.Partitions{}.With(meta.PartitionID{}, &meta.Partition{State: replicate.State{ISR: c.isr}}),
		}}
		if spares := w.spares(w.nodes[1]); spares != c.spares {
			t.Errorf("%s: its disk may be replaced: %v", name, spares)
		}
	}
}

// Each gray failure has a lie that shows that the checks see it.
func TestEveryGrayFailureHasALie(t *testing.T) {
	var lied Feature
	for _, lie := range liesOf {
		if _, ok := Mutants[lie.name]; !ok {
			t.Errorf("there is no such lie as %q", lie.name)
		}
		lied |= lie.features
	}
	for name, one := range Features {
		if one&grayFeatures&^lied != 0 {
			t.Errorf("no lie for %q", name)
		}
	}
}

// A world gives back all memory that its engines took outside of the Go heap, however their processes ended: a campaign
// runs for hours.
func TestMemoryIsGivenBack(t *testing.T) {
	run := func(from, to uint64) {
		for seed := from; seed < to; seed++ {
			Run(seed, Config{Features: FeaturePlain})
		}
	}
	run(0, 5) // the Go heap takes what it needs
	before := addressSpace(t)
	run(5, 35)
	if grown := addressSpace(t) - before; grown > 150<<20 {
		t.Errorf("30 runs have left %d MiB of mapped memory behind", grown>>20)
	}
}

func addressSpace(t *testing.T) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes * int64(os.Getpagesize())
}
