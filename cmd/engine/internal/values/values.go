package values

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/internal/settings"
	"penstock/netproto"
)

// Value is the value of one setting in its text notation. It implements pflag.Value, so that flags need no second
// parser.
type Value interface {
	Set(s string) error
	String() string
	Type() string
	Get() any // for JSON: string, bool, int64; durations and sizes as their text
}

type textValue struct{ p *string }

// Text and the functions like it return values that are stored where p points. least is the smallest one.
func Text(p *string) Value                 { return textValue{p} }
func (v textValue) Set(s string) error     { *v.p = s; return nil }
func (v textValue) String() string         { return *v.p }
func (v textValue) Type() string           { return "text" }
func (v textValue) Get() any               { return *v.p }
func Boolean(p *bool) Value                { return boolValue{p} }
func Addresses(p *[]string) Value          { return listValue{p, "addresses", isAddress} }
func Hosts(p *[]string) Value              { return listValue{p, "hosts", isHost} }
func Choice(p *string, of ...string) Value { return ChoiceValue{p, of} }
func Count(p *int, least int) Value        { return number(p, "count", int64(least), math.MaxInt32) }

func Size64(p *int64, least int64) Value { return number(p, "bytes", least, math.MaxInt64) }

func Size(p *int, least int64) Value                       { return number(p, "bytes", least, math.MaxInt32) }
func Duration(p *time.Duration, least time.Duration) Value { return duration(p, least) }

func duration(p *time.Duration, least time.Duration) NumberValue {
	return number(p, "duration", int64(least), math.MaxInt64)
}

// nodeIDValue is a name that other nodes can be told, also on a node that is alone: it may join a cluster later.
type nodeIDValue struct{ textValue }

func NodeID(p *string) Value { return nodeIDValue{textValue{p}} }
func (v nodeIDValue) Set(s string) error {
	if s != "" {
		if err := netproto.CheckNodeName(s); err != nil {
			return err
		}
	}
	return v.textValue.Set(s)
}

// announcedValue is a host that clients and other nodes are told; empty: not said.
type announcedValue struct{ textValue }

func Announced(p *string) Value { return announcedValue{textValue{p}} }
func (v announcedValue) Set(s string) error {
	if s != "" {
		if err := netproto.CheckDialled(s); err != nil {
			return fmt.Errorf("no client could dial it: %w", err)
		}
	}
	return v.textValue.Set(s)
}

// secretValue is a value that must not leave the process: printed settings say only that it is set, it is not served at
// /config, and it is refused on a command line.
type secretValue struct{ Value }

func Secret(v Value) Value { return secretValue{v} }

// IsSecret reports whether v was made by Secret.
func IsSecret(v Value) bool {
	_, is := v.(secretValue)
	return is
}

func (v secretValue) Get() any       { return v.String() }
func (v secretValue) conceals() bool { return v.Value.String() != "" }
func (v secretValue) String() string {
	if !v.conceals() {
		return ""
	}
	return IsSet
}

// Conceals reports whether a value holds something now that nobody should see.
func Conceals(v Value) bool {
	c, ok := v.(interface{ conceals() bool })
	return ok && c.conceals()
}

// Plain returns a value with all that String conceals, in the notation of Set.
func Plain(v Value) string {
	switch v := v.(type) {
	case secretValue:
		return v.Value.String()
	case urlsValue:
		return *v.p
	}
	return v.String()
}

// IsSet is shown in place of a secret.
const IsSet = "(set)"

// urlsValue is a comma-separated list of HOST:PORTs or URLs. User names and passwords in them are not shown, nor what
// follows a question mark.
type urlsValue struct{ p *string }

func URLs(p *string) Value             { return urlsValue{p} }
func (v urlsValue) Set(s string) error { *v.p = s; return nil }
func (v urlsValue) Type() string       { return "text" }
func (v urlsValue) Get() any           { return v.String() }
func (v urlsValue) conceals() bool     { return v.String() != *v.p }
func (v urlsValue) String() string {
	parts := strings.Split(*v.p, ",")
	for i, part := range parts {
		_, rest, found := strings.Cut(part, "://")
		if !found {
			rest = part
		}
		authority, _, _ := strings.Cut(rest, "/")
		if at := strings.LastIndexByte(authority, '@'); at >= 0 {
			part = strings.TrimSuffix(part, rest) + IsSet + rest[at:]
		}
		if before, _, found := strings.Cut(part, "?"); found {
			part = before + "?" + IsSet
		}
		parts[i] = part
	}
	return strings.Join(parts, ",")
}

type boolValue struct{ p *bool }

func (v boolValue) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("%q is not true or false", s)
	}
	*v.p = b
	return nil
}
func (v boolValue) String() string   { return strconv.FormatBool(*v.p) }
func (v boolValue) Type() string     { return "bool" }
func (v boolValue) Get() any         { return *v.p }
func (v boolValue) IsBoolFlag() bool { return true }

// listValue is a comma-separated list. Its flag may be given several times.
type listValue struct {
	p     *[]string
	kind  string
	check func(string) error
}

