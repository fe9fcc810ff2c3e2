package settings

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"penstock/tests/support/puretest"
)

func TestPure(t *testing.T) {
	puretest.Check(t, &puretest.Rules{
		Imports: []string{
			"cmp", "encoding/binary", "errors", "fmt", "math", "slices", "strconv", "strings", "time",
		},
		Foreign: map[string][]string{
			"time": {"Duration", "ParseDuration", "Hour", "Millisecond"},
		},
		Maps: true, MinFiles: 4,
	})
}

type level uint8

type sample struct {
	Level level
	Name  string
	Rate  uint32
	Bytes int64
	AgeMs int64
	Mode  string
	On    bool
}

var levelNames = []string{"low", "middle", "high"}

var rows = Table[sample]{
	{Tag: 2, Name: "level", Level: 1, Must: true, Of: func(s *sample) Field { return Named(&s.Level, levelNames) }},
	{Tag: 1, Name: "name", Level: 1, Must: true, Of: func(s *sample) Field { return Text(&s.Name, 8) }},
	{Tag: 100, Name: "rate", Level: 3, Of: func(s *sample) Field { return Number(&s.Rate, 0, math.MaxUint32, Count) }},
	{Tag: 4, Name: "bytes", Level: 1, Of: func(s *sample) Field { return Number(&s.Bytes, None, 1<<40, Bytes) }},
	{Tag: 5, Name: "age_ms", Level: 2, Of: func(s *sample) Field { return Number(&s.AgeMs, 0, 1<<50, Millis) }},
	{Tag: 6, Name: "mode", Level: 1, Of: func(s *sample) Field { return Choice(&s.Mode, "reject", "drop") }},
	{Tag: 7, Name: "on", Level: 1, Of: func(s *sample) Field { return Flag(&s.On) }},
}

func TestFieldsAsFlags(t *testing.T) {
	for _, tc := range []struct{ name, text, shown, wrong string }{
		{"level", "high", "high", ""},
		{"level", "", "low", ""},
		{"level", "top", "", "low, middle, high"},
		{"name", "a b", "a b", ""},
		{"rate", "7", "7", ""},
		{"rate", "-1", "", "not a whole number of 0 or more"},
		{"rate", "4294967296", "", "0 to 4294967295"},
		{"bytes", "1.5MiB", "1536KiB", ""},
		{"bytes", "10GB", "10GB", ""},
		{"bytes", "none", "none", ""},
		{"bytes", "2TiB", "", "1TiB"},
		{"bytes", "many", "", "not a size"},
		{"age_ms", "3d", "72h", ""},
		{"age_ms", "1d12h", "36h", ""},
		{"age_ms", "2w", "336h", ""},
		{"age_ms", "none", "", "not a time"},
		{"age_ms", "1us", "", "whole milliseconds"},
		{"mode", "drop", "drop", ""},
		{"mode", "", "", ""},
		{"mode", "keep", "", "reject, drop"},
		{"on", "true", "true", ""},
		{"on", "yes", "", "neither"},
	} {
		s := sample{Rate: 3, Level: 1}
		f := fieldOf(t, tc.name, &s)
		before := s
		switch err := f.Set(tc.text); {
		case tc.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tc.wrong) || s != before {
				t.Errorf("%s = %q: %v, want an error with %q and no change", tc.name, tc.text, err, tc.wrong)
			}
		case err != nil || f.String() != tc.shown:
			t.Errorf("%s = %q: %v, shown as %q, want %q", tc.name, tc.text, err, f, tc.shown)
		}
	}
}

func fieldOf(t *testing.T, name string, s *sample) Field {
	t.Helper()
	for _, r := range rows {
		if r.Name == name {
			return r.Of(s)
		}
	}
	t.Fatalf("no row %s", name)
	return nil
}

// What Try draws is valid, is read again as it is shown, and survives the encoding.
func TestTriedValuesSurvive(t *testing.T) {
	for n := range 200 {
		var s sample
		for _, r := range rows {
			f := r.Of(&s)
			text := f.Try(n * 7)
			if err := f.Set(text); err != nil || f.Invalid() != "" {
				t.Fatalf("%s: Try gives %q: %v, %s", r.Name, text, err, f.Invalid())
			}
			if s.Bytes == None {
				s.Bytes = 1
			}
			again := s
			if err := r.Of(&again).Set(f.String()); err != nil || again != s {
				t.Fatalf("%s: %q is shown as %q, which is %+v: %v", r.Name, text, f, again, err)
			}
		}
		if s.Mode == "reject" {
			s.Mode = "" // the default is stored as nothing
		}
		p := rows.Append(nil, &s, nil)
		var got sample
		if unknown, err := rows.Decode(p, &got); err != nil || len(unknown) > 0 || got != s {
			t.Fatalf("%+v becomes %+v: %v", s, got, err)
		}
	}
}

