package engine

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/engine/checkpoint"
	"penstock/engine/core"
	"penstock/engine/dir"
	"penstock/engine/flush"
	"penstock/engine/replay"
	"penstock/segment"
)

// recovery rebuilds every partition when the engine opens, from what the commit log says (engine/replay) and from the
// segments. What the commit log's checkpoint covers is in segments and synced. What follows stays in the buffers of the
// commit log, and the flusher writes it to segments again, the same bytes to the same places. Recovery itself writes
// nothing but the list of shortened copies, so after a crash it is repeated. It runs before any other goroutine of the
// engine, on the goroutine of Open, and needs no lock.
type recovery struct {
	e   *store
	log *replay.Replay // of the commit log

	found recoveryReport
}

// recoveryReport is what a recovery found.
type recoveryReport struct {
	bytes       int64    // replayed
	readOnly    int      // partitions that take nothing more
	corruptions []string // what was found to be damaged
}

// newRecovery returns a recovery that has read nothing yet.
func newRecovery(s *store) *recovery {
	return &recovery{e: s, log: replay.New(replay.Options{Sizes: s.sizes(), Folder: s.folder, NowNs: s.clock.NowNs})}
}

// replay opens the commit log and replays it. If the log is damaged, it poisons the store: the engine serves what could
// be read and stores nothing new. The caller calls log.Release when the partitions are open, whatever replay returns.
func (r *recovery) replay(node uuid.UUID) error {
	e := r.e
	log, report, err := clog.Open(e.disk, e.arena, clog.Options{
		Pulse:     e.pulse,
		FileBytes: e.opts.CommitFileBytes, MaxLiveBytes: e.opts.CommitLiveBytes, InFlight: e.opts.GroupsInFlight,
		Store: node, Logger: e.log, Inline: e.host.InlineLog(), MarkAfter: e.opts.MarkAfter,
	}, r.log)
	var corrupt *segment.CorruptError
	if err != nil && !errors.As(err, &corrupt) {
		return err
	}
	if log == nil {
		return err
	}
	e.clog = log
	e.flusher.Use(log)
	if report != nil {
		r.found.bytes = report.Bytes
	}
	if derr := r.log.Finish(); derr != nil {
		return derr
	}
	if corrupt != nil {
		// Acknowledged records are damaged: serve what can be read, accept nothing new, and report it.
		e.log.Error("the commit log is corrupt: this node serves what could be read and stores nothing new", "error", err)
		r.found.corruptions = append(r.found.corruptions, err.Error())
		e.poison(err)
	}
	if e.replicas == nil {
		return nil // there is no other replica that could have more
	}
	return e.replicas.noteShortened(r.log, report.Tear != nil && !report.Tear.Mark, corrupt == nil)
}

// report says what recovery found, for Engine.Info.
func (r *recovery) report() recoveryReport { return r.found }

// Checkpoint implements clog.Source: it emits the state of every partition after all records added so far. It runs on
// the committer.
func (c *committer) Checkpoint(emit func(chunk []byte)) {
	parts := c.e.partitionList()
	chunk := c.e.clog.MaxChunkBytes()
	buf := checkpoint.AppendCount(nil, len(parts))
	ends := make([]flush.LogEnd, 0, len(parts))
	for _, pt := range parts {
		st := pt.machine.State()
		ends = append(ends, flush.LogEnd{Part: &pt.flush, End: st.End})
		buf = checkpoint.Append(buf, &checkpoint.Entry{
			ID: pt.Identity(), State: st, Committed: pt.committedMark(), Epochs: pt.epochs.Entries(), Fold: pt.knownFold(),
		})
		at := 0
		for ; len(buf)-at >= chunk; at += chunk {
			emit(buf[at : at+chunk])
		}
		buf = buf[:copy(buf, buf[at:])]
	}
	emit(buf)
	c.e.flusher.Checkpointed(ends)
}

