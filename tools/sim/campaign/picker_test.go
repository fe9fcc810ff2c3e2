package campaign

import (
	"errors"
	"math"
	"strings"
	"testing"

	"penstock/tools/sim/world"
)

func drawn(seed uint64) world.Feature { return world.Draws(seed, world.Config{}) }

func count(from *uint64) func() (uint64, error) {
	return func() (uint64, error) { *from++; return *from - 1, nil }
}

// Half of the seeds come as they are; the others draw a row of the table, as often as its count says.
func TestPickerWeighs(t *testing.T) {
	table := []Found{{30, world.FeatureRot}, {10, world.FeatureMoves | world.FeatureTopics}}
	draws := func(seed uint64) (f world.Feature) { // one in 20, one in 30
		if seed%20 == 3 {
			f |= world.FeatureRot
		}
		if seed%30 == 7 {
			f |= world.FeatureMoves | world.FeatureTopics
		}
		return f | world.FeatureSlow
	}
	at, last, chosen := uint64(1e9), uint64(0), map[world.Feature]int{}
	p := Picker{Take: count(&at), Table: table, Draws: draws}
	const runs = 4000
	for range runs {
		seed, with, err := p.Next()
		if err != nil || seed <= last || draws(seed)&with != with {
			t.Fatalf("seed %d behind %d, for %v, draws %v: %v", seed, last, with, draws(seed), err)
		}
		last = seed
		chosen[with]++
	}
	for with, part := range map[world.Feature]float64{0: 0.5, table[0].With: 0.375, table[1].With: 0.125} {
		if got := float64(chosen[with]) / runs; math.Abs(got-part) > 0.04 {
			t.Errorf("%.3f of the seeds were chosen for %v, not %.3f", got, with, part)
		}
	}
}

// Which seeds are chosen depends on the seeds alone.
func TestPickerRepeats(t *testing.T) {
	list := func() (seeds []uint64) {
		at := uint64(5e9)
		table, err := FoundLately()
		if err != nil || len(table) < 5 {
			t.Fatalf("found.txt has %d rows: %v", len(table), err)
		}
		p := Picker{Take: count(&at), Table: table, Draws: drawn}
		for range 200 {
			seed, _, err := p.Next()
			if err != nil {
				t.Fatal(err)
			}
			seeds = append(seeds, seed)
		}
		return seeds
	}
	a, b := list(), list()
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("run %d is of seed %d, then of %d", i, a[i], b[i])
		}
	}
}

// With features that are asked for, only they count.
func TestPickerWith(t *testing.T) {
	at := uint64(1e9)
	p := Picker{
		Take: count(&at), Table: []Found{{1, world.FeatureRot}}, With: world.FeatureMoves,
		Draws: func(seed uint64) world.Feature {
			if seed%5 == 0 {
				return world.FeatureMoves
			}
			return world.FeatureRot
		},
	}
	for range 50 {
		if seed, with, err := p.Next(); seed%5 != 0 || with != world.FeatureMoves || err != nil {
			t.Fatalf("seed %d for %v: %v", seed, with, err)
		}
	}
	p.Draws = func(uint64) world.Feature { return world.FeatureRot }
	if _, _, err := p.Next(); err == nil || !strings.Contains(err.Error(), "exclude") {
		t.Errorf("features that no seed draws: %v", err)
	}
	p.Take = func() (uint64, error) { return 0, errors.New("no room") }
	if _, _, err := p.Next(); err == nil {
		t.Error("a memory that fails is not noticed")
	}
}

// Every row of the table is drawn by new seeds, or campaigns would search for ever.
func TestFoundIsDrawn(t *testing.T) {
	table, err := FoundLately()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range table {
		at := uint64(77e9)
		p := Picker{Take: count(&at), With: f.With, Draws: drawn}
		if _, _, err := p.Next(); err != nil {
			t.Errorf("%v: %v", f.With, err)
		}
	}
}

func TestFoundIsRead(t *testing.T) {
	table, err := ParseFound("# head\n\n7 rot # why\n3 moves,topics\n")
	if err != nil || len(table) != 2 || table[0] != (Found{7, world.FeatureRot}) ||
		table[1] != (Found{3, world.FeatureMoves | world.FeatureTopics}) {
		t.Errorf("read as %v, %v", table, err)
	}
	for _, bad := range []string{"rot", "0 rot", "-1 rot", "3 nonsense", "x rot"} {
		if _, err := ParseFound(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
