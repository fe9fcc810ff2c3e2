package main

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/netproto"
)

// value is the value of one setting in its text notation. It implements pflag.Value, so that flags need no second
// parser.
type value interface {
	Set(s string) error
	String() string
	Type() string
	get() any // for JSON: string, bool, int64; durations and sizes as their text
}

type textValue struct{ p *string }

func text(p *string) value                 { return textValue{p} }
func (v textValue) Set(s string) error     { *v.p = s; return nil }
func (v textValue) String() string         { return *v.p }
func (v textValue) Type() string           { return "text" }
func (v textValue) get() any               { return *v.p }
func boolean(p *bool) value                { return boolValue{p} }
func addresses(p *[]string) value          { return listValue{p, "addresses", isAddress} }
func hosts(p *[]string) value              { return listValue{p, "hosts", isHost} }
func choice(p *string, of ...string) value { return choiceValue{p, of} }
func count(p *int, least int) value        { return countValue{p, least} }
func size64(
	p *int64, least int64,
) value {
	return bytesValue{p: p, least: least, most: math.MaxInt64}
}
func size(p *int, least int64) value                       { return intBytesValue{p, least} }
func duration(p *time.Duration, least time.Duration) value { return durationValue{p, least} }

// nodeIDValue is a name that other nodes can be told, also on a node that is alone: it may join a cluster later.
type nodeIDValue struct{ textValue }

func nodeID(p *string) value { return nodeIDValue{textValue{p}} }
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

func announced(p *string) value { return announcedValue{textValue{p}} }
func (v announcedValue) Set(s string) error {
	if s != "" {
		if err := netproto.CheckDialled(s); err != nil {
			return fmt.Errorf("no client could dial it: %w", err)
		}
	}
	return v.textValue.Set(s)
}

// secretValue is a value that is never shown: printed settings say only that it is set.
type secretValue struct{ value }

func (v secretValue) get() any       { return v.String() }
func (v secretValue) conceals() bool { return v.value.String() != "" }
func (v secretValue) String() string {
	if !v.conceals() {
		return ""
	}
	return isSet
}

// concealing is a value that may hold something that nobody should see.
type concealing interface {
	// conceals reports whether it does now.
	conceals() bool
}

// conceals reports whether the setting holds something that nobody should see.
func (s *setting) conceals() bool {
	v, ok := s.value.(concealing)
	return ok && v.conceals()
}

const isSet = "(set)"

// urlsValue is a comma-separated list of HOST:PORTs or URLs. User names and passwords in them are not shown, nor what
// follows a question mark.
type urlsValue struct{ p *string }

func urls(p *string) value             { return urlsValue{p} }
func (v urlsValue) Set(s string) error { *v.p = s; return nil }
func (v urlsValue) Type() string       { return "text" }
func (v urlsValue) get() any           { return v.String() }
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
			part = strings.TrimSuffix(part, rest) + isSet + rest[at:]
		}
		if before, _, found := strings.Cut(part, "?"); found {
			part = before + "?" + isSet
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
func (v boolValue) get() any         { return *v.p }
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
func (v listValue) get() any       { return append([]string{}, *v.p...) }

// percentilesValue is a comma-separated list of numbers above 0 and at most 1. Its flag may be given several times.
type percentilesValue struct{ p *[]float64 }

func percentiles(p *[]float64) value { return percentilesValue{p} }

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
func (v percentilesValue) get() any     { return append([]float64{}, *v.p...) }

type choiceValue struct {
	p  *string
	of []string
}

func (v choiceValue) Set(s string) error {
	if !slices.Contains(v.of, s) {
		return fmt.Errorf("%q is not one of %s", s, strings.Join(v.of, ", "))
	}
	*v.p = s
	return nil
}
func (v choiceValue) String() string { return *v.p }
func (v choiceValue) Type() string   { return strings.TrimPrefix(strings.Join(v.of, "|"), "|") } // "" is no choice
func (v choiceValue) get() any       { return *v.p }

type countValue struct {
	p     *int
	least int
}

func (v countValue) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return fmt.Errorf("%q is not a whole number", s)
	}
	if int(n) < v.least {
		return fmt.Errorf("%d is less than %d, the smallest value", n, v.least)
	}
	*v.p = int(n)
	return nil
}
func (v countValue) String() string { return strconv.Itoa(*v.p) }
func (v countValue) Type() string   { return "count" }
func (v countValue) get() any       { return int64(*v.p) }