// damagedCopies lists the copies that may lack, or cannot read, something that this node acknowledged. all is true if
// the commit log is damaged: then every copy counts as damaged, even one that the readable part does not name.
// Otherwise these are the copies with damaged segments or an unknown fold, and those that are given up. Open reports
// them before the node joins the cluster, so that none of them can be elected.
func (e *store) damagedCopies() (ids []segment.Identity, all bool) {
	if e.poisoned.Load() != nil {
		return nil, true
	}
	for _, pt := range e.partitionList() {
		if len(pt.log.Isolated()) > 0 || pt.whyUnread() != nil || pt.rep.discarded.Load() {
			ids = append(ids, pt.Identity())
		}
	}
	return ids, false
}

// openPartition opens the log of a partition and gives it what was replayed, if anything was.
func (r *recovery) openPartition(t *partTopic, n uint32) (*partition, error) {
	e := r.e
	rp := r.log.Partition(segment.Identity{Topic: t.uuid, Partition: n})
	pt := newPartition(e, t, n, rp.State, rp.Fold)
	pt.recovered = rp.Committed
	pt.epochs.Reset(rp.Epochs.Entries())
	pt.rep = e.newReplica(pt)
	log, err := segment.Open(e.disk, dir.PartitionPath(t.uuid, n), rp.ID, rp.Base, e.segmentOptions())
	if err != nil {
		return nil, fmt.Errorf("engine: topic %s, partition %d: %w", t.name, n, err)
	}
	pt.log = log
	if err := r.fill(pt, rp); err != nil {
		return nil, errors.Join(fmt.Errorf("engine: topic %s, partition %d: %w", t.name, n, err), log.Close())
	}
	r.readFold(pt, rp)
	pt.writer = rp.Writer
	if pt.rep.solo() { // what was recovered is committed
		pt.correctDelays()
		pt.visible.Store(uint64(rp.State.NextID))
	}
	pt.publishFold(rp.State.NextID)
	pt.mayHaveLost.Store(len(pt.fold.Gone(nil, pt.startBorder(), 1)) > 0)
	if len(rp.Slices) != 0 {
		e.flusher.MarkDirty(&pt.flush)
	}
	if err := errors.Join(rp.Err, log.Health()); err != nil {
		r.found.corruptions = append(r.found.corruptions, err.Error())
		if !pt.rep.solo() && rp.Err == nil {
			// The replica does not lead before the damaged range has been repaired from another one. Then it accepts puts as
			// any other.
			e.log.Error("a copy of a partition does not read back: it does not lead before it is repaired from another replica",
				"topic", t.name, "partition", n, "error", err)
			return pt, nil
		}
		r.found.readOnly++
		e.log.Error("a partition is read-only", "topic", t.name, "partition", n, "error", err)
		ev := core.PartitionEvent{Kind: core.PartitionFault, Err: ErrReadOnly}
		var res core.PartitionResult
		pt.machine.Step(&ev, &res)
	}
	return pt, nil
}

// newReplica returns the replica of a copy that recovery found, before its log is open.
func (e *store) newReplica(pt *partition) *replica {
	if e.replicas == nil {
		return newSolo(pt)
	}
	return e.replicas.newReplica(pt)
}

// fill gives pt's log what the commit log holds of it.
func (r *recovery) fill(pt *partition, rp *replay.Partition) error {
	if rp.Restarted {
		if err := pt.log.Reset(rp.Base); err != nil { // a crash may have come before the old files went
			return err
		}
	}
	for i := range rp.Slices {
		pt.log.Append(&rp.Slices[i])
	}
	pt.newest = pt.log.NewestAppended()
	end, _, _ := pt.log.End()
	pt.flush.Recovered(end, pt.newest, r.e.clock.Mono())
	return r.discardUnreadableHead(pt)
}

func (e *store) segmentOptions() segment.Options {
	return segment.Options{}
}
