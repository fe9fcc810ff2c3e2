package partition

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/health"
	"penstock/internal/node/platform"
	"penstock/internal/node/replay"
	"penstock/segment"
)

// Recovery rebuilds every partition when the engine opens, from the commit log (internal/node/replay) and the segments.
// The batches that the commit log's checkpoint covers are in segments and synced. The later batches stay in the buffers
// of the commit log, and the flusher writes them to segments again: the same bytes to the same places. Recovery itself
// only writes the list of shortened copies, and repeats the reset of a log whose record it finds. So after a crash it
// can be run again. It runs on the goroutine of Open, before any other goroutine of the engine, and needs no lock.
type Recovery struct {
	store *Store
	Log   *replay.Replay // replay of the commit log

	logs   map[segment.Identity]openedLog // from OpenLogs, until OpenPartition takes them
	opened []*Partition
	found  Report

	damaged   map[segment.Identity][]segment.Offset // of datadir.DamagedFile
	isDamaged bool                                  // a copy with such a place does not read back whole
}

// openedLog is the result of segment.Open.
type openedLog struct {
	log *segment.Log
	err error
}

// Report says what a recovery found.
type Report struct {
	Bytes       int64    // replayed from the commit log
	LogEnd      uint64   // the last group of the commit log
	LogDamaged  bool     // the commit log could not be read to its end
	ReadOnly    int      // number of partitions that accept nothing more
	Forgotten   bool     // the commit log lacks something that was durable once; see NoteForgotten
	Corruptions []string // one error text for each damage that was found
}

// NewRecovery returns a recovery that has read nothing yet.
func NewRecovery(s *Store) *Recovery {
	return &Recovery{store: s, Log: replay.New(replay.Options{Sizes: s.sizes(), Folder: s.folder, NowNs: s.clock.NowNs})}
}

// Replay opens the commit log and replays it. If the commit log is damaged, Replay poisons the store: the engine serves
// what could be read, and stores nothing new. Whatever Replay returns, the caller calls Log.Release when the partitions
// are open. level is the directory's feature level. If the log has forgotten something and there is no other replica,
// Replay returns a *clog.Forgotten and has changed nothing.
func (r *Recovery) Replay(node uuid.UUID, level int) error {
	s := r.store
	s.loadAside()
	r.readDamaged()
	s.oldIndexes = level < datadir.MarkLevel
	s.opts.Startup.Enter("reads the commit log")
	log, report, err := clog.Open(s.disk, s.arena, clog.Options{
		Pulse:     s.pulse,
		FileBytes: s.opts.CommitFileBytes, MaxLiveBytes: s.opts.CommitLiveBytes, InFlight: s.opts.GroupsInFlight,
		Store: node, Logger: s.log, Inline: s.host.InlineLog(), MustQueue: s.host.DiskQueues, MarkAfter: s.opts.MarkAfter,
		MarkRequired: level >= datadir.MarkLevel, MayForget: s.replicas != nil,
	}, counted{r.Log, s.opts.Startup})
	var corrupt *segment.CorruptError
	if err != nil && !errors.As(err, &corrupt) {
		return err
	}
	if log == nil {
		return err
	}
	s.clog = log
	s.clog.SlowAfter(s.opts.SlowCommit)
	s.flusher.Use(log)
	if report != nil {
		r.found.Bytes, r.found.LogEnd, r.found.LogDamaged = report.Bytes, report.LastSeq, corrupt != nil
		s.noted = report.Noted
	}
	if derr := r.Log.Finish(); derr != nil {
		return derr
	}
	if corrupt != nil {
		// Acknowledged records are damaged. Serve what can be read, accept nothing new, and report the damage.
		s.log.Error("the commit log is "+harm(corrupt)+": restore a backup of this node, or let a node of a cluster begin "+
			"with an empty data directory", "error", err)
		r.found.Corruptions = append(r.found.Corruptions, err.Error())
		s.poison(err)
	}
	if s.replicas == nil {
		return nil // there is no other replica that could have more
	}
	if f := report.Forgotten; f != nil {
		r.logForgotten(f.File, f.Detail)
	}
	cut := report.Tear != nil && !report.Tear.Mark || report.Forgotten != nil
	return s.replicas.noteShortened(r.Log, cut, corrupt == nil && report.Forgotten == nil)
}

