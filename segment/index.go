package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"github.com/google/uuid"

	"penstock/batch"
)

// Layout of an index file; FORMAT.md holds the tables.
const (
	// IndexVersion is the only version of the index layout so far.
	IndexVersion = 1

	idxMagic       = 'P' | 'I'<<8 | 'D'<<16 | 'X'<<24
	idxHeaderBytes = 64
	idxEntryBytes  = 32

	// MaxIndexCount bounds the entries of one index. A segment of 128 MiB has 2048 entries with the default distance.
	MaxIndexCount = 1 << 17

	offIdxMagic       = 0
	offIdxVersion     = 4
	offIdxReserved    = 5
	offIdxTopic       = 8
	offIdxPartition   = 24
	offIdxNumber      = 28
	offIdxFirstOffset = 32
	offIdxEndOffset   = 40
	offIdxCount       = 48
	offIdxLastCRC     = 52
	offIdxEntriesCRC  = 56
	offIdxCRC         = 60

	offEntryOffset   = 0
	offEntryPosition = 8
	offEntryFirstID  = 16
	offEntryAppended = 24
)

// indexEntry says where a batch begins. An index is a hint: the batch to which it leads is verified before use, and a
// wrong hint costs a scan but never gives a wrong answer.
type indexEntry struct {
	off      Offset
	pos      Position
	id       MsgID
	appended int64
}

// indexHeader says which segment an index describes. lastCRC is for tools.
type indexHeader struct {
	id         Identity
	number     uint32
	first, end Offset
	lastCRC    uint32
}

func encodeIndex(h *indexHeader, entries []indexEntry) []byte {
	p := make([]byte, idxHeaderBytes+len(entries)*idxEntryBytes)
	le := binary.LittleEndian
	for i, e := range entries {
		q := p[idxHeaderBytes+i*idxEntryBytes:]
		le.PutUint64(q[offEntryOffset:], uint64(e.off))
		le.PutUint64(q[offEntryPosition:], uint64(e.pos))
		le.PutUint64(q[offEntryFirstID:], uint64(e.id))
		le.PutUint64(q[offEntryAppended:], uint64(e.appended))
	}
	le.PutUint32(p[offIdxMagic:], idxMagic)
	p[offIdxVersion] = IndexVersion
	copy(p[offIdxTopic:], h.id.Topic[:])
	le.PutUint32(p[offIdxPartition:], h.id.Partition)
	le.PutUint32(p[offIdxNumber:], h.number)
	le.PutUint64(p[offIdxFirstOffset:], uint64(h.first))
	le.PutUint64(p[offIdxEndOffset:], uint64(h.end))
	le.PutUint32(p[offIdxCount:], uint32(len(entries)))
	le.PutUint32(p[offIdxLastCRC:], h.lastCRC)
	le.PutUint32(p[offIdxEntriesCRC:], batch.Checksum(p[idxHeaderBytes:]))
	le.PutUint32(p[offIdxCRC:], batch.Checksum(p[:offIdxCRC]))
	return p
}

var errIndex = errors.New("segment: not a valid index")

func decodeIndex(p []byte) (h indexHeader, entries []indexEntry, err error) {
	le := binary.LittleEndian
	switch {
	case len(p) < idxHeaderBytes, le.Uint32(p[offIdxMagic:]) != idxMagic, p[offIdxVersion] != IndexVersion:
		return h, nil, errIndex
	case le.Uint32(p[offIdxCRC:]) != batch.Checksum(p[:offIdxCRC]):
		return h, nil, fmt.Errorf("%w: header checksum", errIndex)
	case p[offIdxReserved]|p[offIdxReserved+1]|p[offIdxReserved+2] != 0:
		return h, nil, fmt.Errorf("%w: reserved bytes", errIndex)
	}
	count := le.Uint32(p[offIdxCount:])
	if count == 0 || count > MaxIndexCount || len(p) != idxHeaderBytes+int(count)*idxEntryBytes {
		return h, nil, fmt.Errorf("%w: %d entries in %d bytes", errIndex, count, len(p))
	}
	if le.Uint32(p[offIdxEntriesCRC:]) != batch.Checksum(p[idxHeaderBytes:]) {
		return h, nil, fmt.Errorf("%w: entries checksum", errIndex)
	}
	h.id = Identity{uuid.UUID(p[offIdxTopic : offIdxTopic+16]), le.Uint32(p[offIdxPartition:])}
	h.number = le.Uint32(p[offIdxNumber:])
	h.first = Offset(le.Uint64(p[offIdxFirstOffset:]))
	h.end = Offset(le.Uint64(p[offIdxEndOffset:]))
	h.lastCRC = le.Uint32(p[offIdxLastCRC:])
	entries = make([]indexEntry, count)
	for i := range entries {
		q := p[idxHeaderBytes+i*idxEntryBytes:]
		e := indexEntry{
			Offset(le.Uint64(q[offEntryOffset:])), Position(le.Uint64(q[offEntryPosition:])),
			MsgID(le.Uint64(q[offEntryFirstID:])), int64(le.Uint64(q[offEntryAppended:])),
		}
		entries[i] = e
		bad := e.off < h.first || e.off >= h.end || i == 0 && e.off != h.first
		if i > 0 {
			last := entries[i-1]
			bad = bad || e.off <= last.off || e.pos <= last.pos || e.id < last.id
		}
		if bad {
			return h, nil, fmt.Errorf("%w: entry %d is out of order", errIndex, i)
		}
	}
	return h, entries, nil
}

