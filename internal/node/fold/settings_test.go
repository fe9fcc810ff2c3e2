package fold

import (
	"bytes"
	"encoding/json"
	"errors"
	"path"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/segment"
	"penstock/tests/support/underrace"
)

func TestSettingsValidate(t *testing.T) {
	rules := func(n int, r Rule) Filter {
		f := Filter{}
		for range n {
			f.Rules = append(f.Rules, r)
		}
		return f
	}
	exact := Rule{Header: "h", Pattern: "v"}
	for _, tc := range []struct {
		name string
		s    ChannelSettings
		want string // part of the error; "": the settings are valid
	}{
		{"nothing", ChannelSettings{}, ""},
		{"everything", sampleSettings(), ""},
		{"the limits", ChannelSettings{
			Order: OrderKey, KeyHeader: strings.Repeat("k", MaxHeaderName), MaxAttempts: MaxAttempts,
			DeadLetter: strings.Repeat("t", MaxTopicNameBytes),
			SampleRate: MaxSampleRate,
			Filter: rules(MaxFilterRules, Rule{
				Header: strings.Repeat("h", MaxHeaderName), Pattern: strings.Repeat("p", MaxPatternBytes),
			}),
		}, ""},
		{"order", ChannelSettings{Order: 4}, "order is 4"},
		{"key header", ChannelSettings{KeyHeader: strings.Repeat("k", MaxHeaderName+1)}, "257 bytes"},
		{"attempts", ChannelSettings{MaxAttempts: MaxAttempts + 1}, "at most 32767"},
		{"dead-letter topic too long", ChannelSettings{DeadLetter: strings.Repeat("t", MaxTopicNameBytes+1)}, "65 bytes"},
		{"dead-letter topic", ChannelSettings{DeadLetter: "a/b"}, `"a/b"`},
		{"ephemeral dead-letter topic", ChannelSettings{DeadLetter: "a#ephemeral"}, `"a#ephemeral"`},
		{"sample", ChannelSettings{SampleRate: 100}, "sample_rate is 100"},
		{"rules", ChannelSettings{Filter: rules(MaxFilterRules+1, exact)}, "17 rules"},
		{"no header", ChannelSettings{Filter: rules(1, Rule{Pattern: "v"})}, "filter.rules rule 1: a header's name"},
		{"match", ChannelSettings{Filter: rules(1, Rule{Header: "h", Match: 5})}, "match 5"},
		{
			"pattern",
			ChannelSettings{Filter: rules(1, Rule{Header: "h", Pattern: strings.Repeat("p", MaxPatternBytes+1)})},
			"257 bytes",
		},
		{"regexp", ChannelSettings{Filter: rules(1, Rule{Header: "h", Match: MatchRegexp, Pattern: "("})}, `regexp "("`},
		{"glob", ChannelSettings{Filter: rules(1, Rule{Header: "h", Match: MatchGlob, Pattern: "[a"})}, `glob "[a"`},
		{"exists", ChannelSettings{Filter: rules(1, Rule{Header: "h", Match: MatchExists, Pattern: "v"})}, "no pattern"},
		{"inverted nothing", ChannelSettings{Filter: Filter{Invert: true}}, "no message at all"},
	} {
		err := tc.s.Validate()
		if tc.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			tc.s.Version = 1
			if n := len(tc.s.Append(nil)); n > MaxSettingsBytes {
				t.Errorf("%s: %d bytes, at most %d", tc.name, n, MaxSettingsBytes)
			}
			continue
		}
		if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q in it", tc.name, err, tc.want)
		}
	}
}

func TestSettingsJSON(t *testing.T) {
	want := sampleSettings()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	const golden = `{"version":300,"order":"key","key_header":"account","max_attempts":5,"dead_letter":"orders.failed",` +
		`"rate_per_second":70000,"max_in_flight":2147483648,"sample_rate":99,"filter":{"all":true,"invert":true,"rules":[` +
		`{"header":"type","match":"exact","pattern":"refund"},` +
		`{"header":"region","match":"glob","pattern":"eu-*"},{"header":"trace","match":"exists","pattern":""}]}}`
	if string(text) != golden {
		t.Errorf("written as\n %s, want\n %s", text, golden)
	}
	var got ChannelSettings
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read as %+v, %v", got, err)
	}
	for _, bad := range []string{
		`{"order":"fifo"}`, `{"filter":{"rules":[{"match":"like"}]}}`, `{"max_attempts":70000}`, `{"sample_rate":-1}`,
	} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
	if _, err := json.Marshal(ChannelSettings{Order: 7}); err == nil {
		t.Error("an order that does not exist was written")
	}
}

