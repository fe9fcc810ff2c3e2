package cli

import (
	"strings"
	"testing"
	"time"
)

func TestPlaces(t *testing.T) {
	now := time.Date(2026, 3, 1, 14, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"oldest": "oldest", "newest": "newest", "0001000000000002": "0001000000000002",
		"1h ago": "2026-03-01T13:00:00Z", "yesterday": "2026-02-28T00:00:00Z",
	} {
		if p, err := ParsePlace("from", text, now); err != nil || p.String() != want {
			t.Errorf("%s: %v, %v; want %s", text, p, err, want)
		}
	}
	if _, err := ParsePlace("from", "beginning", now); err == nil || !strings.Contains(err.Error(), "--from beginning") {
		t.Error(err)
	}
}
