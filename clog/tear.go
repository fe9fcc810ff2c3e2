package clog

import (
	"encoding/binary"
	"log/slog"
	"slices"

	"penstock/segment"
)

// Tear describes what lies behind the end of the log: a group that was begun, is not whole, and is promised by no later
// header. Most often a crash cut its write short, and then nobody was told that the group is stored. But a last group
// that was whole and that the device damaged afterwards looks the same, unless a mark followed it (Options.MarkAfter).
// This log alone cannot tell the two apart; another replica can.
type Tear struct {
	File   string
	Offset int64  // in the file
	Group  uint64 // its sequence number
	Bytes  int64  // of everything begun behind the end, as far as headers say; at least one block
	// Mark says that the group held no records, or only part of a checkpoint, and that nothing followed it. So nothing
	// is missing.
	Mark bool
	// Partitions are the partitions of those records whose headers verify, each once, at most maxTearPartitions. If
	// there are none, that says nothing about the group.
	Partitions []segment.Identity
}

// maxTearPartitions bounds the partitions that a warning names.
const maxTearPartitions = 8

// tear describes what lies where the chain ends. It returns nil if there is no sign that a group was begun there.
// promisedBeyond must have run before: it counts the later groups.
func (r *recovery) tear() (*Tear, error) {
	if !r.begun {
		return nil, nil // no group was accepted, not even a checkpoint: no record was ever stored behind it
	}
	p, h, group, err := r.look() // again: promisedBeyond moved the window
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
		return t, nil // its own first block is gone, but a group that was in flight with it is there
	}
	return nil, nil
}

// resemblesNext says whether a block begins with what was once the header of the next group of this file: at least two
// of the three fields that no other group shares are right. Anything else that may lie behind a log's end (zeros,
// groups of an earlier use of the file, bytes from the middle of one) has none of them.
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

// damagedHeader says whether the place holds what resemblesNext recognizes: a damaged header of the next group.
func (r *recovery) damagedHeader() bool {
	if r.off+r.block > r.win.size {
		return false
	}
	block, err := r.win.at(r.off, r.block)
	return err == nil && r.resemblesNext(block)
}

func allZero(p []byte) bool {
	return !slices.ContainsFunc(p, func(b byte) bool { return b != 0 })
}

// partitionsOf reads the record headers of a damaged group, in order, up to the first one that does not verify.
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

// logTo logs the tear: as information if nothing is missing, else as a warning.
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