// harm says what is wrong with a commit log that cannot be read to its end, and what helps first.
func harm(corrupt *segment.CorruptError) string {
	const serves = ": this node serves what could be read and stores nothing new"
	if corrupt.Missing {
		return "not whole, because a file of it is missing" + serves + "; put " + corrupt.Path + " back and restart the " +
			"node. If it is gone for good"
	}
	return "corrupt" + serves + ", and a restart does not help"
}

// logForgotten says what a commit log that has forgotten something means for a node of a cluster.
func (r *Recovery) logForgotten(file, detail string) {
	r.found.Forgotten = true
	r.store.log.Warn("the commit log of this node lacks what was written to it: "+detail+". Messages that this node "+
		"answered OK may be missing here. Each copy compares itself with another replica before it leads, and is fetched "+
		"again", "file", file)
}

// NoteForgotten notes durably that the commit log of a node of a cluster has forgotten something, as the segments that
// are on the disk show, although no log mark says so: every copy is shortened. Open calls it before it moves those
// segments away. A crash afterwards leaves the list.
func (r *Recovery) NoteForgotten(file, detail string) error {
	if r.found.Forgotten {
		return nil
	}
	r.logForgotten(file, detail)
	return r.store.replicas.noteShortened(r.Log, true, false)
}

// counted is a replay that tells the start of the node how much it has read.
type counted struct {
	*replay.Replay
	startup *health.Startup
}

// Record implements clog.Replayer.
func (c counted) Record(rec *clog.Record) error {
	c.startup.Bytes(len(rec.Payload))
	return c.Replay.Record(rec)
}

// Restart implements clog.Replayer.
func (c counted) Restart() {
	c.startup.Bytes(-1)
	c.Replay.Restart()
}

// Report returns what recovery found, for Engine.Info.
func (r *Recovery) Report() Report { return r.found }

// Checkpoint implements clog.Source: it emits the state of every partition, with all records that were added to the
// commit log so far. It runs on the committer. It takes Replica.mu of each partition for the commit mark.
func (c *committer) Checkpoint(emit func(chunk []byte)) {
	parts := c.store.Partitions()
	chunk := c.store.clog.MaxChunkBytes()
	buf := checkpoint.AppendCount(nil, len(parts))
	ends := make([]flush.LogEnd, 0, len(parts))
	for _, pt := range parts {
		st := pt.machine.State()
		ends = append(ends, flush.LogEnd{Part: &pt.flush, End: st.End})
		buf = checkpoint.Append(buf, &checkpoint.Entry{
			ID: pt.Identity(), State: st, Committed: pt.CommittedMark(), Epochs: pt.epochs.Entries(), Fold: pt.knownFold(),
		})
		at := 0
		for ; len(buf)-at >= chunk; at += chunk {
			emit(buf[at : at+chunk])
		}
		buf = buf[:copy(buf, buf[at:])]
	}
	emit(buf)
	c.store.flusher.Checkpointed(ends)
}

// DamagedCopies lists the copies that may lack something that this node acknowledged, or that cannot read it. If the
// commit log is damaged, all is true: then every copy counts as damaged, even one that the readable part does not name.
// Otherwise the list has the copies with damaged segments or an unknown fold, and those that are given up. Open reports
// them before the node joins the cluster, so that none of them can be elected.
func (s *Store) DamagedCopies() (ids []segment.Identity, all bool) {
	if s.poisoned.Load() != nil {
		return nil, true
	}
	for _, pt := range s.Partitions() {
		if len(pt.log.Isolated()) > 0 || pt.WhyUnread() != nil || pt.replica.discarded.Load() {
			ids = append(ids, pt.Identity())
		}
	}
	return ids, false
}

// OpenLogs opens the logs of these partitions, several at a time, because opening one waits for the device. Then
// OpenPartition takes them one by one. Opened closes those that were not taken.
func (r *Recovery) OpenLogs(ids []segment.Identity) {
	logs := make([]openedLog, len(ids))
	platform.Each(r.store.host, len(ids), func(i int) { logs[i] = r.openLog(ids[i]) })
	r.logs = make(map[segment.Identity]openedLog, len(ids))
	for i, id := range ids {
		r.logs[id] = logs[i]
	}
}

func (r *Recovery) openLog(id segment.Identity) (o openedLog) {
	s := r.store
	o.log, o.err = segment.Open(s.disk, datadir.PartitionPath(id.Topic, id.Partition), id, r.Log.Partition(id).Base,
		s.segmentOptions())
	return o
}

