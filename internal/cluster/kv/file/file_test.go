package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/kvtest"
)

func TestConformance(t *testing.T) {
	var s *Store
	kvtest.Run(t, kvtest.Backend{
		Open: func(t *testing.T, clients int) []kv.Store {
			s = open(t, filepath.Join(t.TempDir(), "meta"))
			return slices.Repeat([]kv.Store{s}, clients)
		},
		Compact:  func(*testing.T) { s.m.Compact() },
		LeaseTTL: 100 * time.Millisecond,
	})
}

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func write(t *testing.T, s *Store, ops ...kv.Op) int64 {
	t.Helper()
	ok, rev, err := s.Txn(t.Context(), nil, ops)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	return rev
}

func list(t *testing.T, s *Store) string {
	t.Helper()
	entries, _, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%s=%q@%d ", e.Key, e.Value, e.ModRevision)
	}
	return b.String()
}

// Answered transactions are there after a restart, with their revisions. Keys with leases are not, and no revision is
// used twice.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := open(t, path)
	write(t, s, kv.Op{Key: "a", Value: []byte("1")}, kv.Op{Key: "bin", Value: []byte{0, 255, '\n'}}, kv.Op{Key: "empty"})
	lease, err := s.Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, kv.Op{Key: "gone", Value: []byte("1")}, kv.Op{Key: "leased before", Value: []byte("1")})
	write(t, s, kv.Op{Key: "gone", Delete: true}, kv.Op{Key: "live", Lease: lease}, kv.Op{
		Key: "leased before", Lease: lease,
	})
	last := write(t, s, kv.Op{Key: "live", Value: []byte("2"), Lease: lease})
	for range 2 { // the second time from a file without a journal
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, path)
		if got, want := list(t, s), `a="1"@2 bin="\x00\xff\n"@2 empty=""@2 `; got != want {
			t.Fatalf("reopened: %s, want %s", got, want)
		}
		if _, rev, _ := s.List(t.Context(), ""); rev != last {
			t.Fatalf("it is at revision %d, want %d", rev, last)
		}
	}
	if next := write(t, s, kv.Op{Key: "a"}); next != last+1 {
		t.Errorf("revision %d follows %d", next, last)
	}
}

func TestOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := open(t, path)
	if other, err := Open(path); err == nil {
		_ = other.Close()
		t.Fatal("it is open twice")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path)
}

// A crash at any byte of the journal leaves the transactions before that byte, each of them whole.
func TestTornTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := open(t, path)
	base := int(s.base)
	ends, states := []int{base}, []string{list(t, s)}
	for i := range 5 {
		write(t, s, kv.Op{Key: fmt.Sprint(i), Value: []byte("x")}, kv.Op{Key: "n", Value: fmt.Append(nil, i)})
		ends, states = append(ends, int(s.size)), append(states, list(t, s))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tail := range []string{"", "\x00\x00\x00", "00000000 {}\n"} {
		for size := base; size <= len(data); size++ {
			torn := append(slices.Clone(data[:size]), tail...)
			if err := os.WriteFile(path, torn, 0o600); err != nil {
				t.Fatal(err)
			}
			whole := 0
			for whole+1 < len(ends) && ends[whole+1] <= size {
				whole++
			}
			s := open(t, path)
			if got := list(t, s); got != states[whole] {
				t.Fatalf("cut at %d of %d: %s, want %s", size, len(data), got, states[whole])
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Damage before the last line is distinguished from a torn end, and nothing is changed.
func TestCorrupt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := open(t, path)
	for i := range 3 {
		write(t, s, kv.Op{Key: fmt.Sprint(i), Value: []byte("x")})
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	lastLine := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	for at := range lastLine {
		bad := slices.Clone(data)
		bad[at] ^= 0x04
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(path); !errors.Is(err, ErrCorrupt) {
			if err == nil {
				_ = s.Close()
			}
			t.Fatalf("a bit of byte %d: %v", at, err)
		}
		if now, _ := os.ReadFile(path); !bytes.Equal(now, bad) {
			t.Fatal("the damaged file was changed")
		}
	}
	newer := appendLine(nil, &line{Format: formatVersion + 1, Revision: 1})
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "newer") {
		t.Errorf("a newer format: %v", err)
	}
}

// The file does not grow without limit.
func TestRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := open(t, path)
	value := bytes.Repeat([]byte{'x'}, 100<<10)
	for range 40 {
		write(t, s, kv.Op{Key: "k", Value: value})
	}
	last := write(t, s, kv.Op{Key: "l", Value: []byte("1")})
	if info, err := os.Stat(path); err != nil || info.Size() > 2*minJournalBytes {
		t.Fatalf("the file has %d bytes, %v", info.Size(), err)
	}
	want := list(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	if list(t, s) != want || write(t, s, kv.Op{Key: "k"}) != last+1 {
		t.Error("something was lost")
	}
}

// After a failed write no change is accepted, nothing of that write is visible, and existing entries can be read.
func TestDiskFails(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "meta"))
	write(t, s, kv.Op{Key: "a"})
	before := list(t, s)
	readOnly, err := os.Open(s.path)
	if err != nil {
		t.Fatal(err)
	}
	whole := s.f
	s.f = readOnly
	for range 2 { // the disk works again before the second one
		if ok, _, err := s.Txn(context.Background(), nil, []kv.Op{{Key: "b"}}); ok || !errors.Is(err, kv.ErrUnavailable) {
			t.Fatal(ok, err)
		}
		s.f = whole
	}
	if got := list(t, s); got != before {
		t.Errorf("%s, want %s", got, before)
	}
	_ = readOnly.Close()
}

func FuzzLoad(f *testing.F) {
	good := appendLine(nil, &line{Format: 1, Revision: 7})
	f.Add(appendLine(good, &line{Revision: 8, Ops: []edit{editOf("k", []byte("v")), {Key: "d", Delete: true}}}))
	f.Add([]byte("00000000 {}\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &Store{entries: map[string]kv.Entry{}}
		if s.load(data) != nil {
			return
		}
		// A file that was read is written again and reads the same.
		again := &Store{entries: map[string]kv.Entry{}}
		if err := again.load(s.encode()); err != nil {
			t.Fatal(err)
		}
		if again.revision != s.revision || len(again.entries) != len(s.entries) {
			t.Fatalf("revision %d with %d entries became %d with %d",
				s.revision, len(s.entries), again.revision, len(again.entries))
		}
		for k, e := range s.entries {
			if o := again.entries[k]; o.ModRevision != e.ModRevision && e.ModRevision != 0 || !bytes.Equal(o.Value, e.Value) {
				t.Fatalf("%q: %+v became %+v", k, e, o)
			}
		}
	})
}
