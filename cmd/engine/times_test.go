package main

import (
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"5ms": 5 * time.Millisecond, "1h30m": 90 * time.Minute, "10d": 240 * time.Hour, "1.5d": 36 * time.Hour,
		"1d12h": 36 * time.Hour, "-2d": -48 * time.Hour, "0": 0, "0s": 0, "106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "d", "1h2d", "--1h", "1d-2h", "1d+2h", "106752d", "106751d24h", "1e400d", "1w"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

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
		if got, err := parseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ago", "-1h ago", "1h", "tomorrow", "12:00", "1767225600"} {
		if got, err := parseTime(text, now); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