// Opened ends the recovery. It returns the partitions that OpenPartition returned, and closes the logs that it did not
// take because of an error.
func (r *Recovery) Opened() []*Partition {
	for _, o := range r.logs {
		if o.err == nil {
			_ = o.log.Close() // nothing was written
		}
	}
	r.logs = nil
	return r.opened
}

// OpenPartition opens the log of a partition, unless OpenLogs did, and adds the batches that were replayed for it, if
// any.
func (r *Recovery) OpenPartition(t *Topic, n uint32) (*Partition, error) {
	s := r.store
	rp := r.Log.Partition(segment.Identity{Topic: t.ID, Partition: n})
	pt := newPartition(s, t, n, rp.State, rp.Fold)
	pt.recovered = rp.Committed
	pt.epochs.Reset(rp.Epochs.Entries())
	pt.replica = s.newReplica(pt)
	o, ok := r.logs[rp.ID]
	if delete(r.logs, rp.ID); !ok {
		o = r.openLog(rp.ID)
	}
	if o.err != nil {
		return nil, fmt.Errorf("engine: topic %s, partition %d: %w", t.Name, n, o.err)
	}
	log := o.log
	pt.log = log
	if err := r.fill(pt, rp); err != nil {
		return nil, errors.Join(fmt.Errorf("engine: topic %s, partition %d: %w", t.Name, n, err), log.Close())
	}
	r.opened = append(r.opened, pt)
	r.readFold(pt, rp)
	pt.writer = rp.Writer
	if pt.replica.solo() { // on a single node, everything that was recovered is committed
		pt.correctDelays()
		pt.visible.Store(uint64(rp.State.NextID))
	}
	pt.publishFold(rp.State.NextID)
	pt.LookForLost()
	if len(rp.Slices) != 0 {
		s.flusher.MarkDirty(&pt.flush)
	}
	unknown := log.Health() != nil // to the restore that made this directory
	r.meetDamaged(pt)
	if err := errors.Join(rp.Err, log.Health()); err != nil {
		r.found.Corruptions = append(r.found.Corruptions, err.Error())
		if pt.replica.solo() && rp.Err == nil && !unknown {
			s.log.Error("a partition lacks messages: they did not verify in the backup that this node was restored from, and "+
				"are not served; the others are", "topic", t.Name, "partition", n, "error", err)
			return pt, nil
		}
		if !pt.replica.solo() && rp.Err == nil {
			// The replica does not lead before the damaged range has been repaired from another replica. Then it
			// accepts puts like any other.
			s.log.Error("a copy of a partition does not read back: it does not lead before it is repaired from another replica",
				"topic", t.Name, "partition", n, "error", err)
			return pt, nil
		}
		s.log.Error("a partition is read-only", "topic", t.Name, "partition", n, "error", err)
		r.refuse(pt, errs.ErrReadOnly)
	}
	return pt, nil
}

// refuse makes a partition read-only: it answers everything that it should store with err until a restart.
func (r *Recovery) refuse(pt *Partition, err error) {
	r.found.ReadOnly++
	pt.readOnly.Store(true)
	pt.machine.Corrupt(err)
}

// ReadOnly says that the partition stores nothing new until a restart, because recovery did not find its log whole or
// does not know its entries. Any goroutine may call it.
func (pt *Partition) ReadOnly() bool { return pt.readOnly.Load() }

// newReplica returns the replica of a copy that recovery found. The copy's log is not open yet.
func (s *Store) newReplica(pt *Partition) *Replica {
	if s.replicas == nil {
		return newSolo(pt)
	}
	return s.replicas.newReplica(pt)
}

// fill appends the batches of the commit log to pt's log in memory.
func (r *Recovery) fill(pt *Partition, rp *replay.Partition) error {
	if rp.Restarted {
		if err := pt.log.Reset(rp.Base); err != nil { // a crash may have prevented the removal of the old files
			return err
		}
	}
	for i := range rp.Slices {
		pt.log.Append(&rp.Slices[i])
	}
	pt.newest = pt.log.NewestAppended()
	end, _, _ := pt.log.End()
	pt.flush.Recovered(end, pt.newest, r.store.clock.Mono())
	return r.discardUnreadableHead(pt)
}

func (s *Store) segmentOptions() segment.Options {
	return segment.Options{Mappings: s.mappings, OldIndexes: s.oldIndexes, Noted: s.noted}
}
