package offline

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/node/aside"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/platform"
	"penstock/segment"
	"penstock/segment/aio"
)

// Loss says what the data directory of a stopped node lacks (clog.ErrForgotten), and what is left. The JSON names are
// stable.
type Loss struct {
	// Forgotten says what is gone; empty: nothing is known to be gone, and the node starts.
	Forgotten string `json:"forgotten"`
	// Reached is the last group of the commit log, and Wanted the group that it once reached; 0: not known.
	Reached    uint64          `json:"reached_group"`
	Wanted     uint64          `json:"wanted_group"`
	Partitions []PartitionLoss `json:"partitions"` // by topic and number
}

// PartitionLoss says where the commit log ends for a partition, and what its segments hold behind that.
type PartitionLoss struct {
	Topic     string `json:"topic"`
	Partition uint32 `json:"partition"`
	// NextID is the number that the next message gets; with 0, the partition begins anew, empty.
	NextID uint64 `json:"next_id"`
	// SegmentsNextID is the number behind the newest message in segments that hold more than that; 0: none do.
	SegmentsNextID uint64 `json:"segments_next_id"`
	Messages       int64  `json:"messages_aside"` // of these, behind the log's end
	Files          int    `json:"files_aside"`
	Aside          string `json:"aside,omitempty"` // where they were moved to, in the data directory

	files []segment.BeyondFile
	id    segment.Identity
	end   segment.State // of the log
}

// AcceptLoss lets a single node start again whose commit log has forgotten something. It takes the directory's lock,
// finds out what is missing, and asks agree. If that returns true, it moves what segments hold behind the log's end
// into aside/, where it stays until an operator removes it (aside.SetAside), and writes a fresh log.mark, so that Open
// takes what is left for all there was. If nothing is missing, or agree returns false, nothing is changed. A crash
// leaves a directory that is still refused, and AcceptLoss can be run again.
//
// It returns an error if the directory belongs to a cluster: such a node starts, and gets what it lacks from the other
// replicas. Damage of the commit log is another matter, and an error too.
func AcceptLoss(path string, agree func(*Loss) bool) (loss *Loss, accepted bool, err error) {
	if agree == nil {
		return nil, false, fmt.Errorf("%w: the function that AcceptLoss asks is nil; nothing was done", errs.ErrOptions)
	}
	if err := datadir.Check(path, datadir.NewestLevel); err != nil {
		return nil, false, err
	}
	disk, err := aio.OpenDisk(path, aio.DiskOptions{Mode: aio.ModePwrite, LockWait: aio.ExitTime})
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	node, err := datadir.ReadNode(disk, datadir.NewestLevel)
	if err != nil {
		return nil, false, err
	}
	if node.Cluster() != uuid.Nil {
		return nil, false, fmt.Errorf("engine: the data directory belongs to cluster %s: nothing was changed; start the "+
			"node, it gets what it lacks from the other replicas", node.Cluster())
	}
	loss, err = findLoss(disk, node)
	if err != nil || loss.Forgotten == "" || !agree(loss) {
		return loss, false, err
	}
	now := platform.NewMachine().Wall()
	for i := range loss.Partitions {
		p := &loss.Partitions[i]
		cut := aside.Beyond(node.NodeID(), p.Topic, p.id, &p.end)
		if p.Aside, err = aside.SetAside(disk, cut, p.files, now); err != nil {
			return loss, false, err
		}
	}
	return loss, true, datadir.RenewMark(disk, node.StoreID())
}

// findLoss compares the commit log with log.mark and with the segments. It changes nothing of them.
func findLoss(disk aio.Disk, node *datadir.NodeFile) (*Loss, error) {
	arena, err := datadir.OfflineArena()
	if err != nil {
		return nil, err
	}
	ends := &logEnds{parts: map[segment.Identity]*segment.State{}}
	report, err := clog.Read(disk, arena, clog.Options{
		Store: node.StoreID(), MarkRequired: node.Level() >= datadir.MarkLevel,
	}, ends)
	if err = errors.Join(err, ends.finish(), arena.Close()); err != nil {
		return nil, err
	}
	loss := &Loss{Partitions: []PartitionLoss{}, Reached: report.LastSeq}
	if f := report.Forgotten; f != nil {
		loss.Forgotten, loss.Wanted = f.Detail, f.Wanted
	}
	each := func(n int, do func(i int)) {
		for i := range n {
			do(i)
		}
	}
	topics, err := datadir.ListTopics(disk, slog.New(slog.DiscardHandler), each, func(string, error) {})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(topics, func(a, b datadir.Topic) int { return strings.Compare(a.Name, b.Name) })
	beyond := false
	for i := range topics {
		for n := range uint32(topics[i].Partitions) {
			p := PartitionLoss{Topic: topics[i].Name, Partition: n, id: segment.Identity{Topic: topics[i].ID, Partition: n}}
			if err := p.find(disk, ends.parts[p.id]); err != nil {
				return nil, err
			}
			beyond = beyond || p.Files > 0
			loss.Partitions = append(loss.Partitions, p)
		}
	}
	if loss.Forgotten == "" && len(ends.parts) == 0 && beyond { // a log from before there were marks
		loss.Forgotten = "the folder clog is empty or gone"
	}
	return loss, nil
}

// find fills in what the log and the segments say. st is nil if the log says nothing of the partition.
func (p *PartitionLoss) find(disk aio.Disk, st *segment.State) (err error) {
	if st == nil {
		st = new(segment.State)
	}
	p.NextID, p.end = uint64(st.NextID), *st
	p.files, err = segment.Beyond(disk, datadir.PartitionPath(p.id.Topic, p.id.Partition), p.id, *st)
	p.Files = len(p.files)
	for i := range p.files {
		p.Messages += p.files[i].Messages
		p.SegmentsNextID = max(p.SegmentsNextID, uint64(p.files[i].Next))
	}
	return err
}

// logEnds is a Replayer that keeps only where each partition's log ends.
type logEnds struct {
	checkpoint []byte
	parts      map[segment.Identity]*segment.State
}

func (l *logEnds) Restart() { *l = logEnds{parts: map[segment.Identity]*segment.State{}} }

func (l *logEnds) Checkpoint(chunk []byte) error {
	l.checkpoint = append(l.checkpoint, chunk...)
	return nil
}

// finish decodes the checkpoint when all of it is there.
func (l *logEnds) finish() error {
	p := l.checkpoint
	l.checkpoint = nil
	return checkpoint.Decode(p, func(en *checkpoint.Entry) {
		st := en.State
		l.parts[en.ID] = &st
	})
}

// Record implements clog.Replayer. A batch that does not follow the one before is left out, as at a start.
func (l *logEnds) Record(rec *clog.Record) error {
	if err := l.finish(); err != nil {
		return err
	}
	id := segment.Identity{Topic: rec.Topic, Partition: rec.Partition}
	switch rec.Type {
	case clog.Truncate:
		en, _, err := checkpoint.DecodeCut(rec.Payload)
		if err != nil {
			return err
		}
		st := en.State
		l.parts[en.ID] = &st
	case clog.Batch:
		st := l.parts[id]
		if st == nil {
			st = new(segment.State)
			l.parts[id] = st
		}
		var h segment.Header
		if err := h.Decode(rec.Payload); err != nil {
			return err
		}
		if rec.Offset != st.End || h.Position != st.Next {
			return nil
		}
		if st.SegmentCapacity == 0 || rec.Segment != st.Segment {
			st.Segment, st.SegmentBase, st.SegmentCapacity = rec.Segment, st.End, 1 // the true one does not matter here
		}
		st.Advance(&h)
	}
	return nil
}
