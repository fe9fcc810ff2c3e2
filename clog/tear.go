package clog

import (
	"encoding/binary"
	"log/slog"

	"penstock/segment"
)

// Tear describes what stands behind the end of the log: a group that was begun, is not whole, and is promised by no
// later header. Mostly a crash cut its write short, and then nobody was told that it is stored. But a last group that
// was whole and was damaged by the device afterwards looks the same, unless a mark followed it (Options.MarkAfter).
// This log alone cannot tell the two apart; another replica can.
type Tear struct {
	File   string
	Offset int64  // in the file
	Group  uint64 // its sequence
	Bytes  int64  // of everything that was begun behind the end, as far as headers say so; at least one block
	// Mark says that the group held no records, or part of a checkpoint, and nothing followed it: nothing is missing.
	Mark bool
	// Partitions are those of its records whose headers verify, each once; at most maxTearPartitions. None says nothing.
	Partitions []segment.Identity
}

// maxTearPartitions bounds what a warning names.
const maxTearPartitions = 8

// tear describes what stands where the chain ends, or returns nil if nothing says that a group was begun there.
// promisedBeyond must have run before: it counts the later groups.
func (r *recovery) tear() (*Tear, error) {
	if !r.begun {
		return nil, nil // not even a checkpoint: nothing was ever stored behind it
	}
	p, h, group, err := r.look() // again: the search used the window
	if err != nil {
		return nil, err
	}
	t := &Tear{
		File: fileName(r.files[r.at].number), Offset: r.off, Group: r.last.Seq + 1, Bytes: max(r.report.TornBytes, r.block),
	}
	switch p {
	case placeDamaged:
		t.Mark = r.later == 0 && (h.Records == 0 || !r.checkpoint.whole)
		if group != nil {
			t.Partitions = partitionsOf(&h, group)
		}
		return t, nil
	case placeOther:
		if h.Seq > r.last.Seq {
			return t, nil
		}
	case placeNothing:
		if r.off+r.block > r.win.size {
			break
		}
		block, err := r.win.at(r.off, r.block)
		if err != nil {
			return nil, r.unreadable(r.files[r.at], r.off, err)
		}
		if r.resemblesNext(block) {
			t.Mark = r.later == 0 && (allZero(block[GroupHeaderBytes:]) || !r.checkpoint.whole)
			return t, nil
		}
	}
	if r.later > 0 {
		return t, nil // its own first block is gone, and the one that was on its way with it is there
	}
	return nil, nil
}

// resemblesNext says whether a block begins with what was once the header of the next group of this file: at least two
// of the three fields that no other group shares are right. Anything else behind a log's end (zeros, groups of an older
// generation, the middle of one) has none of them.
func (r *recovery) resemblesNext(block []byte) bool {
	le := binary.LittleEndian
	same := 0
	for _, right := range []bool{
		le.Uint64(block[offFile:]) == r.files[r.at].number,
		le.Uint64(block[offSeq:]) == r.last.Seq+1,
		le.Uint32(block[offPrevCRC:]) == r.last.CRC,
	} {
		if right {
			same++
		}
	}
	return same >= 2
}

// damagedHeader says whether the place holds such a header.
func (r *recovery) damagedHeader() bool {
	if r.off+r.block > r.win.size {
		return false
	}
	block, err := r.win.at(r.off, r.block)
	return err == nil && r.resemblesNext(block)
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// partitionsOf reads as many record headers of a damaged group as verify, one behind the other.
func partitionsOf(h *groupHeader, group []byte) (ids []segment.Identity) {
	seed := recordSeed(group)
	var rec recordHeader
	for at := GroupHeaderBytes; at < int(h.Bytes) && len(ids) < maxTearPartitions; {
		payload, err := rec.decode(group[at:h.Bytes], seed, h.Seq)
		if err != nil {
			return ids
		}
		id := segment.Identity{Topic: rec.Topic, Partition: rec.Partition}
		known := rec.Type == Checkpoint
		for _, other := range ids {
			known = known || other == id
		}
		if !known {
			ids = append(ids, id)
		}
		at += RecordHeaderBytes + len(payload)
	}
	return ids
}

// logTo logs the tear.
func (t *Tear) logTo(log *slog.Logger) {
	attrs := []any{"file", t.File, "offset", t.Offset, "group", t.Group, "bytes", t.Bytes}
	if t.Mark {
		log.Info("the last mark or checkpoint of the commit log is not whole: it held no messages, nothing is missing",
			attrs...)
		return
	}
	if len(t.Partitions) > 0 {
		attrs = append(attrs, "partitions", t.Partitions)
	}
	log.Warn("the last group of the commit log is not whole and was cut. Most often a crash cut its write short, and "+
		"nobody was told OK for it; "+
		"if the device changed what it had stored, messages answered OK in the last moment before the end of the process "+
		"are missing on this node", attrs...)
}
