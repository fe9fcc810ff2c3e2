package fold

import (
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/segment"
)

func TestIDSetAddRange(t *testing.T) {
	for _, tc := range []struct {
		name  string
		set   []segment.MsgID
		add   IDRange
		want  []segment.MsgID
		added uint64
	}{
		{"into nothing", nil, IDRange{3, 5}, []segment.MsgID{3, 5}, 2},
		{"empty range", []segment.MsgID{3, 5}, IDRange{9, 9}, []segment.MsgID{3, 5}, 0},
		{"behind", []segment.MsgID{3, 5}, IDRange{7, 8}, []segment.MsgID{3, 5, 7, 8}, 1},
		{"extends the last", []segment.MsgID{3, 5}, IDRange{5, 8}, []segment.MsgID{3, 8}, 3},
		{"overlaps the last", []segment.MsgID{3, 5}, IDRange{4, 8}, []segment.MsgID{3, 8}, 3},
		{"inside the last", []segment.MsgID{3, 9}, IDRange{4, 8}, []segment.MsgID{3, 9}, 0},
		{"before", []segment.MsgID{3, 5}, IDRange{0, 2}, []segment.MsgID{0, 2, 3, 5}, 2},
		{"touches from below", []segment.MsgID{3, 5}, IDRange{0, 3}, []segment.MsgID{0, 5}, 3},
		{"between", []segment.MsgID{0, 1, 9, 10}, IDRange{4, 5}, []segment.MsgID{0, 1, 4, 5, 9, 10}, 1},
		{"fills a gap", []segment.MsgID{0, 4, 6, 10}, IDRange{4, 6}, []segment.MsgID{0, 10}, 2},
		{"swallows many", []segment.MsgID{1, 2, 4, 5, 7, 8, 20, 21}, IDRange{0, 10}, []segment.MsgID{0, 10, 20, 21}, 7},
		{"swallows all", []segment.MsgID{1, 2, 4, 5}, IDRange{0, 10}, []segment.MsgID{0, 10}, 8},
	} {
		s := setOf(tc.set...)
		if added := s.AddRange(tc.add); added != tc.added || !slices.Equal(s.Ranges(), ranges(tc.want...)) {
			t.Errorf("%s: %v, %d added; want %v, %d", tc.name, s.Ranges(), added, tc.want, tc.added)
		}
	}
}

// Compares every operation with a plain set of ids.
func TestIDSetModel(t *testing.T) {
	const limit = 200
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var s IDSet
		model := map[segment.MsgID]bool{}
		for range 300 {
			from := segment.MsgID(rng.IntN(limit))
			to := min(limit, from+segment.MsgID(rng.IntN(6)))
			switch op := rng.IntN(20); {
			case op == 0:
				s.CutBelow(from)
				for id := range from {
					delete(model, id)
				}
			case op < 10:
				if s.Add(from) == model[from] {
					t.Fatalf("seed %d: Add(%d) is wrong about being new", seed, from)
				}
				model[from] = true
			default:
				added := uint64(0)
				for id := from; id < to; id++ {
					if !model[id] {
						added++
					}
					model[id] = true
				}
				if got := s.AddRange(IDRange{from, to}); got != added {
					t.Fatalf("seed %d: AddRange [%d,%d) added %d, want %d", seed, from, to, got, added)
				}
			}
			checkAgainst(t, &s, model, limit, from, to)
		}
	}
}

func checkAgainst(t *testing.T, s *IDSet, model map[segment.MsgID]bool, limit, from, to segment.MsgID) {
	t.Helper()
	checkRanges(t, s)
	count, covers := uint64(0), true
	for id := range limit {
		if s.Contains(id) != model[id] {
			t.Fatalf("Contains(%d) = %v in %v", id, !model[id], s.Ranges())
		}
		if from <= id && id < to {
			covers = covers && model[id]
			if model[id] {
				count++
			}
		}
	}
	if s.Count(from, to) != count || s.covers(IDRange{from, to}) != covers {
		t.Fatalf("[%d,%d): Count %d, covers %v in %v", from, to, s.Count(from, to), !covers, s.Ranges())
	}
	gap := from
	for model[gap] {
		gap++
	}
	if got := s.NextGap(from); got != gap {
		t.Fatalf("NextGap(%d) = %d, want %d in %v", from, got, gap, s.Ranges())
	}
	dup := s.Clone()
	if !slices.Equal(dup.Ranges(), s.Ranges()) {
		t.Fatalf("clone %v of %v", dup.Ranges(), s.Ranges())
	}
	if dup.AddRange(IDRange{0, limit}); s.Len() > 0 && len(model) < int(limit) && s.covers(IDRange{0, limit}) {
		t.Fatal("a clone shares memory")
	}
}

// A window that moves forward is the hot path: its memory use must settle.
func TestIDSetAllocs(t *testing.T) {
	var s IDSet
	id := segment.MsgID(0)
	step := func() { // 4 ids are confirmed out of order, then merged and cut
		for _, d := range []segment.MsgID{6, 2, 4, 0} {
			s.Add(id + d)
		}
		s.AddRange(IDRange{id, id + 8})
		s.CutBelow(id + 4)
		id += 8
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations per window", n)
	}
}

func TestConfirmRange(t *testing.T) {
	below, above := segment.MsgID(5), setOf(7, 8, 10, 12)
	for _, tc := range []struct {
		add   IDRange
		below segment.MsgID
		above []segment.MsgID
	}{
		{IDRange{0, 3}, 5, []segment.MsgID{7, 8, 10, 12}},
		{IDRange{8, 9}, 5, []segment.MsgID{7, 9, 10, 12}},
		{IDRange{5, 6}, 6, []segment.MsgID{7, 9, 10, 12}},
		{IDRange{4, 7}, 9, []segment.MsgID{10, 12}},
		{IDRange{9, 10}, 12, nil},
		{IDRange{12, 12}, 12, nil},
	} {
		ConfirmRange(&below, &above, tc.add)
		if below != tc.below || !slices.Equal(above.Ranges(), ranges(tc.above...)) {
			t.Fatalf("after %v: below %d, above %v; want %d, %v", tc.add, below, above.Ranges(), tc.below, tc.above)
		}
	}
}
