package world

import "testing"

// Topics that keep what is confirmed, publishers that number their puts, and forks of channels, through failovers,
// moves, deletions, wrong clocks and changes of all settings: what is to be kept stays and can be read, nothing
// unconfirmed goes, each numbered message is stored once, in order, and a fork misses nothing of what the other
// channel had before it.
//
// B17, B19, B22, B39, B81.
func TestKeptNumberedForked(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(10) {
		seeds = append(seeds, seed)
	}
	var sum Stats
	for _, features := range []Feature{
		FeatureKeep, FeatureNumbered, FeatureForks,
		FeatureKeep | FeatureNumbered | FeatureForks | FeatureClocks | FeatureSettings,
		FeatureKeep | FeatureForks | FeatureTopics | FeatureMoves | FeatureCluster,
		FeatureNumbered | FeatureRemote | FeatureLevels | FeatureHung,
	} {
		one := runAll(t, Config{Features: features}, seeds)
		sum.Add(&one)
	}
	for what, n := range map[string]int{
		"messages that were read again": sum.Replayed, "segments that go from topics that keep something": sum.KeptGone,
		"puts that were sent again": sum.Repeats, "forks": sum.Forked, "publishers that began": sum.Opened,
	} {
		if n < 15 {
			t.Errorf("the seeds bring about %d %s: they do not reach what they are for", n, what)
		}
	}
	draws := func(from uint64) (all Feature) {
		for seed := from; seed < from+40; seed++ {
			w := &World{Seed: seed}
			w.drawKeep()
			all |= w.features
		}
		return all
	}
	if old, now := draws(firstProducerSeed), draws(firstKeepSeed); old != 0 ||
		now != FeatureKeep|FeatureNumbered|FeatureForks {
		t.Errorf("old seeds draw %v and new ones %v", old, now)
	}
}
