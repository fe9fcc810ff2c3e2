package fold

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock/segment"
)

// What every channel has confirmed is passed; what waits for one of them is not, whatever lies behind it.
func TestPassed(t *testing.T) {
	type confirmed = map[string][]IDRange
	for name, tc := range map[string]struct {
		by   confirmed
		want string
	}{
		"no channel":               {confirmed{}, "[]"},
		"nothing":                  {confirmed{"a": nil}, "[]"},
		"all":                      {confirmed{"a": {{0, 100}}}, "[{10 100}]"},
		"behind one that waits":    {confirmed{"a": {{0, 20}, {21, 100}}}, "[{10 20} {21 100}]"},
		"by one of two":            {confirmed{"a": {{0, 100}}, "b": nil}, "[]"},
		"by both, apart":           {confirmed{"a": {{0, 30}, {40, 60}}, "b": {{20, 50}}}, "[{20 30} {40 50}]"},
		"by both, one further":     {confirmed{"a": {{0, 30}}, "b": {{0, 40}, {50, 60}}}, "[{10 30}]"},
		"by both, nothing in both": {confirmed{"a": {{20, 30}, {40, 50}}, "b": {{30, 40}, {50, 60}}}, "[]"},
	} {
		c := &Cursors{}
		for _, ch := range []string{"a", "b"} {
			if rs, ok := tc.by[ch]; ok {
				must(t, c.Apply(&Control{Kind: ChannelCreated, Channel: ch}, 100))
				must(t, c.Apply(&Control{Kind: Confirmed, Channel: ch, Ranges: rs}, 100))
			}
		}
		got := []IDRange{}
		c.Passed(10, 100, func(r IDRange) { got = append(got, r) })
		if fmt.Sprint(got) != tc.want {
			t.Errorf("%s: passed are %v, want %s", name, got, tc.want)
		}
	}
}

func TestPassedIsWhatAllConfirmed(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := &Cursors{}
		for _, ch := range []string{"a", "b", "c"}[:1+rng.IntN(3)] {
			must(t, c.Apply(&Control{Kind: ChannelCreated, Channel: ch}, 60))
			for range rng.IntN(12) {
				from := segment.MsgID(rng.IntN(60))
				r := IDRange{from, min(60, from+1+segment.MsgID(rng.IntN(9)))}
				must(t, c.Apply(&Control{Kind: Confirmed, Channel: ch, Ranges: []IDRange{r}}, 60))
			}
		}
		passed := map[segment.MsgID]bool{}
		c.Passed(3, 55, func(r IDRange) {
			for id := r.From; id < r.To; id++ {
				passed[id] = true
			}
		})
		for id := segment.MsgID(0); id < 60; id++ {
			all := id >= 3 && id < 55
			c.Each(func(ch *Cursor) { all = all && ch.IsConfirmed(id) })
			if all != passed[id] {
				t.Fatalf("seed %d: message %d is passed: %v, want %v", seed, id, passed[id], all)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
