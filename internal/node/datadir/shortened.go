package datadir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/segment"
	"penstock/segment/aio"
)

const (
	ShortenedFile = "shortened.json"
	// MaxShortenedBytes bounds the size of the file. A partition takes about 60 bytes.
	MaxShortenedBytes = 256 << 20
)

// Shortened is the list of this node's copies that may lack something that this node acknowledged. A copy is shortened
// in two cases. Either recovery cut the last group of the commit log, and nobody knows whether that group was torn by
// the crash or damaged later. Or the copy's log ends before a position that was known to be committed. A shortened copy
// follows like any other, but before it may lead, it compares its log with another replica's (replicate/compare.go).
//
// The list is stored in shortened.json, because the next recovery does not see the group that was cut. A copy is
// removed from the list when its machine has all that is committed. A crash before the file reflects the removal costs
// one more comparison.
//
// All records of a copy may have been in the group that was cut. Recovery does not know of such a copy: it would begin
// empty and count as whole. So a recovery that cuts adds UnnamedCopies to the list, and ListUnnamed
// (internal/node/partition) replaces that entry by the copies that the rows of the store name.
//
// mu guards the maps and counters, and is not held during I/O. file is held while the file is read or written, so that
// the last write stores the newest list. mu is taken inside file.
type Shortened struct {
	disk   aio.Disk
	file   lock.Mutex[lock.ShortenedFile]
	stored []byte // guarded by file: the file's content; nil: no file, or it could not be read

	mu        lock.Mutex[lock.Shortened]
	ids       map[segment.Identity]bool
	durable   map[segment.Identity]bool // the ids that the file holds durably; empty after a failed write
	discarded map[segment.Identity]bool // subset of ids: given up; the commit log may have released their batches
	version   uint64                    // incremented by SetDiscarded and RemoveNow when they change the list
	written   uint64                    // the version that the file holds durably; <= version
	writing   bool                      // a caller of Remove still has to finish CatchUp
}

// UnnamedCopies stands for the copies whose records were all in the group that was cut. It is in the list from recovery
// until a process of this node has joined the cluster. No topic has this UUID.
var UnnamedCopies segment.Identity

// shortenedRow is one entry of the file, which is a JSON list.
type shortenedRow struct {
	Topic     uuid.UUID `json:"topic"`
	Partition uint32    `json:"partition"`
	Dropped   bool      `json:"dropped,omitempty"`
}

// CopyList is the content of shortened.json, for those who have no running node. It is not safe for concurrent use.
type CopyList struct {
	ids     map[segment.Identity]bool
	dropped map[segment.Identity]bool // subset of ids
}

// NewCopyList returns an empty list.
func NewCopyList() *CopyList {
	return &CopyList{map[segment.Identity]bool{}, map[segment.Identity]bool{}}
}

func (l *CopyList) Add(id segment.Identity) { l.ids[id] = true }
func (l *CopyList) Len() int                { return len(l.ids) }

// Decode adds the copies of a file.
func (l *CopyList) Decode(data []byte) error {
	var rows []shortenedRow
	if err := json.Unmarshal(data, &rows); err != nil {
		return err
	}
	for _, r := range rows {
		id := segment.Identity{Topic: r.Topic, Partition: r.Partition}
		l.Add(id)
		if r.Dropped {
			l.dropped[id] = true
		}
	}
	return nil
}

// Encode returns the content of the file.
func (l *CopyList) Encode() ([]byte, error) {
	rows := make([]shortenedRow, 0, len(l.ids))
	for _, id := range slices.SortedFunc(maps.Keys(l.ids), segment.Identity.Compare) {
		rows = append(rows, shortenedRow{id.Topic, id.Partition, l.dropped[id]})
	}
	data, err := json.Marshal(rows)
	return append(data, '\n'), err
}

// NewShortened returns an empty list. It reads and writes nothing.
func NewShortened(disk aio.Disk) *Shortened {
	return &Shortened{disk: disk, ids: map[segment.Identity]bool{}, discarded: map[segment.Identity]bool{}}
}

