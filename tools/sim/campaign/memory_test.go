package campaign

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func take(t *testing.T, m *Memory, count uint64, version string) Span {
	t.Helper()
	s, err := m.Take(count, version)
	if err != nil {
		t.Fatal(err)
	}
	if s.To-s.From != count || s.From < 1_000_000_000 {
		t.Fatalf("took %d-%d for %d seeds", s.From, s.To, count)
	}
	return s
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The next campaign goes on where the last one ended. Ranges of one version are one line.
func TestMemoryGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "seeds.txt")
	first := take(t, NewMemory(path), 100, "v1")
	for _, version := range []string{"v1", "v2", "v2"} {
		if s := take(t, NewMemory(path), 50, version); s.From != first.To {
			t.Fatalf("%d-%d came behind %d", s.From, s.To, first.To)
		} else {
			first.To = s.To
		}
	}
	if text := read(t, path); strings.Count(text, "\n") != 3 || !strings.Contains(text, " v1\n") ||
		!strings.Contains(text, " v2\n") {
		t.Errorf("the file is\n%s", text)
	}
}

// Without a file every process begins elsewhere, and never takes a seed twice itself.
func TestWithoutMemory(t *testing.T) {
	m := NewMemory("")
	a, b := take(t, m, 1000, "v"), take(t, m, 1000, "v")
	if a.To != b.From {
		t.Errorf("%v, then %v", a, b)
	}
	if c := take(t, NewMemory(""), 1000, "v"); c.From == a.From {
		t.Errorf("two processes begin at %d", c.From)
	}
}

// What is whole in a damaged file is kept; the next seeds are at another place, as what was lost may have named more.
func TestDamagedMemory(t *testing.T) {
	for name, text := range map[string]string{
		"cut in a number":  "# head\n5000000000-5000001000 v1\n5000001000-50000",
		"cut before a end": "5000000000-5000001000 v1\n5000001000-5000009000 v",
		"not a range":      "5000000000-5000001000 v1\nabc\n",
		"backwards":        "5000000000-5000001000 v1\n7-3 v1\n",
		"zeros":            "5000000000-5000001000 v1\n" + string(make([]byte, 100)),
	} {
		path := filepath.Join(t.TempDir(), "seeds.txt")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		s := take(t, NewMemory(path), 100, "v2")
		if s.From == 5000001000 {
			t.Errorf("%s: goes on as if nothing were lost", name)
		}
		if spans, damaged := parse([]byte(read(t, path))); damaged || len(spans) != 2 || spans[0].To != 5000001000 {
			t.Errorf("%s: the file has %v", name, spans)
		}
		if next := take(t, NewMemory(path), 100, "v2"); next.From != s.To {
			t.Errorf("%s: %v came behind %v", name, next, s)
		}
	}
	spans, damaged := parse([]byte("# only a head\n\n"))
	if len(spans) != 0 || damaged {
		t.Errorf("a file without ranges has %v, damaged %v", spans, damaged)
	}
}

// A span goes around what others have.
func TestSpansDoNotMeet(t *testing.T) {
	m := &Memory{spans: []Span{{2000, 3000, "a"}, {1500, 1600, "b"}, {1000, 1400, "c"}}}
	if s := m.add(150, "c", false); s.From != 1600 || s.To != 1750 {
		t.Errorf("150 seeds were taken at %d-%d", s.From, s.To)
	}
	if s := m.add(300, "c", false); s.From != 3000 {
		t.Errorf("300 seeds were taken at %d-%d", s.From, s.To)
	}
	m = &Memory{}
	for i := range uint64(3 * maxSpans) {
		m.add(10, string(rune('a'+i%2)), false)
	}
	if len(m.spans) != maxSpans {
		t.Errorf("%d spans are kept", len(m.spans))
	}
}

// Two processes share a file at once: this test runs itself twice.
func TestTwoProcesses(t *testing.T) {
	const rounds, count = 60, 7
	if path := os.Getenv("TEST_CAMPAIGN_MEMORY"); path != "" {
		for range rounds {
			take(t, NewMemory(path), count, "v")
		}
		return
	}
	path := filepath.Join(t.TempDir(), "seeds.txt")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestTwoProcesses$")
			cmd.Env = append(os.Environ(), "TEST_CAMPAIGN_MEMORY="+path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	all.Wait()
	spans, damaged := parse([]byte(read(t, path)))
	sum := uint64(0)
	for _, s := range spans {
		sum += s.To - s.From
	}
	if damaged || sum != 3*rounds*count || len(spans) != 1 {
		t.Errorf("three processes took %d seeds: %v", sum, spans)
	}
}

// Goroutines of one process share a memory without a file.
func TestManyGoroutines(t *testing.T) {
	m := NewMemory("")
	var mu sync.Mutex
	var from []uint64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			s, err := m.Take(3, "v")
			mu.Lock()
			defer mu.Unlock()
			if from = append(from, s.From); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	slices.Sort(from)
	if len(slices.Compact(from)) != 50 {
		t.Error("two goroutines got the same seeds")
	}
}
