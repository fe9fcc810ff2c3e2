package engine

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
	shortenedFile = "shortened.json"
	// maxShortenedBytes bounds the size of the file; a partition takes about 60 bytes.
	maxShortenedBytes = 256 << 20
)

// shortenedCopies is the list of this node's copies that may lack something that this node acknowledged. A copy is
// shortened if recovery cut the last group of the commit log, and nobody knows whether that group was torn by the crash
// or damaged later; or if its log ends before what was known to be committed. A shortened copy follows as any other,
// but before it leads it compares its log with another replica's (replicate/compare.go).
//
// The list is in shortened.json, because the next recovery does not see the group that was cut. A copy is removed from
// the list when its machine has all that is committed. A crash before the file says so costs one more comparison.
//
// All records of a copy may have been in the group that was cut. Recovery does not know of such a copy, which would
// begin empty and count as whole. So a recovery that cuts puts unnamedCopies into the list, and listUnnamed replaces it
// by the copies that the rows of the store name.
//
// mu guards the maps and counters, and is not held during I/O. file is held while the file is read or written, so that
// the last write stores the newest list; mu is taken inside it.
type shortenedCopies struct {
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

// unnamedCopies stands for the copies whose records were all in the group that was cut. It is in the list from recovery
// until a process of this node has joined the cluster. No topic has this UUID.
var unnamedCopies segment.Identity

// shortenedRow is one entry of the file, a JSON list.
type shortenedRow struct {
	Topic     uuid.UUID `json:"topic"`
	Partition uint32    `json:"partition"`
	Dropped   bool      `json:"dropped,omitempty"`
}

// newShortened returns an empty list. Nothing of it is in the directory.
func newShortened(disk aio.Disk) *shortenedCopies {
	return &shortenedCopies{disk: disk, ids: map[segment.Identity]bool{}, discarded: map[segment.Identity]bool{}}
}

// readShortened reads the list that earlier processes left in the directory. After an error every copy has to be taken
// for shortened.
func readShortened(disk aio.Disk) (*shortenedCopies, error) {
	s := newShortened(disk)
	data, err := disk.ReadFile(shortenedFile, maxShortenedBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	var rows []shortenedRow
	if err == nil {
		err = json.Unmarshal(data, &rows)
	}
	if err != nil {
		return s, fmt.Errorf("engine: cannot read %s of the data directory: %w", shortenedFile, err)
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

func (s *shortenedCopies) has(id segment.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// isDurable says whether the file lists the copy, so that the next process knows of it even after a crash.
func (s *shortenedCopies) isDurable(id segment.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durable[id]
}

func (s *shortenedCopies) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// add adds copies to the list and returns when the file has them durably. It takes file and mu.
func (s *shortenedCopies) add(ids []segment.Identity) error {
	s.mu.Lock()
	for _, id := range ids {
		s.ids[id] = true
	}
	s.mu.Unlock()
	return s.write()
}

// setDiscarded stores durably whether a copy is given up. true must be durable before the commit log releases batches
// that the copy's segments lack (mayReleaseFiles). false must be durable after the record of the new log is, and before
// anything is acknowledged. After an error the content of the file is not known, and the next call writes it again. It
// takes file and mu.
func (s *shortenedCopies) setDiscarded(id segment.Identity, discarded bool) error {
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
	return s.write()
}

func (s *shortenedCopies) isDiscarded(id segment.Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.discarded[id]
}

// write writes the list to the file. It takes file and mu.
func (s *shortenedCopies) write() error {
	s.file.Lock()
	defer s.file.Unlock()
	return s.writeLocked()
}

// writeLocked writes the list to the file. file is held; it takes mu.
func (s *shortenedCopies) writeLocked() error {
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
	if err := s.disk.WriteFile(shortenedFile, data); err != nil {
		return fmt.Errorf("engine: cannot write %s: %w", shortenedFile, err)
	}
	s.stored = data
	s.mu.Lock()
	s.written, s.durable = version, kept
	s.mu.Unlock()
	return nil
}

// forget removes the copies that are given up and that which selects, in memory. It says whether there were any. Nobody
// else uses the list yet.
func (s *shortenedCopies) forget(which func(segment.Identity) bool) (any bool) {
	for id := range s.discarded {
		if which(id) {
			any = true
			delete(s.ids, id)
			delete(s.discarded, id)
		}
	}
	return any
}

// name adds the copies here, in memory, if the list has unnamedCopies, and says how many it did not have. It removes
// those that gone selects.
func (s *shortenedCopies) name(here iter.Seq[segment.Identity], gone func(segment.Identity) bool) (unnamed bool, named int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unnamed = s.ids[unnamedCopies]
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

// remove removes a copy, in memory. With write the caller has to see to it that catchUp is called.
func (s *shortenedCopies) remove(id segment.Identity) (write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ids, id)
	write = !s.writing
	s.writing = true
	return write
}

// catchUp writes the file. done says that it has the newest list, or that ended returns true; otherwise catchUp is
// called again.
func (s *shortenedCopies) catchUp(ended func() bool) (done bool, err error) {
	before := s.count() // meanwhile copies are only removed: add writes the file itself
	err = s.write()
	s.mu.Lock()
	defer s.mu.Unlock()
	done = err == nil && len(s.ids) == before || ended()
	if done {
		s.writing = false
	}
	return done, err
}

// removeNow removes a copy, durably.
func (s *shortenedCopies) removeNow(id segment.Identity) error {
	s.mu.Lock()
	listed := s.ids[id]
	delete(s.ids, id)
	s.mu.Unlock()
	if !listed {
		return nil
	}
	return s.write()
}

// scrub reads the file, and writes it anew if it differs from what this process wrote last. damaged says that it did,
// found is why it could not be read, and err why it could not be written.
func (s *shortenedCopies) scrub() (damaged bool, found, err error) {
	s.file.Lock()
	defer s.file.Unlock()
	data, found := s.disk.ReadFile(shortenedFile, maxShortenedBytes)
	if found != nil && !errors.Is(found, fs.ErrNotExist) || bytes.Equal(data, s.stored) {
		return false, nil, nil // the next round tries again
	}
	return true, found, s.writeLocked()
}
