package values

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"penstock/internal/settings"
)

// TimeHelp says which times ParseTime reads.
const TimeHelp = "2026-01-31T12:00:00Z, \"2026-01-31 12:00\", yesterday or \"1h ago\""

// localTimes are times without a zone, which are those of the machine that runs the command.
var localTimes = []string{
	"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02",
}

// ParseTime reads a point in time: with its zone, of this machine's zone, a day (today, yesterday), which means its
// begin, or some time ago.
func ParseTime(s string, now time.Time) (time.Time, error) {
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
		if d, err := settings.ParseDuration(strings.ReplaceAll(ago, " ", "")); err == nil && d >= 0 {
			return now.Add(-d), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time such as %s", s, TimeHelp)
}

// waitValue is a duration of a flag whose 0 means none, so that the help does not say it.
type waitValue struct{ NumberValue }

func (v waitValue) String() string {
	if v.get() == 0 {
		return "0"
	}
	return v.NumberValue.String()
}

// DurationVar adds a flag for a duration that is not below 0.
func DurationVar(f *pflag.FlagSet, p *time.Duration, name string, usual time.Duration, usage string) {
	*p = usual
	f.Var(waitValue{duration(p, 0)}, name, usage)
}