// portValue is the number of a TCP port, or 0.
type portValue struct{ countValue }

func port(p *int) value { return portValue{countValue{p: p}} }
func (v portValue) Set(s string) error {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && n > math.MaxUint16 {
		return fmt.Errorf("%d is not a port: the largest one is %d", n, math.MaxUint16)
	}
	return v.countValue.Set(s)
}

type bytesValue struct {
	p           *int64
	least, most int64
}

func (v bytesValue) Set(s string) error {
	n, err := parseBytes(s)
	if err != nil {
		return err
	}
	if n < v.least {
		return fmt.Errorf("%s is less than %s, the smallest value", formatBytes(n), formatBytes(v.least))
	}
	if n > v.most {
		return fmt.Errorf("%s is more than %s, the largest value", formatBytes(n), formatBytes(v.most))
	}
	*v.p = n
	return nil
}
func (v bytesValue) String() string { return formatBytes(*v.p) }
func (v bytesValue) Type() string   { return "bytes" }
func (v bytesValue) get() any       { return *v.p }

type intBytesValue struct {
	p     *int
	least int64
}

func (v intBytesValue) Set(s string) error {
	n := int64(*v.p)
	if err := (bytesValue{&n, v.least, math.MaxInt32}).Set(s); err != nil {
		return err
	}
	*v.p = int(n)
	return nil
}
func (v intBytesValue) String() string { return formatBytes(int64(*v.p)) }
func (v intBytesValue) Type() string   { return "bytes" }
func (v intBytesValue) get() any       { return int64(*v.p) }

type durationValue struct {
	p     *time.Duration
	least time.Duration
}

func (v durationValue) Set(s string) error {
	d, err := parseDuration(s)
	if err != nil {
		return err
	}
	if d < v.least {
		return fmt.Errorf("%s is less than %s, the smallest value", formatDuration(d), formatDuration(v.least))
	}
	*v.p = d
	return nil
}
func (v durationValue) String() string { return formatDuration(*v.p) }
func (v durationValue) Type() string   { return "duration" }
func (v durationValue) get() any       { return formatDuration(*v.p) }

// formatDuration formats without the zero minutes and seconds that time.Duration prints: 1h, not 1h0m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var byteUnits = []struct {
	name string
	n    int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"kB", 1e3},
	{"B", 1},
}

// parseBytes parses a size: a whole number, or a number with a unit (64MiB, 1.5GB, 4096).
func parseBytes(s string) (int64, error) {
	digits, unit := s, int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.n
			break
		}
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/unit {
		return n * unit, nil
	}
	// A fraction is allowed only with a unit larger than a byte, and only if the result is a whole number of bytes.
	f, err := strconv.ParseFloat(digits, 64)
	n := f * float64(unit)
	if err != nil || unit == 1 || !(n >= 0 && n < 1<<62) || n != math.Trunc(n) {
		return 0, fmt.Errorf("%q is not a size in bytes, such as 4096, 64KiB or 1GiB", s)
	}
	return int64(n), nil
}

// formatBytes formats a size exactly, in the unit that needs the fewest digits: a binary one, or a decimal one from MB
// on.
func formatBytes(n int64) string {
	digits, unit := strconv.FormatInt(n, 10), ""
	for _, u := range byteUnits[:7] {
		if d := strconv.FormatInt(n/u.n, 10); n%u.n == 0 && len(d) < len(digits) {
			digits, unit = d, u.name
		}
	}
	return digits + unit
}

// counted returns a number with a noun: 1 message, 2 messages. The noun must be one that gets an s.
func counted[N ~int | ~int64 | ~uint64](n N, noun string) string { return inNumber(n, noun, noun+"s") }

// inNumber returns a number with the words for one, or for several: 1 line had, 2 lines had.
func inNumber[N ~int | ~int64 | ~uint64](n N, one, several string) string {
	if n == 1 {
		several = one
	}
	return fmt.Sprintf("%d %s", n, several)
}
