package values

import (
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("here", 2*3600)
	now := time.Date(2026, 3, 1, 14, 30, 5, 0, zone)
	for text, want := range map[string]time.Time{
		"2026-01-31T12:00:00Z":        time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC),
		"2026-01-31T12:00:00.5+01:00": time.Date(2026, 1, 31, 11, 0, 0, 5e8, time.UTC),
		"2026-01-31 12:00":            time.Date(2026, 1, 31, 12, 0, 0, 0, zone),
		"2026-01-31T12:00:07":         time.Date(2026, 1, 31, 12, 0, 7, 0, zone),
		"2026-01-31":                  time.Date(2026, 1, 31, 0, 0, 0, 0, zone),
		"today":                       time.Date(2026, 3, 1, 0, 0, 0, 0, zone),
		"yesterday":                   time.Date(2026, 2, 28, 0, 0, 0, 0, zone),
		"now":                         now,
		"1h ago":                      now.Add(-time.Hour),
		"10d ago":                     now.Add(-240 * time.Hour),
		"1h 30m ago":                  now.Add(-90 * time.Minute),
	} {
		if got, err := ParseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ago", "-1h ago", "1h", "tomorrow", "12:00", "1767225600"} {
		if got, err := ParseTime(text, now); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
