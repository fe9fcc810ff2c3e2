package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"penstock/tools/sim/world"
)

func seedsOf(t *testing.T, j jobs) (list []job) {
	t.Helper()
	for {
		one, err := j.next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, one)
	}
}

// What failed once is run as a whole, or a few of it, or what draws the features that are asked for.
func TestKnown(t *testing.T) {
	all, err := world.Regressions()
	if err != nil {
		t.Fatal(err)
	}
	if got := len(seedsOf(t, (&options{regressions: true}).known())); got != len(all) {
		t.Errorf("%d of %d seeds are run", got, len(all))
	}
	if got := len(seedsOf(t, (&options{replay: 7}).known())); got != 7 {
		t.Errorf("%d seeds are run instead of 7", got)
	}
	rot := seedsOf(t, (&options{regressions: true, draw: world.FeatureRot}).known())
	if len(rot) == 0 || len(rot) >= len(all) {
		t.Errorf("%d of %d seeds have rot", len(rot), len(all))
	}
	again, err := world.Regressions()
	if err != nil || again[0].Seed != all[0].Seed || len(again) != len(all) {
		t.Errorf("the list is another one: %v", err)
	}
}

// Two campaigns with one memory run no seed twice, and the seeds of -seeds are those that were named.
func TestCampaignsDiffer(t *testing.T) {
	o := &options{count: 40, memory: filepath.Join(t.TempDir(), "seeds.txt"), version: "v"}
	seen := map[uint64]bool{}
	for range 2 {
		j := o.campaign()
		list := seedsOf(t, j)
		if len(list) != 40 {
			t.Fatalf("%d seeds are run instead of 40", len(list))
		}
		for _, one := range list {
			if seen[one.seed] {
				t.Errorf("seed %d is run twice", one.seed)
			}
			seen[one.seed] = true
			if world.Draws(one.seed, one.cfg)&one.chosen != one.chosen {
				t.Errorf("seed %d was chosen for %v and does not draw it", one.seed, one.chosen)
			}
		}
		if j.tell() == "" {
			t.Error("the campaign does not say what it ran")
		}
	}
	for i, one := range seedsOf(t, (&options{seeds: "70-75"}).fixed()) {
		if one.seed != uint64(70+i) || i > 4 {
			t.Errorf("seed %d is run as number %d", one.seed, i)
		}
	}
}

// A campaign ends by the clock, whatever still runs, and fails where a seed did.
func TestManyEnds(t *testing.T) {
	seed := uint64(0)
	forever := func(cfg world.Config) jobs {
		return jobs{"seeds without an end", 0, func() (job, error) {
			seed++
			return job{seed: seed, cfg: cfg}, nil
		}, func() string { return "" }}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	o := &options{parallel: 1, most: 2}
	if !o.many(ctx, forever(world.Config{})) {
		t.Error("a seed that was given up counts as failed")
	}
	if o.many(context.Background(), forever(world.Config{Break: world.MutantUnclean})) {
		t.Error("seeds of a world that lies break no promise")
	}
	few := forever(world.Config{Features: world.FeaturePlain})
	few.least, seed = 3, 0
	if o.many(ctx, few) || seed < 3 {
		t.Errorf("%d seeds, whose time was over, bring about everything", seed)
	}
}
