package world

import "testing"

// Whatever operators have begun ends although a node dies for good that it concerns.
func TestCorpse(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(10) {
		seeds = append(seeds, seed)
	}
	sum := runAll(t, Config{Features: FeatureCorpse}, seeds)
	if sum.Corpses == 0 || sum.Undone == 0 {
		t.Errorf("%d nodes died for good, and %d moves were undone: the seeds do not reach what they are for",
			sum.Corpses, sum.Undone)
	}
	draws := func(from uint64) (count int) {
		for seed := from; seed < from+100; seed++ {
			if Draws(seed, Config{})&FeatureCorpse != 0 {
				count++
			}
		}
		return count
	}
	if old, now := draws(firstCorpseSeed-200), draws(firstCorpseSeed); old != 0 || now == 0 {
		t.Errorf("%d old seeds and %d new ones draw it", old, now)
	}
}
