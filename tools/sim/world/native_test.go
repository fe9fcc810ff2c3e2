package world

import "testing"

// Native clients begin the messages of ordered channels later than they get them, and hear late of what happens to
// their leaders; no message is begun after the next one.
//
// B57.
func TestNative(t *testing.T) {
	var seeds []uint64
	for seed := range uint64(14) {
		seeds = append(seeds, firstNativeSeed+seed)
	}
	var sum Stats
	for _, features := range []Feature{
		FeatureNative | FeatureRemote | FeatureChannels,
		FeatureNative | FeatureRemote | FeatureChannels | FeatureMoves | FeatureStrict,
	} {
		one := runAll(t, Config{Features: features}, seeds)
		sum.Add(&one)
	}
	if sum.Native < 60 {
		t.Errorf("%d native clients", sum.Native)
	}
	draws := func(from uint64) (n int) {
		for seed := from; seed < from+60; seed++ {
			if Draws(seed, Config{})&FeatureNative != 0 {
				n++
			}
		}
		return n
	}
	if old, now := draws(firstNativeSeed-60), draws(firstNativeSeed); old != 0 || now == 0 {
		t.Errorf("%d old seeds draw native clients, and %d new ones", old, now)
	}
}