// lastBelow returns the last entry for which below holds. below must hold for a prefix of the entries.
func lastBelow(entries []indexEntry, below func(e *indexEntry) bool) (indexEntry, bool) {
	n := sort.Search(len(entries), func(i int) bool { return !below(&entries[i]) })
	if n == 0 {
		return indexEntry{}, false
	}
	return entries[n-1], true
}

// noteIndex adds an index entry for a batch that was written to f, if one is due. The caller holds l.mu.
func (l *Log) noteIndex(f *segFile, s *Slice) {
	if n := len(f.index); n > 0 && s.Offset-f.index[n-1].off < Offset(l.opts.IndexEveryBytes) ||
		len(f.index) >= MaxIndexCount {
		return
	}
	f.index = append(f.index, indexEntry{s.Offset, s.Position, s.FirstID, s.Appended})
}

// ensureIndex makes f.index usable: from memory, else from the .idx file, else by a scan of the batch headers. f may be
// read up to end. The caller holds a pin and no lock.
func (l *Log) ensureIndex(f *segFile, end Offset) error {
	l.mu.Lock()
	ready, sealed := f.indexed, f.sealed
	l.mu.Unlock()
	if ready {
		return nil
	}
	entries, ok := []indexEntry(nil), false
	if sealed {
		entries, ok = l.loadIndex(f, end)
	}
	if !ok {
		var err error
		if entries, _, err = l.scanIndex(f, end); err != nil {
			return err
		}
	}
	l.installIndex(f, entries)
	return nil
}

// startingPoint returns the offset from which to scan for what below describes: the batch of the last entry for which
// below holds. If that entry does not lead to the batch it names, startingPoint builds the index anew.
func (l *Log) startingPoint(f *segFile, end Offset, below func(e *indexEntry) bool) (Offset, error) {
	for range 2 {
		if err := l.ensureIndex(f, end); err != nil {
			return 0, err
		}
		l.mu.Lock()
		e, ok := lastBelow(f.index, below)
		l.mu.Unlock()
		if !ok || e.off >= end {
			break
		}
		if l.holds(f, e, end) {
			return e.off, nil
		}
		entries, _, err := l.scanIndex(f, end)
		if err != nil {
			return 0, err
		}
		l.mu.Lock()
		f.index, f.indexed = entries, true
		l.mu.Unlock()
	}
	return f.first, nil
}

// installIndex merges the entries that were read with those that the writer added meanwhile.
func (l *Log) installIndex(f *segFile, entries []indexEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.indexed {
		return
	}
	for _, e := range f.index {
		if n := len(entries); n == 0 || e.off > entries[n-1].off {
			entries = append(entries, e)
		}
	}
	f.index, f.indexed = entries, true
}

// readIndex reads the .idx file of a full segment and checks that it is whole and describes this segment's identity and
// range.
func (l *Log) readIndex(f *segFile, end Offset) ([]indexEntry, error) {
	p, err := l.disk.ReadFile(indexPath(f.path), idxHeaderBytes+MaxIndexCount*idxEntryBytes)
	if err != nil {
		return nil, err
	}
	h, entries, err := decodeIndex(p)
	if err == nil && (h.id != l.id || h.number != f.number || h.first != f.first || h.end != l.sealedEnd(f, end)) {
		err = fmt.Errorf("%w: it is of another segment, or of other bytes", errIndex)
	}
	return entries, err
}

// loadIndex is readIndex with a check of the content: the first and the last entry must lead to the batches they name.
func (l *Log) loadIndex(f *segFile, end Offset) ([]indexEntry, bool) {
	entries, err := l.readIndex(f, end)
	if err != nil {
		return nil, false
	}
	for _, e := range []indexEntry{entries[0], entries[len(entries)-1]} {
		if e.off < end && !l.holds(f, e, end) {
			return nil, false
		}
	}
	return entries, true
}

