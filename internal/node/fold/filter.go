package fold

import (
	"fmt"
	"hash/fnv"
	"path"
	"regexp"
	"strings"

	"penstock/segment"
)

// Filter says by headers which messages a channel wants. The zero value wants all messages.
type Filter struct {
	All    bool   `json:"all"`             // every rule must hold; otherwise one is enough
	Invert bool   `json:"invert"`          // the channel wants the messages that the rules do not select
	Rules  []Rule `json:"rules,omitempty"` // at most MaxFilterRules; none: all messages are wanted
}

// Rule holds for a message that has the header with a value that matches. If a message has the header several times,
// one matching value is enough.
type Rule struct {
	Header  string `json:"header"` // compared byte for byte
	Match   Match  `json:"match"`
	Pattern string `json:"pattern"`
}

// Match says how a value is compared with a rule's pattern.
type Match uint8

const (
	MatchExact  Match = iota // the value equals the pattern
	MatchPrefix              // the value begins with the pattern
	MatchGlob                // path.Match
	MatchRegexp              // the pattern occurs in the value (RE2 syntax; ^ and $ anchor it)
	MatchExists              // the header exists; the pattern is empty
)

var matchNames = [...]string{"exact", "prefix", "glob", "regexp", "exists"}

func (m Match) String() string               { return nameOf(matchNames[:], int(m)) }
func (m Match) MarshalText() ([]byte, error) { return marshalName("match", matchNames[:], int(m)) }

// UnmarshalText parses a name; the empty name is MatchExact.
func (m *Match) UnmarshalText(p []byte) error {
	i, err := unmarshalName("match", matchNames[:], string(p))
	if err == nil {
		*m = Match(i)
	}
	return err
}

// ruleOperators are the operators of a rule. The one that occurs first in the text counts; at the same place, the first
// in this list.
var ruleOperators = [...]struct {
	text  string
	match Match
}{{"^=", MatchPrefix}, {"*=", MatchGlob}, {"~=", MatchRegexp}, {"=", MatchExact}}

// ParseRule reads the notation of commands: HEADER=VALUE, HEADER^=PREFIX, HEADER*=GLOB, HEADER~=REGEXP, or HEADER alone
// for messages that have it. It cannot fail: Validate checks names and patterns.
func ParseRule(text string) Rule {
	at, found := len(text), Rule{Header: text, Match: MatchExists}
	for _, op := range ruleOperators {
		if i := strings.Index(text, op.text); i >= 0 && i < at {
			at, found = i, Rule{Header: text[:i], Match: op.match, Pattern: text[i+len(op.text):]}
		}
	}
	return found
}

func (r Rule) String() string {
	for _, op := range ruleOperators {
		if op.match == r.Match {
			return r.Header + op.text + r.Pattern
		}
	}
	return r.Header
}

func (f *Filter) invalid() string {
	if len(f.Rules) > MaxFilterRules {
		return fmt.Sprintf("has %d rules, at most %d are allowed", len(f.Rules), MaxFilterRules)
	}
	for i := range f.Rules {
		switch r := &f.Rules[i]; {
		case r.Match > MatchExists:
			return fmt.Sprintf("rule %d: there is no match %d", i+1, r.Match)
		case r.Header == "" || len(r.Header) > MaxHeaderName:
			return fmt.Sprintf("rule %d: a header's name has 1 to %d bytes, this one has %d", i+1, MaxHeaderName, len(r.Header))
		case len(r.Pattern) > MaxPatternBytes:
			return fmt.Sprintf("rule %d: the pattern has %d bytes, at most %d are allowed", i+1, len(r.Pattern), MaxPatternBytes)
		}
	}
	return ""
}

// Matcher is a compiled Filter. It never changes, so it is safe for concurrent use. A nil Matcher wants all messages.
type Matcher struct {
	all, invert bool
	rules       []compiledRule
}

type compiledRule struct {
	match   Match
	header  string
	pattern string
	re      *regexp.Regexp // set for MatchGlob and MatchRegexp
}