// ReadShortened reads the list that earlier processes left in the directory. After an error the caller must treat every
// copy as shortened.
func ReadShortened(disk aio.Disk) (*Shortened, error) {
	s := NewShortened(disk)
	data, err := disk.ReadFile(ShortenedFile, MaxShortenedBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	list := CopyList{s.ids, s.discarded}
	if err == nil {
		err = list.Decode(data)
	}
	if err != nil {
		return s, fmt.Errorf("engine: cannot read %s of the data directory: %w", ShortenedFile, err)
	}
	s.stored, s.durable = data, maps.Clone(s.ids)
	return s, nil
}

// Has says whether the list contains the copy. It takes mu.
func (s *Shortened) Has(id segment.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// IsDurable says whether the file durably lists the copy, so that the next process knows of the copy even after a
// crash.
func (s *Shortened) IsDurable(id segment.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durable[id]
}

// Count returns the number of entries of the list. It takes mu.
func (s *Shortened) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

func (s *Shortened) Add(ids []segment.Identity) error {
	s.mu.Lock()
	for _, id := range ids {
		s.ids[id] = true
	}
	s.mu.Unlock()
	return s.Write()
}

// SetDiscarded durably stores whether a copy is given up. true must be durable before the commit log releases batches
// that the copy's segments lack (mayReleaseFiles). false must be stored after the record of the new log is durable, and
// must itself be durable before anything is acknowledged. After an error the content of the file is unknown, and the
// next call writes it again. SetDiscarded takes file and mu.
func (s *Shortened) SetDiscarded(id segment.Identity, discarded bool) error {
	s.mu.Lock()
	if s.discarded[id] != discarded {
		s.version++
	}
	if discarded {
		s.ids[id], s.discarded[id] = true, true
	} else {
		delete(s.discarded, id)
	}
	durable := s.written == s.version
	s.mu.Unlock()
	if durable {
		return nil
	}
	return s.Write()
}

// IsDiscarded says whether the copy is given up. It takes mu.
func (s *Shortened) IsDiscarded(id segment.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.discarded[id]
}

// Write writes the list to the file. It takes file and mu.
func (s *Shortened) Write() error {
	s.file.Lock()
	defer s.file.Unlock()
	return s.writeLocked()
}

// writeLocked writes the list to the file. The caller holds file; writeLocked takes mu.
func (s *Shortened) writeLocked() error {
	s.mu.Lock()
	list := CopyList{maps.Clone(s.ids), maps.Clone(s.discarded)}
	version, kept := s.version, list.ids
	s.durable = nil
	s.mu.Unlock()
	data, err := list.Encode()
	if err != nil {
		return err
	}
	if err := s.disk.WriteFile(ShortenedFile, data); err != nil {
		return fmt.Errorf("engine: cannot write %s: %w", ShortenedFile, err)
	}
	s.stored = data
	s.mu.Lock()
	s.written, s.durable = version, kept
	s.mu.Unlock()
	return nil
}

// Forget removes, in memory, the copies that are given up and for which which returns true. It says whether there were
// any. No other goroutine uses the list yet.
func (s *Shortened) Forget(which func(segment.Identity) bool) (any bool) {
	for id := range s.discarded {
		if which(id) {
			any = true
			delete(s.ids, id)
			delete(s.discarded, id)
		}
	}
	return any
}

// Replace updates the list in memory. If the list has UnnamedCopies, Replace adds the copies in here; named is the
// number of copies that it added. It also removes the copies for which gone returns true.
func (s *Shortened) Replace(
	here iter.Seq[segment.Identity], gone func(segment.Identity) bool,
) (unnamed bool, named int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unnamed = s.ids[UnnamedCopies]
	for id := range here {
		if unnamed && !s.ids[id] {
			s.ids[id] = true
			named++
		}
	}
	for id := range s.ids {
		if gone(id) {
			delete(s.ids, id)
		}
	}
	return unnamed, named
}

// Remove removes a copy, in memory. If write is true, the caller must see to it that CatchUp is called.
func (s *Shortened) Remove(id segment.Identity) (write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
	write = !s.writing
	s.writing = true
	return write
}

// CatchUp writes the file. done says that the file holds the newest list, or that ended returned true. If done is
// false, the caller must call CatchUp again.
func (s *Shortened) CatchUp(ended func() bool) (done bool, err error) {
	before := s.Count() // meanwhile, copies are only removed: Add writes the file itself
	err = s.Write()
	s.mu.Lock()
	defer s.mu.Unlock()
	done = err == nil && len(s.ids) == before || ended()
	if done {
		s.writing = false
	}
	return done, err
}

// RemoveNow removes a copy durably. After an error the content of the file is unknown, and the next call writes it
// again. It takes file and mu.
func (s *Shortened) RemoveNow(id segment.Identity) error {
	s.mu.Lock()
	if s.ids[id] {
		delete(s.ids, id)
		s.version++
	}
	durable := s.written == s.version
	s.mu.Unlock()
	if durable {
		return nil
	}
	return s.Write()
}

// Scrub reads the file, and rewrites it if it differs from what this process wrote last. damaged says that it differed,
// found says why the file could not be read, and err says why it could not be rewritten.
func (s *Shortened) Scrub() (damaged bool, found, err error) {
	s.file.Lock()
	defer s.file.Unlock()
	data, found := s.disk.ReadFile(ShortenedFile, MaxShortenedBytes)
	if found != nil && !errors.Is(found, fs.ErrNotExist) || bytes.Equal(data, s.stored) {
		return false, nil, nil // the next round tries again
	}
	return true, found, s.writeLocked()
}
