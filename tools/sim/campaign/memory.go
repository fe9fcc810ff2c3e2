package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Span is a range of seeds.
type Span struct {
	From, To uint64 // half-open
	Version  string // of the code that ran them; one word
}

// Memory is the file of the seeds that campaigns on this machine have taken. A campaign takes a span before it runs
// the seeds in it. So a process that ends early leaves some seeds out, and none is run twice. Several processes
// may share the file: they lock FILE.lock while they read and replace it. A crash leaves the old file or the new one.
type Memory struct {
	path string // empty: the seeds are kept in this process only

	mu    sync.Mutex // guards spans
	spans []Span     // in the order in which they were taken
}

// maxSpans is how many spans the file keeps, the newest ones. Seeds are taken upwards, so the newest say what is next.
const maxSpans = 200

// fileHead explains the file to those who open it.
const fileHead = "# Seeds that campaigns of tools/sim have taken here: from-to, half-open, and the code's version.\n"

// NewMemory returns the memory that the file path holds. The file need not exist. Without a path nothing is stored.
func NewMemory(path string) *Memory { return &Memory{path: path} }

// DefaultPath is the memory's file in the cache directory of the user; empty if there is no such directory.
func DefaultPath() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "penstock", "sim-seeds.txt")
}

// Take returns the next count seeds that no campaign has taken. Any goroutine may call it.
func (m *Memory) Take(count uint64, version string) (Span, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.path == "" {
		return m.add(count, version, false), nil
	}
	if err := os.MkdirAll(filepath.Dir(m.path), 0o755); err != nil {
		return Span{}, err
	}
	lock, err := os.OpenFile(m.path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return Span{}, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return Span{}, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	text, err := os.ReadFile(m.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Span{}, err
	}
	damaged := false
	m.spans, damaged = parse(text)
	s := m.add(count, version, damaged)
	return s, m.write()
}

// add appends a span of count seeds: behind the last one, or at a random place if there is none or the file is
// damaged, as what was lost may have said more.
func (m *Memory) add(count uint64, version string, damaged bool) Span {
	s := Span{From: randomBase(), Version: version}
	if n := len(m.spans); n > 0 && !damaged {
		s.From = m.spans[n-1].To
	}
	for again := true; again; {
		again = false
		s.To = s.From + count
		for _, o := range m.spans {
			if o.From < s.To && s.From < o.To {
				s.From, again = o.To, true
			}
		}
		s.To = s.From + count
	}
	m.spans = merge(append(m.spans, s))
	return s
}

// merge joins spans of one version where one begins at the end of the one before, and drops the oldest beyond maxSpans.
func merge(spans []Span) []Span {
	var out []Span
	for _, s := range spans {
		if n := len(out); n > 0 && out[n-1].To == s.From && out[n-1].Version == s.Version {
			out[n-1].To = s.To
			continue
		}
		out = append(out, s)
	}
	return out[max(0, len(out)-maxSpans):]
}

// randomBase is where a machine without a memory begins: above all seeds that tests and testdata name, with 9 to 15
// digits that a person can still copy.
func randomBase() uint64 {
	const step, least, most = 1_000_000, 1_000, 1_000_000_000
	return step * (least + rand.Uint64N(most-least))
}

// parse reads the lines that are whole. A last line without its end was cut off: its numbers may lack digits.
func parse(text []byte) (spans []Span, damaged bool) {
	for line := range bytes.Lines(text) {
		s := Span{}
		whole := bytes.HasSuffix(line, []byte("\n"))
		clean := strings.TrimSpace(string(line))
		if whole && (clean == "" || strings.HasPrefix(clean, "#")) {
			continue
		}
		n, err := fmt.Sscanf(clean, "%d-%d %s", &s.From, &s.To, &s.Version)
		if !whole || n != 3 || err != nil || s.From >= s.To {
			damaged = true
			continue
		}
		spans = append(spans, s)
	}
	return spans, damaged
}

// write replaces the file.
func (m *Memory) write() error {
	b := []byte(fileHead)
	for _, s := range m.spans {
		b = fmt.Appendf(b, "%d-%d %s\n", s.From, s.To, s.Version)
	}
	next := m.path + ".new"
	if err := os.WriteFile(next, b, 0o644); err != nil {
		return err
	}
	return os.Rename(next, m.path)
}