func TestBounds(t *testing.T) {
	for want, s := range map[string]sample{
		"":                                 {},
		"level is 3, which does not exist": {Level: 3},
		"name has 9 bytes, at most 8":      {Name: "123456789"},
		"bytes is -2; it must be -1 or":    {Bytes: -2},
		"bytes is 1099511627777; at most":  {Bytes: 1<<40 + 1},
		"mode is \"keep\"; it must be":     {Mode: "keep"},
	} {
		if got := rows.Invalid(&s); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}

func TestLevel(t *testing.T) {
	for _, tc := range []struct {
		s    sample
		want int
		name string
	}{
		{sample{}, 1, ""},
		{sample{Name: "a"}, 1, ""},
		{sample{AgeMs: 1}, 2, "age_ms"},
		{sample{AgeMs: 1, Rate: 1}, 3, "rate"},
	} {
		if level, name := rows.Level(&tc.s); level != tc.want || name != tc.name {
			t.Errorf("%+v: level %d because of %q", tc.s, level, name)
		}
	}
}

// A version that lacks rows keeps what it may ignore, in its place, and refuses what it must know.
func TestUnknownSettings(t *testing.T) {
	old := Table[sample]{rows[0], rows[3]} // level and bytes
	s := sample{Level: 2, Rate: 9, Bytes: 5, AgeMs: 1, On: true}
	p := rows.Append(nil, &s, nil)
	var got sample
	unknown, err := old.Decode(p, &got)
	if err != nil || got != (sample{Level: 2, Bytes: 5}) || len(unknown) == 0 {
		t.Fatalf("%+v, %x, %v", got, unknown, err)
	}
	if again := old.Append(nil, &got, unknown); !bytes.Equal(again, p) {
		t.Errorf("written again: %x, was %x", again, p)
	}
	s.Name = "n"
	if _, err := old.Decode(rows.Append(nil, &s, nil), &got); !errors.Is(err, ErrUnknown) {
		t.Errorf("a setting that must be known: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(rows.Append(nil, &sample{Level: 1, Name: "n", Rate: 2, Bytes: 3, AgeMs: 4, Mode: "drop", On: true}, nil))
	f.Add([]byte{200, 1, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		var s sample
		unknown, err := rows.Decode(p, &s)
		if err != nil {
			return
		}
		if why := rows.Invalid(&s); why != "" {
			t.Fatalf("decoded what is not valid: %s", why)
		}
		var again sample
		q := rows.Append(nil, &s, unknown)
		if kept, err := rows.Decode(q, &again); err != nil || again != s || !bytes.Equal(kept, unknown) {
			t.Fatalf("%x is written as %x, which is %+v: %v", p, q, again, err)
		}
	})
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "90s": 90 * time.Second, "1d": day, "1w1d1h": 8*day + time.Hour, "36500d": 36500 * day,
		"1.5d": 36 * time.Hour, "1d12h": 36 * time.Hour, "-2d": -2 * day, "-1d12h": -36 * time.Hour, "-1h": -time.Hour,
		"0.5w": 84 * time.Hour, "106751d": 106751 * day,
	} {
		if d, err := ParseDuration(text); err != nil || d != want {
			t.Errorf("%s: %v, %v", text, d, err)
		}
	}
	for _, text := range []string{
		"", "10", "d", "1x", "1d-1h", "1d+1h", "0d-1h", "--1h", "--1d", "-+1h", "200000w", "1dd", "1h2d", "106752d",
		"106751d24h", "1e400d", "1e3d", "infd", ".d",
	} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("%q is taken for %v", text, d)
		}
	}
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "64 KiB": 64 << 10, "1MiB": 1 << 20, "1.5GiB": 3 << 29, "2TiB": 2 << 40,
		"10MB": 10e6, "1kB": 1000, "7B": 7,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "B", "-1", "1.5", "1.5B", "1 MiB extra", "1e30GiB", "9223372036854775807KiB", "NaNMiB", "infMiB", "0.3KiB",
	} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", time.Hour: "1h", 90 * time.Second: "1m30s", 15 * time.Minute: "15m", 10 * time.Second: "10s",
		5 * time.Millisecond: "5ms", time.Hour + 30*time.Second: "1h0m30s",
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%v is written as %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{
		0: "0", 1: "1", 999: "999", 1000: "1KB", 1024: "1KiB", 64 << 20: "64MiB", 10e9: "10GB", 1 << 40: "1TiB", 4097: "4097",
		1 << 62: "4194304TiB", 1536: "1536", 1500: "1500",
	} {
		got := FormatBytes(n)
		if back, err := ParseBytes(got); got != want || back != n || err != nil {
			t.Errorf("%d bytes: %s, want %s; read again %d, %v", n, got, want, back, err)
		}
	}
}