func TestDeadLetterTopic(t *testing.T) {
	for _, tc := range []struct {
		s    ChannelSettings
		want string
	}{
		{ChannelSettings{}, ""},
		{ChannelSettings{MaxAttempts: 1}, "t.DLQ"},
		{ChannelSettings{MaxAttempts: 1, DeadLetter: "d"}, "d"},
		{ChannelSettings{DeadLetter: "d"}, ""},
	} {
		if got := tc.s.DeadLetterTopic("t"); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.s, got, tc.want)
		}
	}
}

func kvs(pairs ...string) (out []segment.KV) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, segment.KV{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
	}
	return out
}

// B60: exact, prefix, glob, regexp, several rules, inverse. B55: a filter that drops only flagged messages is the
// inverse of a rule.
func TestFilterMatch(t *testing.T) {
	rule := func(m Match, pattern string) Rule { return Rule{Header: "h", Match: m, Pattern: pattern} }
	other := Rule{Header: "o", Match: MatchExists}
	for _, tc := range []struct {
		name    string
		f       Filter
		wanted  [][]segment.KV
		refused [][]segment.KV
	}{
		{"everything", Filter{}, [][]segment.KV{nil, kvs("h", "v")}, nil},
		{"all of nothing", Filter{All: true}, [][]segment.KV{nil}, nil},
		{
			"exact",
			Filter{Rules: []Rule{rule(MatchExact, "v")}},
			[][]segment.KV{kvs("h", "v"), kvs("h", "x", "h", "v")},
			[][]segment.KV{nil, kvs("h", "V"), kvs("H", "v"), kvs("h", "vv")},
		},
		{
			"exact and empty",
			Filter{Rules: []Rule{rule(MatchExact, "")}},
			[][]segment.KV{kvs("h", "")},
			[][]segment.KV{nil, kvs("h", "v")},
		},
		{
			"prefix",
			Filter{Rules: []Rule{rule(MatchPrefix, "eu-")}},
			[][]segment.KV{kvs("h", "eu-1"), kvs("h", "eu-")},
			[][]segment.KV{nil, kvs("h", "eu")},
		},
		{
			"glob",
			Filter{Rules: []Rule{rule(MatchGlob, "a/*[^x-z]?")}},
			[][]segment.KV{kvs("h", "a/bc"), kvs("h", "a/xbc")},
			[][]segment.KV{nil, kvs("h", "a/b/cd"), kvs("h", "a/xc"), kvs("h", "a/bcd/")},
		},
		{
			"regexp",
			Filter{Rules: []Rule{rule(MatchRegexp, "^[0-9]+$")}},
			[][]segment.KV{kvs("h", "12")},
			[][]segment.KV{nil, kvs("h", "12a")},
		},
		{
			"exists",
			Filter{Rules: []Rule{rule(MatchExists, "")}},
			[][]segment.KV{kvs("h", "")},
			[][]segment.KV{nil, kvs("o", "")},
		},
		{
			"any",
			Filter{Rules: []Rule{rule(MatchExact, "v"), other}},
			[][]segment.KV{kvs("h", "v"), kvs("o", "")},
			[][]segment.KV{nil, kvs("h", "x")},
		},
		{
			"all",
			Filter{All: true, Rules: []Rule{rule(MatchExact, "v"), other}},
			[][]segment.KV{kvs("o", "", "h", "v")},
			[][]segment.KV{nil, kvs("h", "v"), kvs("o", "")},
		},
		{
			"none of any",
			Filter{Invert: true, Rules: []Rule{rule(MatchExact, "v"), other}},
			[][]segment.KV{nil, kvs("h", "x")},
			[][]segment.KV{kvs("h", "v"), kvs("o", "")},
		},
		{
			"not all",
			Filter{All: true, Invert: true, Rules: []Rule{rule(MatchExact, "v"), other}},
			[][]segment.KV{nil, kvs("h", "v"), kvs("o", "")},
			[][]segment.KV{kvs("o", "", "h", "v")},
		},
		{
			"only flagged are dropped",
			Filter{Invert: true, Rules: []Rule{{Header: "zan-test", Pattern: "true"}}},
			[][]segment.KV{nil, kvs("zan-test", "false")},
			[][]segment.KV{kvs("zan-test", "true")},
		},
	} {
		m, err := tc.f.Matcher()
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		for _, headers := range tc.wanted {
			if !m.Match(headers) {
				t.Errorf("%s: %s is not wanted", tc.name, headers)
			}
		}
		for _, headers := range tc.refused {
			if m.Match(headers) {
				t.Errorf("%s: %s is wanted", tc.name, headers)
			}
		}
		for _, headers := range append(tc.wanted, kvs("h", strings.Repeat("long", 100))) {
			if n := testing.AllocsPerRun(100, func() { m.Match(headers) }); n != 0 && !underrace.Enabled {
				// With the race detector, the pool of package regexp drops items.
				t.Errorf("%s: %v allocations", tc.name, n)
			}
		}
	}
}

