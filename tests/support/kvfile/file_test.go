package kvfile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/tests/support/kvtest"
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

// A crash at any byte of the journal leaves the transactions before that byte, each of them whole.
func TestTornTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta")
	s := open(t, path)
	size := func() int {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return int(info.Size())
	}
	base := size()
	ends, states := []int{base}, []string{list(t, s)}
	for i := range 5 {
		write(t, s, kv.Op{Key: fmt.Sprint(i), Value: []byte("x")}, kv.Op{Key: "n", Value: fmt.Append(nil, i)})
		ends, states = append(ends, size()), append(states, list(t, s))
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
