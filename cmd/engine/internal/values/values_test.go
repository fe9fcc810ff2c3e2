package values

import (
	"testing"
	"time"
)

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "64 KiB": 64 << 10, "1MiB": 1 << 20, "1.5GiB": 3 << 29, "2TiB": 2 << 40,
		"10MB": 10e6, "1kB": 1000, "7B": 7,
	} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "B", "-1", "1.5", "1.5B", "1 MiB extra", "1e30GiB", "9223372036854775807KiB", "NaNMiB", "infMiB", "0.3KiB",
	} {
		if got, err := ParseBytes(in); err == nil {
			t.Errorf("parseBytes(%q) = %d, want an error", in, got)
		}
	}
	for in, want := range map[int64]string{
		0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1 << 20: "1MiB", 3 << 29: "1536MiB", 5 << 40: "5TiB",
	} {
		got := FormatBytes(in)
		if got != want {
			t.Errorf("formatBytes(%d) = %s, want %s", in, got, want)
		}
		if back, err := ParseBytes(got); err != nil || back != in {
			t.Errorf("parseBytes(formatBytes(%d)) = %d, %v", in, back, err)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "0s", time.Hour: "1h", 90 * time.Second: "1m30s", 15 * time.Minute: "15m", 10 * time.Second: "10s",
		5 * time.Millisecond: "5ms", time.Hour + 30*time.Second: "1h0m30s",
	} {
		if got := FormatDuration(in); got != want {
			t.Errorf("formatDuration(%v) = %s, want %s", in, got, want)
		}
	}
}