// A glob matches the same values as path.Match.
func FuzzGlob(f *testing.F) {
	for _, pattern := range []string{"", "*", "a?c", "[a-c]*", "[^a]", `\*`, `[\]-]`, "[--a]", "a[b-", "*/*", "[世-界]"} {
		for _, value := range []string{"", "a", "abc", "a/b", "*", "-", "世", "\n", "\xff"} {
			f.Add(pattern, value)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, value string) {
		if !utf8.ValidString(pattern) || len(pattern) > MaxPatternBytes {
			return
		}
		filter := Filter{Rules: []Rule{{Header: "h", Match: MatchGlob, Pattern: pattern}}}
		m, err := filter.Matcher()
		want, wantErr := path.Match(pattern, value)
		if wantErr != nil && err == nil {
			// path.Match finds some bad patterns only when it compares that part of the value.
			return
		}
		if err != nil {
			if wantErr == nil {
				if _, emptyErr := path.Match(pattern, ""); emptyErr == nil {
					t.Fatalf("pattern %q is refused: %v", pattern, err)
				}
			}
			return
		}
		if got := m.Match(kvs("h", value)); got != want {
			t.Fatalf("pattern %q, value %q: %v, path.Match says %v", pattern, value, got, want)
		}
	})
}

func FuzzSettings(f *testing.F) {
	full, small := sampleSettings(), ChannelSettings{Version: 1}
	f.Add(full.Append(nil))
	f.Add(small.Append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		d := decoder{p: p}
		s := d.settings()
		if d.bad != "" {
			return
		}
		if again := s.Append(nil); !bytes.Equal(again, p[:len(p)-len(d.p)]) {
			t.Fatalf("%x decodes and encodes to %x", p, again)
		}
	})
}

func TestHashKey(t *testing.T) {
	key := []byte("the key of a customer, which is long")
	if n := testing.AllocsPerRun(100, func() { HashKey(key) }); n != 0 || HashKey(key[:0]) != 0xcbf29ce484222325 ||
		HashKey([]byte("a")) != 0xaf63dc4c8601ec8c {
		t.Errorf("%v allocations, or it is not FNV-1a", n)
	}
	if HashKey([]byte("a")) == HashKey([]byte("b")) || HashKey(nil) == 0 {
		t.Error("keys are told apart badly")
	}
}

func TestParseRule(t *testing.T) {
	for text, want := range map[string]Rule{
		"a=b":    {Header: "a", Match: MatchExact, Pattern: "b"},
		"a=":     {Header: "a", Match: MatchExact},
		"a^=b=c": {Header: "a", Match: MatchPrefix, Pattern: "b=c"},
		"a*=b*":  {Header: "a", Match: MatchGlob, Pattern: "b*"},
		"a~=^b$": {Header: "a", Match: MatchRegexp, Pattern: "^b$"},
		"a=b~=c": {Header: "a", Match: MatchExact, Pattern: "b~=c"},
		"a":      {Header: "a", Match: MatchExists},
	} {
		if got := ParseRule(text); got != want {
			t.Errorf("%q is %+v, want %+v", text, got, want)
		}
		if got := want.String(); got != text {
			t.Errorf("%+v is %q, want %q", want, got, text)
		}
	}
}
