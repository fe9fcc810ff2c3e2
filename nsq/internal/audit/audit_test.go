package audit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// O5
func TestAuditKeepsTheNewest(t *testing.T) {
	var text bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&text, nil)), 3)
	for i := range 5 {
		result := map[bool]string{true: "no room"}[i == 4]
		l.Changed(Entry{What: fmt.Sprint(i), Result: result, Body: strings.Repeat("x", 5000)})
		list := l.List()
		if want := min(i+1, 3); len(list.Entries) != want || list.Entries[want-1].What != fmt.Sprint(i) ||
			list.Entries[0].What != fmt.Sprint(i+1-want) {
			t.Fatalf("after %d: %+v", i, list)
		}
	}
	last := l.List().Entries[2]
	if last.Kind != Failed || last.Who != "anyone" || len(last.Body) != maxTextBytes || last.Time.IsZero() {
		t.Errorf("%+v", last)
	}
	if k := strings.Count(text.String(), "\n"); k != 5 || strings.Count(text.String(), "level=WARN") != 1 {
		t.Errorf("%d lines: %s", k, &text)
	}
}

// O5. Refusals are bounded, and counted; changes are not bounded, and stay in memory however many are refused.
func TestAuditBoundsRefusals(t *testing.T) {
	var text bytes.Buffer
	now := time.Unix(1000, 0)
	l := New(slog.New(slog.NewTextHandler(&text, nil)), 0)
	l.now = func() time.Time { return now }
	l.Changed(Entry{What: "kept"})
	for range 10 {
		for range 1000 {
			l.Refused(Entry{What: "AUTH"}, "the secret is unknown")
		}
		now = now.Add(time.Second)
	}
	list := l.List()
	if len(list.Entries) != 1+10*MaxRefusalsPerSecond || list.Entries[0].What != "kept" || list.Suppressed != 990 {
		t.Errorf("%d entries, %d suppressed at the end", len(list.Entries), list.Suppressed)
	}
	if k := strings.Count(text.String(), "suppressed=990"); k != 9 {
		t.Errorf("%d lines say how many were suppressed, want 9", k)
	}
	if k := strings.Count(text.String(), "\n"); k != len(list.Entries) {
		t.Errorf("%d lines, %d entries", k, len(list.Entries))
	}
}
