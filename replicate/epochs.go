package replicate

import (
	"encoding/binary"
	"fmt"
	"slices"

	"penstock/segment"
)

// MaxEpochCount bounds a leader-epoch table. When it is full the oldest epochs are forgotten: a replica that diverged
// before them begins anew.
const MaxEpochCount = 1024

// EpochStart says where the first batch of an epoch is.
type EpochStart struct {
	Epoch    segment.Epoch
	Position segment.Position
	Offset   segment.Offset
}

// EpochTable is the history of a log: which leader incarnation wrote which positions. An epoch ends where the next one
// begins; the last epoch ends at the end of the log. The table is derived from the log and can be rebuilt from it.
//
//	for i < j: entries[i].Epoch < entries[j].Epoch, entries[i].Position < entries[j].Position
//
// An EpochTable has one owner. The zero value is the table of an empty log.
type EpochTable struct {
	entries []EpochStart
}

// Entries returns the table in order; borrowed until the next change.
func (t *EpochTable) Entries() []EpochStart { return t.entries }

// Last returns the newest epoch, or 0 if the table is empty.
func (t *EpochTable) Last() segment.Epoch {
	if len(t.entries) == 0 {
		return 0
	}
	return t.entries[len(t.entries)-1].Epoch
}

// Reset makes the table a copy of entries.
func (t *EpochTable) Reset(entries []EpochStart) {
	t.entries = append(t.entries[:0], entries...)
	if !ordered(t.entries) {
		panic("BUG: a leader-epoch table out of order")
	}
}

// Note takes every batch that is appended, and records the first one of each epoch.
func (t *EpochTable) Note(e EpochStart) {
	if n := len(t.entries); n > 0 {
		last := &t.entries[n-1]
		if e.Epoch == last.Epoch {
			return
		}
		if e.Epoch < last.Epoch || e.Position <= last.Position {
			panic(fmt.Sprintf("BUG: epoch %d at %d follows epoch %d at %d", e.Epoch, e.Position, last.Epoch, last.Position))
		}
		if n == MaxEpochCount {
			t.entries = slices.Delete(t.entries, 0, 1)
		}
	}
	t.entries = append(t.entries, e)
}

// Truncate forgets the epochs that begin at or behind end, the new end of the log.
func (t *EpochTable) Truncate(end segment.Position) {
	n := len(t.entries)
	for n > 0 && t.entries[n-1].Position >= end {
		n--
	}
	t.entries = t.entries[:n]
}

// Trim forgets the epochs that ended before start, the log's new first position. The epoch of the batch before start
// stays, even if it ends there: it says which epoch the log continues.
func (t *EpochTable) Trim(start segment.Position) {
	n := 0
	for n+1 < len(t.entries) && t.entries[n+1].Position < start {
		n++
	}
	t.entries = slices.Delete(t.entries, 0, n)
}

// At returns the epoch of the batch at p, which must be in the log. It returns false if the table does not reach back
// that far.
func (t *EpochTable) At(p segment.Position) (segment.Epoch, bool) {
	for i := len(t.entries) - 1; i >= 0; i-- {
		if t.entries[i].Position <= p {
			return t.entries[i].Epoch, true
		}
	}
	return 0, false
}

// before returns the epochs that begin before p; borrowed.
func (t *EpochTable) before(p segment.Position) []EpochStart {
	n := len(t.entries)
	for n > 0 && t.entries[n-1].Position >= p {
		n--
	}
	return t.entries[:n]
}

// Common returns the end of the longest prefix that a log with this table and this end shares with another log. An
// epoch has one author, so equal (epoch, position) means equal bytes and an equal history before them: the common
// prefix ends where the newest epoch that both tables have ends first. Because whole tables are compared, one exchange
// is enough, however often the leader changed (P2).
//
//	this log    epoch 1 from 0, epoch 2 from 5, epoch 4 from 9, end 12
//	the other   epoch 1 from 0, epoch 2 from 5, epoch 3 from 7, end 11
//	only this log has 4: it differs from 9 on; only the other has 3: it differs from 7 on
//	both have 2 from 5 on: the common prefix ends at 7
func (t *EpochTable) Common(
	end segment.Position, other []EpochStart, otherEnd segment.Position,
) (segment.Position, error) {
	i, j := len(t.entries)-1, len(other)-1
	for i >= 0 && j >= 0 {
		switch a, b := &t.entries[i], &other[j]; {
		case a.Epoch > b.Epoch:
			end = a.Position
			i--
		case a.Epoch < b.Epoch:
			otherEnd = b.Position
			j--
		case a.Position != b.Position || a.Offset != b.Offset:
			return 0, ErrEpochConflict
		default:
			return min(end, otherEnd), nil
		}
	}
	return 0, ErrNoCommon
}

func ordered(entries []EpochStart) bool {
	for i := 1; i < len(entries); i++ {
		if a, b := &entries[i-1], &entries[i]; a.Epoch >= b.Epoch || a.Position >= b.Position || a.Offset >= b.Offset {
			return false
		}
	}
	return true
}

// Layout of an encoded table. FORMAT.md describes it; a test compares the two.
const (
	// EpochTableVersion is the only version so far.
	EpochTableVersion = 1

	epochHeaderBytes = 8
	epochEntryBytes  = 24

	// MaxEpochTableBytes is the largest size of an encoded table.
	MaxEpochTableBytes = epochHeaderBytes + MaxEpochCount*epochEntryBytes

	offTableVersion  = 0
	offTableReserved = 1
	offTableCount    = 4
	offEntryEpoch    = 0
	offEntryPosition = 8
	offEntryOffset   = 16
)

// AppendEpochs appends the encoding of entries to dst. The encoding has no checksum of its own: the frame or record
// around it has one.
func AppendEpochs(dst []byte, entries []EpochStart) []byte {
	dst = append(dst, EpochTableVersion, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(entries)))
	for i := range entries {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(entries[i].Epoch))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(entries[i].Position))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(entries[i].Offset))
	}
	return dst
}

// DecodeEpochs appends the table at the start of p to dst and returns the bytes behind the table. It checks version,
// bounds and order, so that a decoded table can be used as it is. The error is ErrInvalid.
func DecodeEpochs(dst []EpochStart, p []byte) ([]EpochStart, []byte, error) {
	if len(p) < epochHeaderBytes || p[offTableVersion] != EpochTableVersion ||
		p[offTableReserved]|p[offTableReserved+1]|p[offTableReserved+2] != 0 {
		return dst, nil, ErrInvalid
	}
	n := binary.LittleEndian.Uint32(p[offTableCount:])
	if n > MaxEpochCount || len(p)-epochHeaderBytes < int(n)*epochEntryBytes {
		return dst, nil, ErrInvalid
	}
	p = p[epochHeaderBytes:]
	from := len(dst)
	for range n {
		e := EpochStart{
			Epoch:    segment.Epoch(binary.LittleEndian.Uint64(p[offEntryEpoch:])),
			Position: segment.Position(binary.LittleEndian.Uint64(p[offEntryPosition:])),
			Offset:   segment.Offset(binary.LittleEndian.Uint64(p[offEntryOffset:])),
		}
		if e.Epoch == 0 || e.Offset < 0 {
			return dst[:from], nil, ErrInvalid
		}
		dst = append(dst, e)
		p = p[epochEntryBytes:]
	}
	if !ordered(dst[from:]) {
		return dst[:from], nil, ErrInvalid
	}
	return dst, p, nil
}
