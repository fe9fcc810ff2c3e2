package world

import "testing"

// Programs that hold a publisher's name no more go on, through failovers and the life of topics: what is
// answered OK is stored, and none of them takes a name back.
//
// B17, B19.
func TestGhosts(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(12) {
		seeds = append(seeds, firstGhostSeed+seed)
	}
	var sum Stats
	for _, features := range []Feature{
		FeatureNumbered | FeatureGhosts | FeatureTopics,
		FeatureNumbered | FeatureGhosts | FeatureTopics | FeatureRemote,
	} {
		one := runAll(t, Config{Features: features}, seeds)
		sum.Add(&one)
	}
	if sum.Haunted < 4 || sum.Remade < 20 || sum.Expanded < 20 {
		t.Errorf("%d puts of ghosts are stored, %d topics were made anew, %d partitions added", sum.Haunted, sum.Remade,
			sum.Expanded)
	}
	draws := func(from uint64) (n int) {
		for seed := from; seed < from+60; seed++ {
			if Draws(seed, Config{})&FeatureGhosts != 0 {
				n++
			}
		}
		return n
	}
	if old, now := draws(firstGhostSeed-60), draws(firstGhostSeed); old != 0 || now == 0 {
		t.Errorf("%d old seeds draw ghosts, and %d new ones", old, now)
	}
}
