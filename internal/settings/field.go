package settings

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Field is one setting of one topic or channel: it points into the struct that holds the value. Set, String and Type
// are those of a flag (pflag.Value). A Field is made anew for each use, by Row.Of.
type Field interface {
	Set(text string) error // parses the notation of a flag; after an error the value is as before
	String() string        // in the notation of Set
	Type() string          // for help: "count", "bytes", "duration", "text", "bool", or the words to choose from: "a|b"
	IsZero() bool          // it was never configured, or has its default
	Append(dst []byte) []byte
	Decode(value []byte) error // of what Append wrote; it keeps no reference to value
	Invalid() string           // which bound the value breaks, behind the setting's name: "is 7, at most 5"; "": none
	Try(n int) string          // a value for the simulator, in the notation of Set; the same one for the same n
}

// Unit is what a number counts.
type Unit uint8

const (
	Count   Unit = iota
	Bytes        // flags take units: 64KiB
	Millis       // milliseconds in JSON and in a log; flags take durations: 72h
	Percent      // of 100
)

// None is the value of a number without a bound, where the row allows it: -1 in JSON, "none" as a flag.
const None = -1

type integer interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int | ~int64
}

type number[N integer] struct {
	p           *N
	least, most int64
	unit        Unit
}

// Number is a number from least to most; with a least of None it may be None, too. In a log it is a uvarint, so there
// it must not be None.
func Number[N integer](p *N, least, most int64, unit Unit) Field {
	return number[N]{p, least, most, unit}
}

func (f number[N]) IsZero() bool { return *f.p == 0 }

func (f number[N]) Set(text string) error {
	n, err := f.parse(text)
	if err == nil && (n > f.most || n < f.least) {
		err = fmt.Errorf("it must be %s to %s", f.text(max(f.least, 0)), f.text(f.most))
	}
	if err == nil {
		*f.p = N(n)
	}
	return err
}

func (f number[N]) parse(text string) (int64, error) {
	switch {
	case text == "none" && f.least == None:
		return None, nil
	case f.unit == Bytes:
		return ParseBytes(text)
	case f.unit == Millis:
		d, err := ParseDuration(text)
		if err == nil && (d < 0 || d%time.Millisecond != 0) {
			err = fmt.Errorf("%q is not a time in whole milliseconds, such as 30m or 72h", text)
		}
		return d.Milliseconds(), err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a whole number of 0 or more", text)
	}
	return n, nil
}

func (f number[N]) String() string { return f.text(int64(*f.p)) }

func (f number[N]) text(n int64) string {
	switch {
	case n == None && f.least == None:
		return "none"
	case f.unit == Bytes:
		return FormatBytes(n)
	case f.unit == Millis:
		return FormatDuration(time.Duration(n) * time.Millisecond)
	}
	return strconv.FormatInt(n, 10)
}

func (f number[N]) Type() string {
	kind := [...]string{"count", "bytes", "duration", "percent"}[f.unit]
	if f.least == None {
		kind += "|none"
	}
	return kind
}

func (f number[N]) Invalid() string {
	n := int64(*f.p)
	switch {
	case n < f.least:
		return fmt.Sprintf("is %d; it must be %d or more", n, f.least)
	case n > f.most:
		return fmt.Sprintf("is %d; at most %d is allowed", n, f.most)
	}
	return ""
}

func (f number[N]) Append(dst []byte) []byte { return binary.AppendUvarint(dst, uint64(*f.p)) }

func (f number[N]) Decode(value []byte) error {
	n, size := uvarint(value)
	if size != len(value) || size <= 0 || n > uint64(f.most) {
		return fmt.Errorf("it holds no number up to %d", f.most)
	}
	*f.p = N(n)
	return nil
}

// Try returns the n-th sample value as text. It uses powers of two, so that samples meet small bounds and large ones.
func (f number[N]) Try(n int) string {
	value := int64(1) << (n % 62)
	if f.unit == Millis {
		value = min(value, int64(math.MaxInt64/time.Millisecond))
	}
	return f.text(min(max(value, f.least), f.most))
}

type text struct {
	p    *string
	most int // bytes
}

// Text is a text of at most that many bytes.
func Text(p *string, most int) Field { return text{p, most} }

