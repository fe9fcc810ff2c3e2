package settings

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Row is one setting of a type S.
type Row[S any] struct {
	Tag   int    // its number in logs, from 1 on; it is never given to another setting
	Name  string // in JSON and TOML; below a name with a dot in it: "filter.rules"
	Flag  string // of commands, which print the setting under this name, too
	Level int    // the lowest feature level whose versions obey it
	// Must: a version that does not know the setting refuses what holds it. Otherwise it keeps the setting unread.
	Must bool
	// Harmless: it changes neither which messages are delivered nor their order, so that the simulator may set it to
	// anything at any time.
	Harmless bool
	Says     string // what it does, for help and the reference page
	Zero     string // what the value zero means, for people; "": it needs no words
	Of       func(*S) Field
}

// Table is all settings of a type, in the order in which people read them.
type Table[S any] []Row[S]

// Invalid says which setting breaks its bounds; "": none does.
func (t Table[S]) Invalid(s *S) string {
	for i := range t {
		if why := t[i].Of(s).Invalid(); why != "" {
			return t[i].Name + " " + why
		}
	}
	return ""
}

// Level returns the lowest feature level whose versions obey the settings, and a setting that needs it; 1 and "" if
// every version obeys them.
func (t Table[S]) Level(s *S) (level int, name string) {
	level = 1
	for i := range t {
		if r := &t[i]; r.Level > level && !r.Of(s).IsZero() {
			level, name = r.Level, r.Name
		}
	}
	return level, name
}

// The encoding in a log: for each setting that is not zero, in ascending order of tags,
//
//	uvarint tag*2, plus 1 if a reader that does not know the tag must refuse the settings
//	uvarint length of the value in bytes
//	value
//
// What a reader does not know and may keep has its place among the others again when it is written.

// Append appends the settings that are not zero, and unknown, which is what Decode returned for them.
func (t Table[S]) Append(dst []byte, s *S, unknown []byte) []byte {
	rows := slices.SortedFunc(slices.Values(t), func(a, b Row[S]) int { return a.Tag - b.Tag })
	for i := range rows {
		for {
			f, rest, ok := next(unknown)
			if !ok || f.tag > rows[i].Tag {
				break
			}
			dst, unknown = append(dst, f.raw...), rest
		}
		f := rows[i].Of(s)
		if f.IsZero() {
			continue
		}
		number := uint64(rows[i].Tag) << 1
		if rows[i].Must {
			number |= 1
		}
		value := f.Append(nil)
		dst = binary.AppendUvarint(dst, number)
		dst = binary.AppendUvarint(dst, uint64(len(value)))
		dst = append(dst, value...)
	}
	return append(dst, unknown...)
}

// ErrUnknown says that settings have one that this version does not know and must not ignore.
var ErrUnknown = errors.New("a setting that this version does not know, and must not ignore")

// Decode sets what src has, and returns what it does not know and has to keep. src must be as a Table writes it: the
// tags rise, and no value is zero or breaks its bounds. Decode keeps no reference to src.
func (t Table[S]) Decode(src []byte, s *S) (unknown []byte, err error) {
	for last := 0; len(src) > 0; {
		f, rest, ok := next(src)
		if !ok || f.tag <= last {
			return nil, fmt.Errorf("the settings behind tag %d are damaged", last)
		}
		src, last = rest, f.tag
		i := slices.IndexFunc(t, func(r Row[S]) bool { return r.Tag == f.tag })
		switch {
		case i < 0 && f.must:
			return nil, fmt.Errorf("%w: number %d", ErrUnknown, f.tag)
		case i < 0:
			unknown = append(unknown, f.raw...)
		default:
			of := t[i].Of(s)
			if err := of.Decode(f.value); err != nil {
				return nil, fmt.Errorf("%s: %w", t[i].Name, err)
			}
			if why := of.Invalid(); why != "" || of.IsZero() || f.must != t[i].Must {
				return nil, fmt.Errorf("%s %s", t[i].Name, cmp.Or(why, "is not encoded as it must be"))
			}
		}
	}
	return unknown, nil
}

// encoded is one setting in a log.
type encoded struct {
	raw, value []byte
	tag        int
	must       bool
}

// next returns the first setting of src, and what follows it.
func next(src []byte) (f encoded, rest []byte, ok bool) {
	number, n := uvarint(src)
	if n <= 0 || number>>1 > MaxTag {
		return f, nil, false
	}
	size, m := uvarint(src[n:])
	if m <= 0 || size > uint64(len(src)-n-m) {
		return f, nil, false
	}
	end := n + m + int(size)
	return encoded{src[:end], src[n+m : end], int(number >> 1), number&1 != 0}, src[end:], true
}

// MaxTag is the largest Row.Tag.
const MaxTag = 1<<16 - 1

// uvarint is binary.Uvarint for the shortest encoding of a number, which is the only valid one.
func uvarint(p []byte) (n uint64, size int) {
	if n, size = binary.Uvarint(p); size > 1 && p[size-1] == 0 {
		return 0, 0
	}
	return n, size
}
