package kvfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"unicode/utf8"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Store is the only client of the file. It implements kv.Store. The map's lock guards entries and revision: the map
// calls journal with it held.
type Store struct {
	*memory.Store
	m        *memory.Map
	f        *os.File
	entries  map[string]kv.Entry // those without a lease, which outlive the process
	revision int64
}

type line struct {
	Format   int    `json:"format,omitempty"`
	Revision int64  `json:"revision"`
	Ops      []edit `json:"ops,omitempty"`
}

type edit struct {
	Key    string  `json:"key"`
	Text   *string `json:"text,omitempty"`
	Bytes  []byte  `json:"bytes,omitempty"`
	Delete bool    `json:"delete,omitempty"`
	Mod    int64   `json:"mod,omitempty"`
}

// Open opens a file, or creates it. No other process may have it open.
func Open(path string) (*Store, error) {
	s := &Store{entries: map[string]kv.Entry{}, revision: 1}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for n := 1; len(data) > 0; n++ {
		var l line
		text, rest, complete := bytes.Cut(data, []byte{'\n'})
		if err := parse(text, &l); err != nil && len(rest) > 0 {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		} else if err == nil && complete {
			s.replay(&l)
		}
		data = rest
	}
	if err := s.rewrite(path); err != nil {
		return nil, err
	}
	s.m = memory.New(memory.Options{
		Entries: slices.Collect(maps.Values(s.entries)), Revision: s.revision, Journal: s.journal,
	})
	s.Store = s.m.Store()
	return s, nil
}

func parse(text []byte, l *line) error {
	sum, body, _ := bytes.Cut(text, []byte{' '})
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || crc32.Checksum(body, castagnoli) != uint32(want) {
		return errors.New("kv: the line is damaged")
	}
	return json.Unmarshal(body, l)
}

func (s *Store) replay(l *line) {
	s.revision = l.Revision
	for _, e := range l.Ops {
		if e.Delete {
			delete(s.entries, e.Key)
			continue
		}
		entry := kv.Entry{Key: e.Key, Value: e.Bytes, ModRevision: l.Revision}
		if e.Mod != 0 {
			entry.ModRevision = e.Mod
		}
		if e.Text != nil {
			entry.Value = []byte(*e.Text)
		}
		s.entries[e.Key] = entry
	}
}

func appendLine(b []byte, l *line) []byte {
	text, err := json.Marshal(l)
	if err != nil {
		panic("BUG: a line cannot be encoded: " + err.Error())
	}
	b = fmt.Appendf(b, "%08x ", crc32.Checksum(text, castagnoli))
	return append(append(b, text...), '\n')
}

func editOf(key string, value []byte) edit {
	if utf8.Valid(value) {
		text := string(value)
		return edit{Key: key, Text: &text}
	}
	return edit{Key: key, Bytes: value}
}

// rewrite replaces the file by one without a journal. A crash leaves either the old file or the new one in place.
func (s *Store) rewrite(path string) (err error) {
	b := appendLine(nil, &line{Format: 1, Revision: s.revision})
	for key, entry := range s.entries {
		e := editOf(key, entry.Value)
		e.Mod = entry.ModRevision
		b = appendLine(b, &line{Revision: s.revision, Ops: []edit{e}})
	}
	if s.f, err = os.Create(path + ".new"); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	_, err = s.f.Write(b)
	return errors.Join(err, s.f.Sync(), os.Rename(path+".new", path), dir.Sync())
}

// journal makes a revision durable.
func (s *Store) journal(revision int64, ops []kv.Op) error {
	l := line{Revision: revision}
	for _, op := range ops {
		_, kept := s.entries[op.Key]
		switch {
		case !op.Delete && op.Lease == 0:
			l.Ops = append(l.Ops, editOf(op.Key, op.Value))
		case kept:
			l.Ops = append(l.Ops, edit{Key: op.Key, Delete: true})
		}
	}
	_, err := s.f.Write(appendLine(nil, &l))
	if err = errors.Join(err, s.f.Sync()); err != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	s.replay(&l)
	return nil
}

// Close ends all calls and watches. It may be called again.
func (s *Store) Close() error {
	err := s.Store.Close()
	s.m.Close() // it waits for the map's lock: from here on journal does not run
	if closing := s.f.Close(); !errors.Is(closing, os.ErrClosed) {
		err = errors.Join(err, closing)
	}
	return err
}

var _ kv.Store = (*Store)(nil)
