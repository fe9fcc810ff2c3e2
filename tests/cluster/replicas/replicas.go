// Package replicas reads what stopped nodes stored and compares the replicas of every partition (B94).
//
// A batch's header names its place and carries a checksum over itself, its body's checksum and the header before it.
// Two replicas that hold the same header at a position therefore hold the same bytes from where both begin up to there,
// provided each one's own bytes verify, which reading them does.
package replicas

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/clog"
	"penstock/segment"
	"penstock/segment/aio"
)

// Batch is what is compared of one batch.
type Batch struct {
	Position segment.Position
	Offset   segment.Offset
	Epoch    segment.Epoch
	FirstID  segment.MsgID
	Count    uint32
	Bytes    int
	CRC      uint32
	PrevCRC  uint32
	Control  bool
}

func (b *Batch) end() segment.Offset { return b.Offset + segment.Offset(b.Bytes) }

// Log is one replica of a partition: its batches, by position, without a hole.
type Log []Batch

// Node is everything that a node holds.
type Node struct {
	Path string
	Logs map[segment.Identity]Log
}

// lockWait lets the last writes of a killed node land.
const lockWait = 5 * time.Second

// Read takes the directory's lock, reads every partition as a restart would see it, and changes nothing. The segments
// come first and then the commit log, whose word counts where both have one.
func Read(dir string) (*Node, error) {
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, LockWait: lockWait})
	if err != nil {
		return nil, err
	}
	r := &reader{disk: disk, node: &Node{dir, map[segment.Identity]Log{}}}
	err = r.topics()
	if err == nil {
		err = r.commitLog(dir)
	}
	if err == nil {
		err = r.holes()
	}
	return r.node, errors.Join(err, disk.Close())
}

type reader struct {
	disk aio.Disk
	node *Node

	inSegments map[segment.Identity]Log // before the commit log was replayed
}

