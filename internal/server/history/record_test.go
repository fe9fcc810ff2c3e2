package history

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"
)

func text(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// What a process wrote is the past of the next one. The points of the time in between are missing, and that of the
// first look, of which nobody knows the rates; torn lines, and those of another clock, are passed over.
func TestHistorySurvivesARestart(t *testing.T) {
	l := New(Interval)
	var file [][]byte
	for i := range Length + 20 {
		l.Add(look(i, uint64(1000+100*i), uint64(500+10*i), int64(i)))
		file = append(file, l.Newest())
	}
	now := begin.Add((Length + 19) * Interval)
	next := New(Interval)
	file = append(file, []byte(`{"tick":1`), []byte(`{"tick":99999999999,"node":[1]}`))
	for _, line := range file {
		next.Replay(line, now, 0)
	}
	for _, of := range [][2]string{{"", ""}, {"t", ""}, {"t", "c"}} {
		was, is := l.Series(of[0], of[1]), next.Series(of[0], of[1])
		if a, b := text(t, was), text(t, is); a != b {
			t.Fatalf("%q: it was\n%s, and is\n%s", of, a, b)
		}
	}
	for i := range 2 { // 30 s later another process looks; its counters begin anew
		next.Add(look(Length+22+i, uint64(50+100*i), 0, 7))
	}
	s := next.Series("t", "")
	if p := s.Fields["published"]; !math.IsNaN(float64(p[Length-4])) || !math.IsNaN(float64(p[Length-2])) ||
		last(p) != 10 || p[Length-5] != 10 {
		t.Errorf("%v", p[Length-6:])
	}
	at := func(i int) int64 { return begin.Add(time.Duration(i) * Interval).Unix() }
	want := [][2]int64{{at(24), at(Length + 19)}, {at(Length + 23), at(Length + 23)}}
	if !reflect.DeepEqual(s.Known, want) {
		t.Errorf("known %v, want %v", s.Known, want)
	}
}

// What another node has kept is what the node itself has; it is fetched in parts, and goes when it is old.
func TestKept(t *testing.T) {
	l := New(Interval)
	k := NewKept(Interval)
	for i := range 7 {
		l.Add(look(i, uint64(1000+100*i), uint64(500+10*i), int64(i)))
		if i%3 == 0 {
			records, more := l.Records(k.Last("n1"))
			if k.Keep("n1", records, begin); more {
				t.Error("more")
			}
		}
	}
	s, ok := k.Series("n1", "t", "c")
	if want := text(t, l.Series("t", "c")); !ok || text(t, &s) != want {
		t.Errorf("%s, want %s", text(t, &s), want)
	}
	if records, _ := l.Records(k.Last("n1")); len(records) != 0 {
		t.Errorf("nothing is new, but %s", records)
	}
	k.Keep("n2", nil, begin.Add((Length+6)*Interval))
	if _, ok := k.Series("n1", "", ""); ok {
		t.Error("what is old stays for ever")
	}
}

// part is the history of a node that has a depth of d at each of the intervals from one to another, and looks at
// others.
func part(d float32, ranges ...[2]int) Part {
	p := Part{Series: Series{From: 0, Step: 10, Fields: map[string]Points{}, Known: [][2]int64{}}}
	depth := make(Points, Length)
	for i := range depth {
		depth[i] = float32(math.NaN())
	}
	for _, r := range ranges {
		p.Known = append(p.Known, [2]int64{int64(10 * r[0]), int64(10 * r[1])})
		for i := r[0]; i <= r[1]; i++ {
			depth[i] = d
		}
	}
	p.Fields["depth"], p.Fields["oldest_seconds"] = depth, depth
	return p
}

// The past does not change when a node dies or comes back. Where a part of a sum is not known, there is a gap.
func TestTotal(t *testing.T) {
	whole, dead := part(1, [2]int{0, 89}), part(5, [2]int{0, 89})
	dead.Dead, dead.From, dead.Known = true, -400, [][2]int64{{-400, 490}}
	restarted, away := part(5, [2]int{0, 49}, [2]int{51, 89}), part(5, [2]int{0, 9}, [2]int{80, 89})
	old := part(2, [2]int{0, 89})
	old.Known = nil
	type run struct {
		from, until int // [from, until)
		depth       float32
	}
	nan := float32(math.NaN())
	for name, x := range map[string]struct {
		parts []Part
		want  []run
	}{
		"all live":              {[]Part{whole, whole}, []run{{0, 90, 2}}},
		"one is dead":           {[]Part{whole, dead}, []run{{0, 50, 6}, {50, 52, nan}, {52, 90, 1}}},
		"one is restarted":      {[]Part{whole, restarted}, []run{{0, 50, 6}, {50, 51, nan}, {51, 90, 6}}},
		"one is away for long":  {[]Part{whole, away}, []run{{0, 10, 6}, {10, 12, nan}, {12, 80, 1}, {80, 90, 6}}},
		"one is new":            {[]Part{whole, part(5, [2]int{40, 89})}, []run{{0, 40, 1}, {40, 90, 6}}},
		"one is known nowhere":  {[]Part{whole, {Unknown: 490}}, []run{{0, 52, nan}, {52, 90, 1}}},
		"an older version":      {[]Part{whole, old}, []run{{0, 90, 3}}},
		"one that is long dead": {[]Part{whole, {Unknown: -1000}}, []run{{0, 90, 1}}},
	} {
		total := Total(x.parts)
		for _, r := range x.want {
			for i := r.from; i < r.until; i++ {
				got := total.Fields["depth"][i]
				if got != r.depth && !(math.IsNaN(float64(got)) && math.IsNaN(float64(r.depth))) {
					t.Errorf("%s: point %d is %v, want %v", name, i, got, r.depth)
				}
			}
		}
	}
	if p := Total([]Part{whole, dead}).Fields["oldest_seconds"]; p[0] != 5 {
		t.Errorf("ages are added up: %v", p[0])
	}
	late := part(1, [2]int{0, 89})
	late.From = 20
	if total := Total([]Part{whole, late}); total.From != 0 {
		t.Errorf("the total ends with a point that a node does not have: it begins at %d", total.From)
	}
	if total := Total(nil); len(total.Fields) != 0 {
		t.Errorf("%v", total)
	}
}
