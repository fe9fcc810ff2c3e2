package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Times and durations of all commands, settings and documents are read here.

// leadingDays are days at the beginning of a duration, which Go has no unit for.
var leadingDays = regexp.MustCompile(`^(\d+(?:\.\d+)?)d`)

// parseDuration reads a duration as Go does, and days: 10d, 1d12h. It may be below 0.
func parseDuration(s string) (time.Duration, error) {
	fail := fmt.Errorf("%q is not a time with a unit, such as 5ms, 30s, 1h or 10d", s)
	rest, sign := strings.CutPrefix(s, "-")
	var days time.Duration
	if m := leadingDays.FindStringSubmatch(rest); m != nil {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil || n*24 > math.MaxInt64/float64(time.Hour) {
			return 0, fail
		}
		days = time.Duration(n * 24 * float64(time.Hour))
		if rest = rest[len(m[0]):]; rest == "" {
			rest = "0s"
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") && days != 0 || days+d < days {
		return 0, fail
	}
	if d += days; sign {
		d = -d
	}
	return d, nil
}

// timeHelp says which times parseTime reads.
const timeHelp = "2026-01-31T12:00:00Z, \"2026-01-31 12:00\", yesterday or \"1h ago\""

// localTimes are times without a zone, which are those of the machine that runs the command.
var localTimes = []string{
	"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02",
}

// parseTime reads a point in time: with its zone, of this machine's zone, a day (today, yesterday), which means its
// begin, or some time ago.
func parseTime(s string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	for _, layout := range localTimes {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	year, month, day := now.Date()
	switch s {
	case "now":
		return now, nil
	case "today":
		return time.Date(year, month, day, 0, 0, 0, 0, now.Location()), nil
	case "yesterday":
		return time.Date(year, month, day-1, 0, 0, 0, 0, now.Location()), nil
	}
	if ago, ok := strings.CutSuffix(s, " ago"); ok {
		if d, err := parseDuration(strings.ReplaceAll(ago, " ", "")); err == nil && d >= 0 {
			return now.Add(-d), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time such as %s", s, timeHelp)
}

// waitValue is a duration of a flag whose 0 means none, so that the help does not say it.
type waitValue struct{ durationValue }

func (v waitValue) String() string {
	if *v.p == 0 {
		return "0"
	}
	return v.durationValue.String()
}

// durationVar adds a flag for a duration that is not below 0.
func durationVar(f *pflag.FlagSet, p *time.Duration, name string, usual time.Duration, usage string) {
	*p = usual
	f.Var(waitValue{durationValue{p, 0}}, name, usage)
}
