package audit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/sparing"
)

// O5
func TestAuditKeepsTheNewest(t *testing.T) {
	var text bytes.Buffer
	l := New(sparing.New(slog.New(slog.NewTextHandler(&text, nil))), 3)
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
	l := New(sparing.New(slog.New(slog.NewTextHandler(&text, nil))), 0)
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
	if k := strings.Count(text.String(), "\n"); k != 2 {
		t.Errorf("%d lines, want one of the change and one of the refusals", k)
	}
}

// disk is a Log that is kept in dir. Its end is that of a process.
func disk(t *testing.T, dir string, count int, maxBytes int64) (*Log, func()) {
	t.Helper()
	l := New(sparing.New(slog.New(slog.DiscardHandler)), count)
	l.Keep(dir, maxBytes)
	return l, func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if l.Close(ctx); ctx.Err() != nil {
			t.Fatal("Close waits")
		}
	}
}

func whats(l *Log) (all []string) {
	for _, e := range l.List().Entries {
		all = append(all, e.What)
	}
	return all
}

// O5. After a restart the entries of before are there, and since when nothing is missing. What a crash tore is passed
// over. What came before the directory's lock was taken is there, too.
func TestAuditSurvivesRestarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := New(sparing.New(slog.New(slog.DiscardHandler)), 0)
	l.Refused(Entry{What: "early"}, "no")
	l.Keep(dir, 0)
	begun := l.List().Since
	l.Changed(Entry{What: "one"})
	l.Close(context.Background())
	f, err := os.OpenFile(filepath.Join(dir, "changes.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"2026-`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		l, end := disk(t, dir, 0, 0)
		if got := l.List(); !got.Since.Equal(begun) || !got.StrangersSince.Equal(begun) || len(got.Entries) != 2+i {
			t.Fatalf("restart %d: since %v, want %v: %q", i, got.Since, begun, whats(l))
		}
		l.Changed(Entry{What: fmt.Sprint("more ", i)})
		end()
	}
	l, end := disk(t, dir, 0, 0)
	if got := whats(l); !slices.Equal(got, []string{"early", "one", "more 0", "more 1", "more 2"}) {
		t.Errorf("%q", got)
	}
	end()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	l, end = disk(t, dir, 0, 0)
	defer end()
	if got := l.List(); got.Since.Before(now) || len(got.Entries) != 0 {
		t.Errorf("of an audit that was removed it says that it knows all since %v", got.Since)
	}
}

// O5. Strangers, however many, take no room from what people did: not in memory, on disk, or in an answer; nor do they
// suppress the refusals of people. What was dropped is before the time since which the audit says that it knows all.
func TestStrangersPushNobodyOut(t *testing.T) {
	dir := t.TempDir()
	var seconds atomic.Int64
	l := New(sparing.New(slog.New(slog.DiscardHandler)), 40)
	l.now = func() time.Time { return time.Unix(1000+seconds.Load(), 0) }
	l.Keep(dir, 8000)
	l.Changed(Entry{What: "done"})
	for range 100 {
		for range 20 {
			l.Refused(Entry{What: "knock"}, "the secret is unknown")
		}
		seconds.Add(1)
	}
	l.Refused(Entry{Who: "bob", What: "tries"}, "UNAUTHORIZED")
	check := func(l *Log, knocks int) {
		t.Helper()
		list := l.List()
		if n := len(list.Entries); list.Entries[0].What != "done" || list.Entries[n-1].What != "tries" || n != 2+knocks {
			t.Errorf("%q", whats(l))
		}
		if k := list.Entries[1].Time; list.StrangersSince.Unix() < 1098 || k.Before(list.StrangersSince) {
			t.Errorf("it says that it knows all of strangers since %v, and its first knock is of %v", list.StrangersSince, k)
		}
	}
	check(l, 10)
	of := func(e *Entry) *Entry { return e }
	if got := Newest(l.List().Entries, 4, of); len(got) != 4 || got[0].What != "done" || got[3].What != "tries" {
		t.Errorf("%+v", got)
	}
	list := make([]Entry, 8)
	list[6], list[7] = Entry{Kind: Refused, Who: anyone}, Entry{Kind: Refused, Who: anyone}
	if got := Newest(list, 4, of); len(got) != 4 || got[2].Kind == Refused || got[3].Kind != Refused {
		t.Errorf("%+v", got)
	}
	if got := Newest(l.List().Entries, 100, of); len(got) != 12 {
		t.Errorf("%+v", got)
	}
	l.Close(context.Background())
	l, end := disk(t, dir, 40, 8000)
	defer end()
	check(l, 10)
}

// Whatever was dropped, from memory or with an old file: everything since the time that the list names is in it.
func TestAuditKnowsSinceWhen(t *testing.T) {
	for _, count := range []int{30, 1000} {
		dir := t.TempDir()
		var times []time.Time
		check := func(l *Log) {
			t.Helper()
			list, has := l.List(), whats(l)
			for k, at := range times {
				if at.After(list.Since) && !slices.Contains(has, fmt.Sprint(k)) {
					t.Fatalf("all since %v, and entry %d of %v is missing: %q", list.Since, k, at, has)
				}
			}
		}
		for range 15 {
			l, end := disk(t, dir, count, 8000)
			check(l)
			for range 60 {
				l.Changed(Entry{What: fmt.Sprint(len(times))})
				list := l.List()
				times = append(times, list.Entries[len(list.Entries)-1].Time)
				if times[len(times)-1].Before(list.Since) {
					t.Fatalf("it does not know what it recorded just now: all since %v", list.Since)
				}
			}
			check(l)
			end()
		}
	}
}

// Who is refused, or makes changes, as often as he likes pushes out his own entries only.
func TestEntriesOfOthersStay(t *testing.T) {
	l := New(sparing.New(slog.New(slog.DiscardHandler)), 20)
	now := time.Now()
	l.now = func() time.Time { now = now.Add(time.Second); return now }
	l.Changed(Entry{Who: "root", What: "create", Names: "topic=a"})
	for range 100 {
		l.Refused(Entry{Who: "mallory", What: "delete"}, "UNAUTHORIZED")
		l.Changed(Entry{Who: "owner", What: "create", Result: "LIMIT"})
	}
	list := l.List()
	of := map[string]int{}
	for _, e := range list.Entries {
		of[e.Who]++
	}
	if of["root"] != 1 || of["mallory"] < 9 || of["owner"] < 9 || len(list.Entries) != 20 {
		t.Errorf("the audit has %v", of)
	}
	if oldest := list.Entries[1].Time; list.Since.After(oldest) || oldest.Sub(list.Since) > 2*time.Second {
		t.Errorf("all is there since %v, the oldest but one entry is of %v", list.Since, oldest)
	}
}

// Fewer entries may be kept from now on: the oldest go, and the list says so. Files become smaller when the next begin.
func TestLimitsOfTheAuditChange(t *testing.T) {
	dir := t.TempDir()
	l := New(sparing.New(slog.New(slog.DiscardHandler)), 100)
	l.Keep(dir, 1<<20)
	for i := range 100 {
		l.Changed(Entry{What: fmt.Sprint(i)})
	}
	l.Limit(10, 8<<10)
	list := l.List()
	if len(list.Entries) != 10 || list.Entries[0].What != "90" || list.Since.Before(list.Entries[0].Time.Add(-time.Hour)) {
		t.Errorf("%d entries, since %v: %+v", len(list.Entries), list.Since, list.Entries)
	}
	for i := range 200 {
		l.Changed(Entry{What: fmt.Sprint(100 + i), Body: strings.Repeat("x", 100)})
		time.Sleep(time.Millisecond / 4) // the files are changed between writes, not within one
	}
	l.Close(t.Context())
	files, err := filepath.Glob(filepath.Join(dir, "changes*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if st, err := os.Stat(name); err != nil || st.Size() > 64<<10 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	if list := l.List(); len(list.Entries) != 10 || list.Entries[9].What != "299" {
		t.Errorf("%d entries", len(list.Entries))
	}
	if l.Limit(0, 0); l.people.size != DefaultCount {
		t.Errorf("the default is %d", l.people.size)
	}
}