func (r *reader) topics() error {
	topics, err := r.list("topics")
	if err != nil {
		return err
	}
	for _, t := range topics {
		id, err := uuid.Parse(t)
		if err != nil {
			continue
		}
		parts, err := r.list(path.Join("topics", t))
		if err != nil {
			return err
		}
		for _, p := range parts {
			n, err := strconv.ParseUint(p, 10, 32)
			if err != nil {
				continue
			}
			if err := r.partition(segment.Identity{Topic: id, Partition: uint32(n)}, path.Join("topics", t, p)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *reader) list(dir string) ([]string, error) {
	infos, err := r.disk.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name())
	}
	sort.Strings(names)
	return names, err
}

func (r *reader) partition(id segment.Identity, dir string) error {
	names, err := r.list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".seg") {
			continue
		}
		if err := r.segment(id, path.Join(dir, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// Of the segment's header block (segment/FORMAT.md), only what is needed: a reader of its own does not share the
// engine's mistakes.
const (
	segFlags = 5
	segBase  = 32
	segFirst = 40
	segCRC   = 84
)

// segment reads batches until one does not continue the log: what lies behind is from before a cut, or not written.
func (r *reader) segment(id segment.Identity, name string) error {
	f, err := r.disk.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return err
	}
	head := make([]byte, segment.SegmentHeaderBytes)
	if size < int64(len(head)) {
		return nil // made and not begun
	}
	if err := f.ReadAt(head, 0); err != nil {
		return err
	}
	if string(head[:4]) != "PSEG" || le32(head[segCRC:]) != batch.Checksum(head[:segCRC]) {
		return nil // the same: the commit log has what belongs here
	}
	base, first := le64(head[segBase:]), le64(head[segFirst:])
	if head[segFlags]&1 != 0 {
		r.node.Logs[id] = nil // lower-numbered files are not part of the log
	}
	return r.batches(id, f, size, segment.Offset(base), segment.Offset(first))
}

func (r *reader) batches(id segment.Identity, f aio.File, size int64, base, at segment.Offset) error {
	for {
		from := int64(segment.SegmentHeaderBytes) + int64(at-base)
		p := make([]byte, segment.HeaderBytes)
		if from+int64(len(p)) > size {
			return nil
		}
		if err := f.ReadAt(p, from); err != nil {
			return err
		}
		var h segment.Header
		if h.Decode(p) != nil || from+int64(h.Size()) > size {
			return nil
		}
		body := make([]byte, h.BodyBytes)
		if err := f.ReadAt(body, from+segment.HeaderBytes); err != nil {
			return err
		}
		b := describe(&h, at)
		log := r.node.Logs[id]
		if batch.VerifyBody(&h, body) != nil || len(log) > 0 && !follows(&log[len(log)-1], &b) {
			return nil
		}
		r.node.Logs[id] = append(log, b)
		at = b.end()
	}
}

func le32(p []byte) uint32 {
	return uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16 | uint32(p[3])<<24
}
func le64(p []byte) uint64 { return uint64(le32(p)) | uint64(le32(p[4:]))<<32 }

func describe(h *segment.Header, at segment.Offset) Batch {
	return Batch{h.Position, at, h.Epoch, h.FirstID, h.Count, h.Size(), h.CRC, h.PrevCRC, h.Control()}
}

func follows(a, b *Batch) bool {
	return b.Position == a.Position+1 && b.Offset == a.end() && b.PrevCRC == a.CRC
}

// commitLog replays the node's commit log as a restart does. It ends with the refusal to begin a new file.
func (r *reader) commitLog(dir string) error {
	node, err := nodeOf(r.disk)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	arena, err := aio.NewArena(1<<20, 4)
	if err != nil {
		return err
	}
	defer arena.Close()
	r.inSegments = map[segment.Identity]Log{}
	for id, log := range r.node.Logs {
		r.inSegments[id] = slices.Clone(log)
	}
	log, _, err := clog.Open(r.disk, arena, clog.Options{Store: node, Logger: slog.New(slog.DiscardHandler), Inline: true},
		r)
	if log != nil {
		err = errors.Join(err, log.Close())
	}
	if err != nil && !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%s: the commit log: %w", dir, err)
	}
	return nil
}

// Restart implements clog.Replayer.
func (r *reader) Restart() { r.node.Logs = r.inSegments }

// Checkpoint implements clog.Replayer. What it says is in the segments and in the records behind it.
func (r *reader) Checkpoint([]byte) error { return nil }

// cutAnew is the kind of a cut behind which the log begins anew, as it came from a leader that kept less (the first
// byte of its payload).
const cutAnew = 2

// Record implements clog.Replayer.
func (r *reader) Record(rec *clog.Record) error {
	id := segment.Identity{Topic: rec.Topic, Partition: rec.Partition}
	switch rec.Type {
	case clog.Tombstone:
		delete(r.node.Logs, id)
	case clog.Truncate:
		keep := rec.Offset
		if len(rec.Payload) > 0 && rec.Payload[0] == cutAnew {
			r.node.Logs[id] = nil
		}
		r.cut(id, func(b *Batch) bool { return b.Offset < keep })
	case clog.Batch:
		var h segment.Header
		if err := h.Decode(rec.Payload); err != nil {
			return err
		}
		b := describe(&h, rec.Offset)
		r.cut(id, func(old *Batch) bool { return old.Position < b.Position })
		r.node.Logs[id] = append(r.node.Logs[id], b)
	}
	return nil
}

func (r *reader) cut(id segment.Identity, keep func(*Batch) bool) {
	log := r.node.Logs[id]
	n := sort.Search(len(log), func(i int) bool { return !keep(&log[i]) })
	r.node.Logs[id] = log[:n]
}

// holes holds that each log is one chain.
func (r *reader) holes() error {
	for id, log := range r.node.Logs {
		for i := 1; i < len(log); i++ {
			if !follows(&log[i-1], &log[i]) || log[i].Epoch < log[i-1].Epoch {
				return fmt.Errorf("%s: partition %d of topic %s: position %d (offset %d, epoch %d, crc %08x) is followed by %d "+
					"(offset %d, epoch %d, after %08x)",
					r.node.Path, id.Partition, id.Topic, log[i-1].Position, log[i-1].Offset, log[i-1].Epoch, log[i-1].CRC,
					log[i].Position, log[i].Offset, log[i].Epoch, log[i].PrevCRC)
			}
		}
	}
	return nil
}