func isAddress(s string) error {
	if _, _, err := net.SplitHostPort(s); err != nil {
		return fmt.Errorf("%q is not HOST:PORT", s)
	}
	return nil
}

func isHost(s string) error {
	if s == "*" {
		return nil
	}
	return netproto.CheckHost(s)
}

func (v listValue) Set(s string) error {
	*v.p = nil
	if s == "" {
		return nil
	}
	for part := range strings.SplitSeq(s, ",") {
		if err := v.check(part); err != nil {
			return err
		}
		*v.p = append(*v.p, part)
	}
	return nil
}
func (v listValue) String() string { return strings.Join(*v.p, ",") }
func (v listValue) Type() string   { return v.kind }
func (v listValue) Get() any       { return append([]string{}, *v.p...) }

// percentilesValue is a comma-separated list of numbers above 0 and at most 1. Its flag may be given several times.
type percentilesValue struct{ p *[]float64 }

func Percentiles(p *[]float64) Value { return percentilesValue{p} }

func (v percentilesValue) Set(s string) error {
	*v.p = nil
	if s == "" {
		return nil
	}
	for part := range strings.SplitSeq(s, ",") {
		f, err := strconv.ParseFloat(part, 64)
		if err != nil || !(f > 0 && f <= 1) {
			return fmt.Errorf("%q is not a percentile, above 0 and at most 1, such as 0.99", part)
		}
		*v.p = append(*v.p, f)
	}
	return nil
}

func (v percentilesValue) String() string {
	parts := make([]string, len(*v.p))
	for i, f := range *v.p {
		parts[i] = strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strings.Join(parts, ",")
}
func (v percentilesValue) Type() string { return "percentiles" }
func (v percentilesValue) Get() any     { return append([]float64{}, *v.p...) }

type ChoiceValue struct {
	p  *string
	Of []string
}

func (v ChoiceValue) Set(s string) error {
	if !slices.Contains(v.Of, s) {
		return fmt.Errorf("%q is not one of %s", s, strings.Join(v.Of, ", "))
	}
	*v.p = s
	return nil
}
func (v ChoiceValue) String() string { return *v.p }
func (v ChoiceValue) Type() string   { return strings.TrimPrefix(strings.Join(v.Of, "|"), "|") } // "" is no choice
func (v ChoiceValue) Get() any       { return *v.p }

// NumberValue is a number: a count, a size in bytes or a duration.
type NumberValue struct {
	get         func() int64
	set         func(int64)
	Least, most int64
	Kind        string // "count", "bytes" or "duration"
}

func number[N int | int64 | time.Duration](p *N, kind string, least, most int64) NumberValue {
	return NumberValue{func() int64 { return int64(*p) }, func(n int64) { *p = N(n) }, least, most, kind}
}

func (v NumberValue) Set(s string) (err error) {
	var n int64
	switch v.Kind {
	case "bytes":
		n, err = settings.ParseBytes(s)
	case "duration":
		var d time.Duration
		d, err = settings.ParseDuration(s)
		n = int64(d)
	default:
		if n, err = strconv.ParseInt(s, 10, 32); err != nil {
			err = fmt.Errorf("%q is not a whole number", s)
		}
	}
	switch {
	case err != nil:
		return err
	case n < v.Least:
		return fmt.Errorf("%s is less than %s, the smallest value", v.text(n), v.text(v.Least))
	case n > v.most:
		return fmt.Errorf("%s is more than %s, the largest value", v.text(n), v.text(v.most))
	}
	v.set(n)
	return nil
}

func (v NumberValue) text(n int64) string {
	switch v.Kind {
	case "bytes":
		return FormatBytes(n)
	case "duration":
		return FormatDuration(time.Duration(n))
	}
	return strconv.FormatInt(n, 10)
}

func (v NumberValue) String() string { return v.text(v.get()) }
func (v NumberValue) Type() string   { return v.Kind }
func (v NumberValue) Get() any {
	if v.Kind == "duration" {
		return v.String()
	}
	return v.get()
}

// portValue is the number of a TCP port, or 0.
type portValue struct{ NumberValue }

func Port(p *int) Value { return portValue{number(p, "count", 0, math.MaxInt32)} }
func (v portValue) Set(s string) error {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && n > math.MaxUint16 {
		return fmt.Errorf("%d is not a port: the largest one is %d", n, math.MaxUint16)
	}
	return v.NumberValue.Set(s)
}

// FormatDuration and FormatBytes write what the values of this package read.
func FormatDuration(d time.Duration) string { return settings.FormatDuration(d) }
func FormatBytes(n int64) string            { return settings.FormatBytes(n) }

// Flag remembers the value from the command line. Flags are parsed before the file is read, and must still take
// precedence over it.
type Flag struct {
	Value
	Preset string
	Said   *string
}

func (f *Flag) Set(s string) error {
	if f.Said != nil {
		switch f.Value.(type) {
		case listValue, percentilesValue:
			s = *f.Said + "," + s
		}
	}
	f.Said = &s
	return f.Value.Set(s)
}

func (f *Flag) String() string { return f.Preset }
