package settings

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// ParseDuration reads a duration as Go writes it, with days and weeks, too: 90s, 1h30m, 10d, 2w12h.
func ParseDuration(text string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is not a time such as 500ms, 90s, 1h30m or 10d", text)
	var total time.Duration
	rest := text
	for _, u := range []struct {
		name string
		n    time.Duration
	}{{"w", 7 * day}, {"d", day}} {
		head, tail, found := strings.Cut(rest, u.name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(head, 10, 32)
		if err != nil || time.Duration(n) > (math.MaxInt64-total)/u.n {
			return 0, wrong
		}
		if total, rest = total+time.Duration(n)*u.n, tail; rest == "" {
			return total, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || total > 0 && (d < 0 || d > math.MaxInt64-total) {
		return 0, wrong
	}
	return total + d, nil
}

// FormatDuration writes a duration without the zero minutes and seconds that time.Duration prints: 72h, 1h30m.
func FormatDuration(d time.Duration) string {
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

// ParseBytes reads a size: a number of bytes, or a number with a unit of 1024 (KiB, MiB, GiB, TiB) or 1000 (KB, MB, GB,
// TB). It may have a fraction if the result is a whole number of bytes: 1.5MiB.
func ParseBytes(text string) (int64, error) {
	digits, unit := text, int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.n
			break
		}
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/unit {
		return n * unit, nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	n := f * float64(unit)
	if err != nil || unit == 1 || !(n >= 0 && n < 1<<62) || n != math.Trunc(n) {
		return 0, fmt.Errorf("%q is not a size in bytes, such as 4096, 64KiB or 1GiB", text)
	}
	return int64(n), nil
}

// FormatBytes writes a size exactly, in the largest unit that divides it, of those of 1024 and 1000 the one with the
// smaller number: 64MiB, 10GB, 4097.
func FormatBytes(n int64) string {
	best, text := n, strconv.FormatInt(n, 10)
	for _, u := range byteUnits[:8] {
		if n != 0 && n%u.n == 0 && n/u.n < best {
			best, text = n/u.n, strconv.FormatInt(n/u.n, 10)+u.name
		}
	}
	return text
}
