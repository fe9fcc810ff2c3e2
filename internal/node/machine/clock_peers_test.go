package machine

import (
	"slices"
	"testing"
)

// second and milli are times in ns.
const (
	second = int64(1e9)
	milli  = int64(1e6)
)

// A clock is judged by the clocks of all members that are known: it differs if it is certain that it differs from more
// than half of them.
func TestClockPeersJudge(t *testing.T) {
	for name, c := range map[string]struct {
		ahead []int64 // of nodes 2, 3, … in ms; each sample is wrong by at most a ms
		want  ClockVerdict
	}{
		"nobody is known":    {nil, ClockVerdict{}},
		"all agree":          {[]int64{3, -200}, ClockVerdict{}},
		"one other is wrong": {[]int64{5000, 0}, ClockVerdict{From: []uint32{2}}},
		"this one is ahead": {
			[]int64{5000, 5001}, ClockVerdict{Differs: true, AheadNs: 5001 * milli, From: []uint32{2, 3}},
		},
		"this one is behind": {
			[]int64{-1001, -1001}, ClockVerdict{Differs: true, AheadNs: -1001 * milli, From: []uint32{2, 3}},
		},
		"it is not certain": {[]int64{1000, 1000}, ClockVerdict{}},
		"two of two":        {[]int64{5000}, ClockVerdict{Undecided: true, AheadNs: 5 * second, From: []uint32{2}}},
		"two halves": {
			[]int64{5000, 5000, 0}, ClockVerdict{Undecided: true, AheadNs: 5 * second, From: []uint32{2, 3}},
		},
		"most of four": {
			[]int64{5000, 0, 5000, 5000}, ClockVerdict{Differs: true, AheadNs: 5 * second, From: []uint32{2, 4, 5}},
		},
		"no two agree": {
			[]int64{5000, -5000}, ClockVerdict{Differs: true, AheadNs: 5 * second, From: []uint32{2, 3}},
		},
		"one of four is wrong": {[]int64{0, 0, -9000}, ClockVerdict{From: []uint32{4}}},
	} {
		var p ClockPeers
		for i := len(c.ahead) - 1; i >= 0; i-- { // the order does not matter
			p.Saw(ClockSample{uint32(i + 2), c.ahead[i] * milli, milli}, 0)
		}
		got := p.Judge()
		if got.Differs != c.want.Differs || got.Undecided != c.want.Undecided || got.AheadNs != c.want.AheadNs ||
			!slices.Equal(got.From, c.want.From) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// Of the samples of a node, the most precise recent one counts, and a later one that excludes it.
func TestClockPeersSamples(t *testing.T) {
	type step struct {
		at         int64
		ahead, err int64 // in ms
		kept       int64 // AheadNs of the sample that counts afterwards, in ms
	}
	for name, steps := range map[string][]step{
		"a more precise one":             {{0, 40, 50, 40}, {second, 3, 1, 3}},
		"not a less precise one":         {{0, 3, 1, 3}, {second, 40, 50, 3}},
		"unless the kept one is old":     {{0, 3, 1, 3}, {clockRenewNs, 40, 50, 40}},
		"one that excludes the kept one": {{0, 3, 1, 3}, {second, 5000, 1000, 5000}},
	} {
		var p ClockPeers
		for i, s := range steps {
			p.Saw(ClockSample{2, s.ahead * milli, s.err * milli}, s.at)
			if all := p.Samples(); len(all) != 1 || all[0].AheadNs != s.kept*milli {
				t.Errorf("%s: %d: %+v is kept, want %d", name, i, all, s.kept)
			}
		}
	}
}

// A verdict does not change with each sample around the limit.
func TestClockPeersHysteresis(t *testing.T) {
	var p ClockPeers
	for i, s := range []struct {
		ahead   int64
		differs bool
	}{
		{999 * milli, false},
		{1002 * milli, true},
		{999 * milli, true},
		{751 * milli, true},
		{748 * milli, false},
		{999 * milli, false},
		{-1002 * milli, true},
		{-800 * milli, true},
		{0, false},
	} {
		now := int64(i) * 60 * second
		for node := range uint32(2) {
			p.Saw(ClockSample{2 + node, s.ahead, milli}, now)
		}
		if v := p.Judge(); v.Differs != s.differs {
			t.Errorf("sample %d, %d ms: %+v", i, s.ahead/milli, v)
		}
	}
}

// Nodes that left and samples that are old are forgotten.
func TestClockPeersKeep(t *testing.T) {
	var p ClockPeers
	for node := range uint32(3) {
		p.Saw(ClockSample{2 + node, 5 * second, milli}, int64(node)*second)
	}
	everybody := func(uint32) bool { return true }
	if p.Keep(ClockForgetNs-1, everybody); len(p.Samples()) != 3 {
		t.Errorf("%+v are left of three that are not old", p.Samples())
	}
	if p.Keep(ClockForgetNs, everybody); len(p.Samples()) != 2 || p.Samples()[0].Node != 3 {
		t.Errorf("%+v are left, the first is too old", p.Samples())
	}
	if p.Keep(ClockForgetNs, func(node uint32) bool { return node == 4 }); len(p.Samples()) != 1 {
		t.Errorf("%+v are left, all but node 4 have left", p.Samples())
	}
	if v := p.Judge(); v.Differs || !v.Undecided {
		t.Errorf("one other node is known, and its clock differs: %+v", v)
	}
	if p.Keep(10*ClockForgetNs, everybody); len(p.Samples()) != 0 || p.Judge().Differs {
		t.Errorf("%+v are left, all are old", p.Samples())
	}
}

func TestSampleClock(t *testing.T) {
	for _, c := range []struct{ before, remote, after, ahead, err int64 }{
		{100, 100, 100, 0, 0},
		{100, 5105, 110, -5000, 5},
		{5000, 2, 5003, 5000, 2},
	} {
		if s := SampleClock(7, c.before, c.remote, c.after); s != (ClockSample{7, c.ahead, c.err}) {
			t.Errorf("%+v: %+v", c, s)
		}
	}
}