func (f text) IsZero() bool           { return *f.p == "" }
func (f text) Set(value string) error { *f.p = value; return nil }
func (f text) String() string         { return *f.p }
func (f text) Type() string           { return "text" }

func (f text) Invalid() string {
	if len(*f.p) <= f.most {
		return ""
	}
	return fmt.Sprintf("has %d bytes, at most %d are allowed", len(*f.p), f.most)
}

func (f text) Append(dst []byte) []byte { return append(dst, *f.p...) }

func (f text) Decode(value []byte) error {
	if len(value) > f.most {
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(value), f.most)
	}
	*f.p = string(value)
	return nil
}

func (f text) Try(n int) string { return strings.Repeat("t", n%f.most) }

type choice[S ~string] struct {
	p  *S
	of []S
}

// Choice is one of these words, the first of which is the default: it is stored as the empty text, too.
func Choice[S ~string](p *S, of ...S) Field { return choice[S]{p, of} }

func (f choice[S]) IsZero() bool { return *f.p == "" || *f.p == f.of[0] }

func (f choice[S]) Set(value string) error {
	if value != "" && !slices.Contains(f.of, S(value)) {
		return fmt.Errorf("%q is not one of %s", value, strings.ReplaceAll(f.Type(), "|", ", "))
	}
	*f.p = S(value)
	return nil
}

func (f choice[S]) String() string { return string(*f.p) }
func (f choice[S]) Type() string   { return joined(f.of) }

func joined[S ~string](words []S) string {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	return strings.Join(all, "|")
}

func (f choice[S]) Invalid() string {
	if *f.p == "" || slices.Contains(f.of, *f.p) {
		return ""
	}
	return fmt.Sprintf("is %q; it must be one of %s", string(*f.p), f.Type())
}

func (f choice[S]) Append(dst []byte) []byte { return append(dst, *f.p...) }

func (f choice[S]) Decode(value []byte) error { return f.Set(string(value)) }
func (f choice[S]) Try(n int) string          { return string(f.of[n%len(f.of)]) }

type named[N ~uint8] struct {
	p     *N
	names []string
}

// Named is a small number that has a name, from 0 on. In a log it is one byte.
func Named[N ~uint8](p *N, names []string) Field { return named[N]{p, names} }

func (f named[N]) IsZero() bool { return *f.p == 0 }

func (f named[N]) Set(value string) error {
	i := slices.Index(f.names, value)
	if value == "" {
		i = 0
	}
	if i < 0 {
		return fmt.Errorf("%q is not one of %s", value, strings.ReplaceAll(f.Type(), "|", ", "))
	}
	*f.p = N(i)
	return nil
}

func (f named[N]) String() string {
	if int(*f.p) >= len(f.names) {
		return fmt.Sprintf("unknown %d", *f.p)
	}
	return f.names[*f.p]
}

func (f named[N]) Type() string { return strings.Join(f.names, "|") }

func (f named[N]) Invalid() string {
	if int(*f.p) < len(f.names) {
		return ""
	}
	return fmt.Sprintf("is %d, which does not exist; it must be one of %s", *f.p, f.Type())
}

func (f named[N]) Append(dst []byte) []byte { return append(dst, byte(*f.p)) }

func (f named[N]) Decode(value []byte) error {
	if len(value) != 1 || int(value[0]) >= len(f.names) {
		return fmt.Errorf("it holds none of %s", f.Type())
	}
	*f.p = N(value[0])
	return nil
}

func (f named[N]) Try(n int) string { return f.names[n%len(f.names)] }

type flag struct{ p *bool }

// Flag is on or off. In a log it is one byte, 1.
func Flag(p *bool) Field { return flag{p} }

func (f flag) IsZero() bool             { return !*f.p }
func (f flag) IsBoolFlag() bool         { return true }
func (f flag) String() string           { return strconv.FormatBool(*f.p) }
func (f flag) Type() string             { return "bool" }
func (f flag) Invalid() string          { return "" }
func (f flag) Append(dst []byte) []byte { return append(dst, 1) }
func (f flag) Try(n int) string         { return strconv.FormatBool(n%2 == 1) }

func (f flag) Set(value string) error {
	on, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", value)
	}
	*f.p = on
	return nil
}

func (f flag) Decode(value []byte) error {
	if len(value) != 1 || value[0] != 1 {
		return fmt.Errorf("it is not on")
	}
	*f.p = true
	return nil
}