// holds says whether the entry leads to the batch that it names.
func (l *Log) holds(f *segFile, e indexEntry, end Offset) bool {
	ok := false
	err := l.scan(f, e.off, end, func(_ Offset, h *Header) bool {
		ok = h.Position == e.pos && h.FirstID == e.id && h.Appended == e.appended
		return false
	})
	return ok && err == nil
}

// scanIndex builds an index from the batch headers below end.
func (l *Log) scanIndex(f *segFile, end Offset) (entries []indexEntry, lastCRC uint32, err error) {
	err = l.scan(f, f.first, end, func(off Offset, h *Header) bool {
		lastCRC = h.CRC
		n := len(entries)
		if n == 0 || off-entries[n-1].off >= Offset(l.opts.IndexEveryBytes) && n < MaxIndexCount {
			entries = append(entries, indexEntry{off, h.Position, h.FirstID, h.Appended})
		}
		return true
	})
	var bad *badBatch
	if errors.As(err, &bad) && len(entries) > 0 {
		err = nil // what lies before the damage can be found; a search beyond it meets the damage itself
	}
	return entries, lastCRC, l.scanned(f, err)
}

// scanWindow is how many bytes a header scan reads at once.
const scanWindow = 64 << 10

// badBatch is how a scan reports the first batch that is not good: where the batch is, and its size if its header could
// be read. The caller, who knows whether a batch must begin there, decides whether that is damage.
type badBatch struct {
	at   int64 // in the file
	size int
	err  error
}

func (e *badBatch) Error() string { return e.err.Error() }
func (e *badBatch) Unwrap() error { return e.err }

// scan calls fn for each batch header from off, a batch boundary, up to end, until fn returns false. It neither reads
// nor verifies bodies. The error is a *badBatch, or one of the environment from mapping. The caller holds a pin on f
// and no lock.
func (l *Log) scan(f *segFile, off, end Offset, fn func(off Offset, h *Header) bool) error {
	m, err := l.mapSegment(f)
	if err != nil {
		return err
	}
	var h Header
	window := copyBuffer(scanWindow)
	defer window.free()
	at, limit, from, ready := f.at(off), min(f.at(end), m.Size()), int64(0), int64(0) // window holds [from, ready)
	var prev link
	for first := true; at < limit; first = false {
		if need := min(at+HeaderBytes, limit); need > ready {
			from, ready = at, min(at+scanWindow, limit)
			if err := m.Copy(window.bytes[:ready-from], from); err != nil {
				return &badBatch{at, 0, err}
			}
		}
		err := h.Decode(window.bytes[at-from : ready-from])
		switch {
		case err != nil:
			return &badBatch{at, 0, err}
		case !first && !prev.continuedBy(&h):
			return &badBatch{at, h.Size(), errChain}
		case at+int64(h.Size()) > limit:
			return &badBatch{at, 0, errCut}
		}
		if !fn(f.offset(at), &h) {
			return nil
		}
		prev = link{h.Position, h.CRC}
		at += int64(h.Size())
	}
	return nil
}

// scanned turns the error of a scan that began at a true boundary into the error that a reader gets: damage is
// isolated.
func (l *Log) scanned(f *segFile, err error) error {
	var bad *badBatch
	if errors.As(err, &bad) {
		return l.readFailed(f, bad.at, bad.size, bad.err)
	}
	return err
}

// writeIndex writes the .idx file of a full and synced segment. If that fails, only the next search after a restart is
// slower, so it returns no error. The caller holds l.io.
func (l *Log) writeIndex(f *segFile, end Offset) {
	f.pin()
	defer f.release()
	l.mu.Lock()
	entries, whole, lastCRC := f.index, f.indexed, f.lastCRC
	l.mu.Unlock()
	if !whole {
		var err error
		if entries, lastCRC, err = l.scanIndex(f, end); err != nil {
			return
		}
	}
	if len(entries) == 0 {
		return
	}
	h := indexHeader{l.id, f.number, f.first, end, lastCRC}
	if l.disk.WriteFile(indexPath(f.path), encodeIndex(&h, entries)) != nil {
		return
	}
	l.mu.Lock()
	if f.refs.Load() <= 2 && !f.isMapped.Load() { // nobody searches it now; memory holds only indexes in use
		f.index, f.indexed = nil, false
	}
	l.mu.Unlock()
}
