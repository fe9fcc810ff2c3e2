package sparing

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// newLog returns a Log and what it writes, for use within synctest.
func newLog(level slog.Level) (*Log, func() []string) {
	var text written
	l := New(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	return l, func() (lines []string) {
		synctest.Wait()
		if all := text.take(); all != "" {
			lines = strings.Split(strings.TrimSuffix(all, "\n"), "\n")
		}
		return lines
	}
}

// written is what was written, by several goroutines. mu guards text.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *written) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.text.Reset()
	return w.text.String()
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// The first line is written at once, and the others are counted: one line a minute says how many. After a minute
// without any, the next one is a first one again.
func TestFirstAtOnceThenACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog(slog.LevelInfo)
		for i := range 100 {
			l.Warn("refused", "client", i)
		}
		expect(t, "at once", lines(), "level=WARN msg=refused client=0")
		time.Sleep(Interval - time.Second)
		expect(t, "before a minute is over", lines())
		time.Sleep(time.Second)
		expect(t, "after a minute", lines(),
			`level=WARN msg="refused: and 99 more in the last 1m0s, of which this is the newest" client=99`)
		l.Warn("refused", "client", 100)
		expect(t, "after the count", lines())
		time.Sleep(Interval)
		expect(t, "after two minutes", lines(),
			`level=WARN msg="refused: and 1 more in the last 1m0s, of which this is the newest" client=100`)
		time.Sleep(Interval)
		expect(t, "a quiet minute", lines())
		l.Warn("refused", "client", 101)
		expect(t, "after a quiet minute", lines(), "level=WARN msg=refused client=101")
		if n := l.LeftOut(); n != 100 {
			t.Errorf("%d were left out", n)
		}
	})
}

// Kinds have their lines apart from each other. A line that the log does not take is not counted either.
func TestKindsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog(slog.LevelInfo)
		for range 3 {
			l.Warn("one")
			l.Info("two")
			l.Line(slog.LevelWarn, "of another kind", "one")
			l.Line(slog.LevelDebug, "", "three")
		}
		expect(t, "at once", lines(), "level=WARN msg=one", "level=INFO msg=two", "level=WARN msg=one")
		if n := l.LeftOut(); n != 6 {
			t.Errorf("%d were left out", n)
		}
		l.Close()
	})
}

// The number of kinds is bounded: those beyond it are one. Kinds of which nothing came for a minute make room.
func TestKindsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog(slog.LevelInfo)
		for round := range 2 {
			for i := range 10 * MaxKinds {
				l.Warn(fmt.Sprint("kind ", round, i))
			}
			if n := len(lines()); n != MaxKinds+1 {
				t.Errorf("%d lines", n)
			}
			if n := len(l.kinds); n > MaxKinds+1 {
				t.Errorf("%d kinds are kept", n)
			}
			time.Sleep(Interval)
			if n := len(lines()); n != 1 {
				t.Errorf("%d lines after a minute, want the count of the others", n)
			}
			time.Sleep(Interval)
		}
	})
}

// A line is short, whatever a stranger chose; what the program says itself is whole.
func TestLinesAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog(slog.LevelInfo)
		long := strings.Repeat("x", 1<<20)
		l.Warn("refused", "path", long, "error", errors.New(long), "stack", Own(long[:1000]))
		got := lines()
		if want := 2*MaxTextBytes + 1000 + 100; len(got) != 1 || len(got[0]) > want || len(got[0]) < want-100 {
			t.Errorf("%d lines, the first of %d bytes", len(got), len(got[0]))
		}
	})
}

// The end tells what was left out, once, and starts no timers.
func TestCloseTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog(slog.LevelInfo)
		for i := range 3 {
			l.Warn("refused", "client", i)
		}
		time.Sleep(2 * time.Second)
		lines()
		l.Close()
		expect(t, "at the end", lines(),
			`level=WARN msg="refused: and 2 more in the last 2s, of which this is the newest" client=2`)
		l.Close()
		l.Warn("refused", "client", 3)
		time.Sleep(2 * Interval)
		expect(t, "after the end", lines())
	})
}
