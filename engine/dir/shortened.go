package dir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"

	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/internal/lock"
	"penstock/segment"
	"penstock/segment/aio"
)

const (
	ShortenedFile = "shortened.json"
	// MaxShortenedBytes bounds the size of the file; a partition takes about 60 bytes.
	MaxShortenedBytes = 256 << 20
)

// Shortened is the list of this node's copies that may lack something that this node acknowledged. A copy is
// shortened if recovery cut the last group of the commit log, and nobody knows whether that group was torn by the crash
// or damaged later; or if its log ends before what was known to be committed. A shortened copy follows as any other,
// but before it leads it compares its log with another replica's (replicate/compare.go).
//
// The list is in shortened.json, because the next recovery does not see the group that was cut. A copy is removed from
// the list when its machine has all that is committed. A crash before the file says so costs one more comparison.
//
// All records of a copy may have been in the group that was cut. Recovery does not know of such a copy, which would
// begin empty and count as whole. So a recovery that cuts puts UnnamedCopies into the list, and ListUnnamed
// (engine/part) replaces it by the copies that the rows of the store name.
//
// mu guards the maps and counters, and is not held during I/O. file is held while the file is read or written, so that
// the last write stores the newest list; mu is taken inside it.
type Shortened struct {
	disk   aio.Disk
	file   lock.Mutex[lock.ShortenedFile]
	stored []byte // guarded by file: the content of the file; nil: there is none, or it could not be read

	mu        lock.Mutex[lock.Shortened]
	ids       map[segment.Identity]bool
	durable   map[segment.Identity]bool // the ids that the file has durably; empty after a write that failed
	discarded map[segment.Identity]bool // of ids: given up; the commit log may have released their batches
	version   uint64                    // incremented when discarded changes
	written   uint64                    // the version that the file has durably; <= version
	writing   bool                      // writeShortened runs
}

// UnnamedCopies stands for the copies whose records were all in the group that was cut. It is in the list from recovery
// until a process of this node has joined the cluster. No topic has this UUID.
var UnnamedCopies segment.Identity

// shortenedRow is one entry of the file, a JSON list.
type shortenedRow struct {
	Topic     uuid.UUID `json:"topic"`
	Partition uint32    `json:"partition"`
	Dropped   bool      `json:"dropped,omitempty"`
}

// NewShortened returns an empty list. Nothing of it is in the directory.
func NewShortened(disk aio.Disk) *Shortened {
	return &Shortened{disk: disk, ids: map[segment.Identity]bool{}, discarded: map[segment.Identity]bool{}}
}

// ReadShortened reads the list that earlier processes left in the directory. After an error every copy has to be taken
// for shortened.
func ReadShortened(disk aio.Disk) (*Shortened, error) {
	s := NewShortened(disk)
	data, err := disk.ReadFile(ShortenedFile, MaxShortenedBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	var rows []shortenedRow
	if err == nil {
		err = json.Unmarshal(data, &rows)
	}
	if err != nil {
		return s, fmt.Errorf("engine: cannot read %s of the data directory: %w", ShortenedFile, err)
	}
	for _, r := range rows {
		s.ids[segment.Identity{Topic: r.Topic, Partition: r.Partition}] = true
		if r.Dropped {
			s.discarded[segment.Identity{Topic: r.Topic, Partition: r.Partition}] = true
		}
	}
	s.stored, s.durable = data, maps.Clone(s.ids)
	return s, nil
}

func (s *Shortened) Has(id segment.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// IsDurable says whether the file lists the copy, so that the next process knows of it even after a crash.
func (s *Shortened) IsDurable(id segment.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durable[id]
}

func (s *Shortened) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// Add adds copies to the list and returns when the file has them durably. It takes file and mu.
func (s *Shortened) Add(ids []segment.Identity) error {
	s.mu.Lock()
	for _, id := range ids {
		s.ids[id] = true
	}
	s.mu.Unlock()
	return s.Write()
}

// SetDiscarded stores durably whether a copy is given up. true must be durable before the commit log releases batches
// that the copy's segments lack (mayReleaseFiles). false must be durable after the record of the new log is, and before
// anything is acknowledged. After an error the content of the file is not known, and the next call writes it again. It
// takes file and mu.
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

// writeLocked writes the list to the file. file is held; it takes mu.
func (s *Shortened) writeLocked() error {
	s.mu.Lock()
	rows := make([]shortenedRow, 0, len(s.ids))
	for _, id := range base.SortedPartitions(s.ids) {
		rows = append(rows, shortenedRow{id.Topic, id.Partition, s.discarded[id]})
	}
	version, kept := s.version, maps.Clone(s.ids)
	s.durable = nil
	s.mu.Unlock()
	data, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if err := s.disk.WriteFile(ShortenedFile, data); err != nil {
		return fmt.Errorf("engine: cannot write %s: %w", ShortenedFile, err)
	}
	s.stored = data
	s.mu.Lock()
	s.written, s.durable = version, kept
	s.mu.Unlock()
	return nil
}

// Forget removes the copies that are given up and that which selects, in memory. It says whether there were any. Nobody
// else uses the list yet.
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

// Replace adds the copies here, in memory, if the list has UnnamedCopies, and says how many it did not have. It removes
// those that gone selects.
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

// Remove removes a copy, in memory. With write the caller has to see to it that CatchUp is called.
func (s *Shortened) Remove(id segment.Identity) (write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
	write = !s.writing
	s.writing = true
	return write
}

// CatchUp writes the file. done says that it has the newest list, or that ended returns true; otherwise CatchUp is
// called again.
func (s *Shortened) CatchUp(ended func() bool) (done bool, err error) {
	before := s.Count() // meanwhile copies are only removed: add writes the file itself
	err = s.Write()
	s.mu.Lock()
	defer s.mu.Unlock()
	done = err == nil && len(s.ids) == before || ended()
	if done {
		s.writing = false
	}
	return done, err
}

// RemoveNow removes a copy, durably.
func (s *Shortened) RemoveNow(id segment.Identity) error {
	s.mu.Lock()
	listed := s.ids[id]
	delete(s.ids, id)
	s.mu.Unlock()
	if !listed {
		return nil
	}
	return s.Write()
}

// Scrub reads the file, and writes it anew if it differs from what this process wrote last. damaged says that it did,
// found is why it could not be read, and err why it could not be written.
func (s *Shortened) Scrub() (damaged bool, found, err error) {
	s.file.Lock()
	defer s.file.Unlock()
	data, found := s.disk.ReadFile(ShortenedFile, MaxShortenedBytes)
	if found != nil && !errors.Is(found, fs.ErrNotExist) || bytes.Equal(data, s.stored) {
		return false, nil, nil // the next round tries again
	}
	return true, found, s.writeLocked()
}