// Matcher compiles the filter. It returns nil for a filter that wants all messages. Errors wrap ErrSettings.
func (f *Filter) Matcher() (*Matcher, error) {
	if why := f.invalid(); why != "" {
		return nil, fmt.Errorf("%w: filter.rules %s", ErrSettings, why)
	}
	if len(f.Rules) == 0 {
		if f.Invert {
			return nil, fmt.Errorf("%w: an inverted filter without rules wants no message at all", ErrSettings)
		}
		return nil, nil
	}
	m := &Matcher{all: f.All, invert: f.Invert, rules: make([]compiledRule, len(f.Rules))}
	for i, r := range f.Rules {
		c := compiledRule{match: r.Match, header: r.Header, pattern: r.Pattern}
		expr := r.Pattern
		var err error
		switch r.Match {
		case MatchGlob:
			if _, err = path.Match(r.Pattern, ""); err == nil {
				expr = globExpr(r.Pattern)
			}
			fallthrough
		case MatchRegexp:
			if err == nil {
				c.re, err = regexp.Compile(expr)
			}
		case MatchExists:
			if r.Pattern != "" {
				err = fmt.Errorf("exists takes no pattern")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%w: rule %d: %s %q: %v", ErrSettings, i+1, r.Match, r.Pattern, err)
		}
		m.rules[i] = c
	}
	return m, nil
}

// Match says whether the channel wants a message with these headers. It allocates nothing.
func (m *Matcher) Match(headers []segment.KV) bool {
	if m == nil {
		return true
	}
	for i := range m.rules {
		if m.rules[i].holds(headers) != m.all {
			return m.all == m.invert // one rule decides: it holds or, with all, it does not
		}
	}
	return m.all != m.invert
}

// holds says whether a header with the rule's name has a matching value.
func (r *compiledRule) holds(headers []segment.KV) bool {
	for i := range headers {
		kv := &headers[i]
		if string(kv.Key) != r.header {
			continue
		}
		switch r.match {
		case MatchExact:
			if string(kv.Value) == r.pattern {
				return true
			}
		case MatchPrefix:
			if len(kv.Value) >= len(r.pattern) && string(kv.Value[:len(r.pattern)]) == r.pattern {
				return true
			}
		case MatchExists:
			return true
		default:
			if r.re.Match(kv.Value) {
				return true
			}
		}
	}
	return false
}

// globExpr converts a pattern that path.Match accepts into a regular expression. path.Match takes strings, and a
// header's value is bytes: to convert each value would allocate.
func globExpr(pattern string) string {
	var out strings.Builder
	out.WriteString(`(?s)\A`)
	for p := []rune(pattern); len(p) > 0; p = p[1:] {
		switch p[0] {
		case '*':
			out.WriteString(`[^/]*`)
		case '?':
			out.WriteString(`[^/]`)
		case '[':
			p = globClass(&out, p)
		case '\\':
			p = p[1:]
			fallthrough
		default:
			out.WriteString(regexp.QuoteMeta(string(p[:1])))
		}
	}
	out.WriteString(`\z`)
	return out.String()
}

// globClass writes the character class at the start of p and returns p from the closing bracket on. A range whose
// bounds are reversed matches nothing.
func globClass(out *strings.Builder, p []rune) []rune {
	p = p[1:]
	negated := p[0] == '^'
	if negated {
		p = p[1:]
	}
	var ranges strings.Builder
	for p[0] != ']' {
		var lo rune
		lo, p = classRune(p)
		hi := lo
		if p[0] == '-' {
			hi, p = classRune(p[1:])
		}
		if lo <= hi {
			fmt.Fprintf(&ranges, `\x{%x}-\x{%x}`, lo, hi)
		}
	}
	if ranges.Len() == 0 { // an empty class has no syntax: write the negation of the full one
		negated = !negated
		ranges.WriteString(`\x{0}-\x{10ffff}`)
	}
	out.WriteByte('[')
	if negated {
		out.WriteByte('^')
	}
	out.WriteString(ranges.String())
	out.WriteByte(']')
	return p
}

// classRune reads one character of a class, which may be escaped, and returns the rest.
func classRune(p []rune) (rune, []rune) {
	if p[0] == '\\' {
		p = p[1:]
	}
	return p[0], p[1:]
}

// HashKey returns the hash of a key or tag for Event.Key and Event.Tag: FNV-1a, but never 0, which stands for no key.
func HashKey(value []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(value)
	return max(h.Sum64(), 1)
}
