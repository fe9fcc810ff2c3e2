// Package file is a kv.Store in one file, for a single node: the metadata of a cluster of one. It is package memory
// with a journal: a transaction is answered when its line is on stable storage.
//
// # Format
//
// The file is text, with one line for each revision:
//
//	8 hex digits, a space, JSON, a newline
//
// The digits are the CRC-32C of the JSON. The first line is {"format":1,"revision":R}, where R is the revision of the
// map when the file was last rewritten. The entries of that time follow, as writes, with the revision of their last
// change in "mod". The journal follows the entries. A write is {"key":K,"text":V}, or "bytes" in base64 if the value is
// not UTF-8, or {"key":K,"delete":true}. Keys with a lease are not kept: the process that held the lease is gone. A
// transaction of such keys alone leaves a line without writes, so that no revision is used twice.
//
// A crash may leave the last line incomplete: its transaction was not answered. A bad line with a good one behind it is
// damage, and then the file is not opened. When the journal has grown large, a new file is written beside the old one
// and renamed over it.
package file

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

	"golang.org/x/sys/unix"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
)

const (
	formatVersion   = 1
	minJournalBytes = 1 << 20 // the journal may always grow to this; beyond, to four times the size of the entries
	entriesPerLine  = 64
)

// ErrCorrupt says that the file is damaged. Nothing in it was changed.
var ErrCorrupt = errors.New("kv: the metadata file is damaged: nothing was changed; put a copy in its place")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Store is the only client of the file. It implements kv.Store.
type Store struct {
	*memory.Store
	m    *memory.Map
	path string
	lock *os.File

	// The map's lock guards the fields below: the map calls journal with it held. Close uses them when journal is
	// called no more.
	f       *os.File
	entries map[string]kv.Entry // entries without a lease, which outlive the process
	base    int64               // size of the file when it was last rewritten
	// size is the present size of the file.
	size     int64
	failed   error // the first failed write; nothing is written after it
	closed   bool
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

// Open opens a file, or creates it. Only one process can have it open.
func Open(path string) (*Store, error) {
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, lock: lock, entries: map[string]kv.Entry{}}
	if err := s.open(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	s.m = memory.New(memory.Options{
		Entries: slices.Collect(maps.Values(s.entries)), Revision: s.revision, Journal: s.journal,
	})
	s.Store = s.m.Store("file")
	return s, nil
}

func (s *Store) open() error {
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("kv: the metadata file %s is open in another process: %w", s.path, err)
	}
	data, err := os.ReadFile(s.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := s.load(data); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return s.rewrite()
}

// load reads the lines of a file into s.
func (s *Store) load(data []byte) error {
	bad := 0
	for n := 1; len(data) > 0; n++ {
		text, rest, complete := bytes.Cut(data, []byte{'\n'})
		data = rest
		l, ok := parse(text)
		switch {
		case !ok || !complete:
			if bad == 0 {
				bad = n
			}
			if hidesLine(text) {
				return fmt.Errorf("line %d is unreadable and has another in it: %w", n, ErrCorrupt)
			}
		case bad != 0:
			return fmt.Errorf("line %d is unreadable and line %d is not: %w", bad, n, ErrCorrupt)
		case (n == 1) != (l.Format != 0):
			return fmt.Errorf("line %d is not where it belongs: %w", n, ErrCorrupt)
		case l.Format > formatVersion:
			return fmt.Errorf("kv: it has format %d, and this program knows formats up to %d: use a newer one",
				l.Format, formatVersion)
		case l.Revision < s.revision:
			return fmt.Errorf("line %d is older than the one before it: %w", n, ErrCorrupt)
		default:
			s.replay(&l)
		}
	}
	if bad == 1 {
		// A file is complete when it is renamed into its place, so its first line cannot have been torn.
		return fmt.Errorf("its first line is unreadable: %w", ErrCorrupt)
	}
	return nil
}

func parse(text []byte) (line, bool) {
	var l line
	if len(text) < 10 || text[8] != ' ' {
		return l, false
	}
	sum, err := strconv.ParseUint(string(text[:8]), 16, 32)
	if err != nil || crc32.Checksum(text[9:], castagnoli) != uint32(sum) {
		return l, false
	}
	return l, json.Unmarshal(text[9:], &l) == nil
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

// hidesLine says whether a bad line ends with a good one. If so, the newline between the two is damaged, and no write
// was torn.
func hidesLine(text []byte) bool {
	for i := 1; i+10 <= len(text); i++ {
		if text[i+8] == ' ' && text[i+9] == '{' {
			if _, ok := parse(text[i:]); ok {
				return true
			}
		}
	}
	return false
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

// encode returns the content of a file with the entries and without a journal.
func (s *Store) encode() []byte {
	b := appendLine(nil, &line{Format: formatVersion, Revision: s.revision})
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(s.entries)), entriesPerLine) {
		l := line{Revision: s.revision}
		for _, k := range keys {
			e := editOf(k, s.entries[k].Value)
			e.Mod = s.entries[k].ModRevision
			l.Ops = append(l.Ops, e)
		}
		b = appendLine(b, &l)
	}
	return b
}

// rewrite replaces the file by one without a journal. A crash leaves either the old file or the new one in place.
func (s *Store) rewrite() error {
	s.revision = max(s.revision, 1)
	b := s.encode()
	next := s.path + ".new"
	f, err := os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(next, s.path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(s.path))
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	if s.f != nil {
		_ = s.f.Close()
	}
	s.f, s.base, s.size = f, int64(len(b)), int64(len(b))
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// journal makes a revision durable. After a failed write the content of the file is unknown, so nothing more is written
// to it; the next Open finds out.
func (s *Store) journal(revision int64, ops []kv.Op) error {
	if s.closed {
		return kv.ErrClosed
	}
	if s.failed == nil {
		s.failed = s.write(revision, ops)
	}
	if s.failed != nil {
		return fmt.Errorf("%w: the metadata file %s could not be written: no change is taken any more; see to the disk and "+
			"restart: %w", kv.ErrUnavailable, s.path, s.failed)
	}
	return nil
}

func (s *Store) write(revision int64, ops []kv.Op) error {
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
	b := appendLine(nil, &l)
	if s.size-s.base+int64(len(b)) > max(minJournalBytes, 4*s.base) {
		s.replay(&l)
		return s.rewrite()
	}
	if _, err := s.f.WriteAt(b, s.size); err != nil {
		return err
	}
	if err := unix.Fdatasync(int(s.f.Fd())); err != nil {
		return err
	}
	s.size += int64(len(b))
	s.replay(&l)
	return nil
}

// Close ends all calls and watches, and releases the file for the next process.
func (s *Store) Close() error {
	err := s.Store.Close()
	s.m.Close() // it waits for the map's lock: from here on journal does not run
	if s.closed {
		return err
	}
	s.closed = true
	return errors.Join(err, s.f.Close(), s.lock.Close())
}

var _ kv.Store = (*Store)(nil)
