package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/engine/meta"
	"penstock/internal/lock"
	"penstock/replicate"
	"penstock/segment"
	"penstock/segment/aio"
)

const (
	shortenedFile = "shortened.json"
	// shortenedWritePause gathers what many partitions have to say within it into one write of the file.
	shortenedWritePause = time.Second
	// maxShortenedBytes is what the file may have: about 60 bytes for each partition.
	maxShortenedBytes = 256 << 20
)

// shortenedCopies are the copies of this node that may lack what it acknowledged: recovery cut the last group of the commit log, and nobody knows whether it was torn
// or has changed since, or the log ends before what was known to be committed. Such a copy does not lead before it has compared its log with another
// (replicate/compare.go), and follows as any other. The list outlives the process: the next recovery does not see the group any more. A copy is taken out when its
// machine has all that is committed; a crash before the file says so costs one more comparison.
//
// A copy may have had no other record than those of the group that was cut: then recovery does not know of it, and it
// would begin with nothing and count as whole. So a recovery that cuts puts unnamedCopies in, and the rows of the store
// say which these are (listUnnamed).
type shortenedCopies struct {
	disk   aio.Disk
	file   lock.Mutex[lock.ShortenedFile] // held while the file is written, so that the last write has the last list; taken before mu
	stored []byte                         // under file: what the file says; nil: there is none, or it could not be read

	mu        lock.Mutex[lock.Shortened]
	ids       map[segment.Identity]bool
	durable   map[segment.Identity]bool // what the file says, durably; empty after a write that failed
	discarded map[segment.Identity]bool // those of ids that were given up and have not begun anew, and lack what the commit log has let go of
	version   uint64                    // of dropped
	written   uint64                    // <= version: what the file says of dropped, durably; of a write that failed nobody knows how far it came
	writing   bool                      // a goroutine will write the file, or does
}

// unnamedCopies stands for the copies that only the cut group knew. It is in the list from the recovery until a process
// of this node has joined; no topic has this UUID.
var unnamedCopies segment.Identity

// shortenedRow is one entry of the file, a JSON list.
type shortenedRow struct {
	Topic     uuid.UUID `json:"topic"`
	Partition uint32    `json:"partition"`
	Dropped   bool      `json:"dropped,omitempty"`
}

// readShortened reads what earlier recoveries of this directory left. The error is one of reading: then each copy may be one.
func readShortened(disk aio.Disk) (*shortenedCopies, error) {
	s := &shortenedCopies{disk: disk, ids: map[segment.Identity]bool{}, discarded: map[segment.Identity]bool{}}
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

// isDurable says whether the file has a copy: the next process will know of it, whenever this one ends.
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

// add puts copies in, durably.
func (s *shortenedCopies) add(ids []segment.Identity) error {
	s.mu.Lock()
	for _, id := range ids {
		s.ids[id] = true
	}
	s.mu.Unlock()
	return s.write()
}

// setDiscarded says, durably, whether a copy is given up. That it is must be kept before the commit log lets go of what the copy's segments do not have (mayReleaseFiles); that it
// is not any more, when the record that begins it anew is durable and before anything is acknowledged. After an error it is not known what the file says, and it is
// written again.
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

// write makes the file what ids is.
func (s *shortenedCopies) write() error {
	s.file.Lock()
	defer s.file.Unlock()
	return s.writeLocked()
}

// writeLocked is write where file is held.
func (s *shortenedCopies) writeLocked() error {
	s.mu.Lock()
	rows := make([]shortenedRow, 0, len(s.ids))
	for _, id := range sortedPartitions(s.ids) {
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

// noteShortened finds the copies that this recovery shortened, and those of earlier ones, and keeps their names before anything is written to the commit log.
// A single node has nobody to compare with. A commit log that is not whole, because it could not be read to its end, does not say which topics there are.
func (r *recovery) noteShortened(torn, whole bool) error {
	e := r.e
	if e.cluster == nil {
		return nil
	}
	var err error
	if e.cluster.shortened, err = readShortened(e.disk); err != nil {
		e.log.Warn("the list of copies that an earlier recovery shortened cannot be read: all are taken for such", "error", err)
		torn = true
	}
	forgotten := false
	for id := range e.cluster.shortened.discarded {
		if r.parts[id] == nil && whole { // its topic was deleted; nobody else has the list yet
			forgotten = true
			delete(e.cluster.shortened.ids, id)
			delete(e.cluster.shortened.discarded, id)
		}
	}
	var ids []segment.Identity
	for _, rp := range r.order {
		if (torn || rp.committed > rp.st.Next) && !e.cluster.shortened.has(rp.id) {
			ids = append(ids, rp.id)
		}
	}
	if named := len(ids); named > 0 {
		e.log.Warn("the copies of this node may lack the last messages that it answered OK for: each of them "+
			"compares itself with another replica before it leads", "partitions", named)
	}
	if torn && !e.cluster.shortened.has(unnamedCopies) {
		ids = append(ids, unnamedCopies)
	}
	if len(ids) == 0 && forgotten { // a new copy of that name must not be taken for one that was given up
		return e.cluster.shortened.write()
	}
	if len(ids) == 0 {
		return nil
	}
	return e.cluster.shortened.add(ids)
}

// listUnnamed puts the copies in, durably, that the store says are here and recovery knows nothing of, if a recovery
// has cut a group since this was done last. It takes those out that are here no more: their topics were deleted, or they
// have moved away. snap is not older than the registration of this process, so it has each copy that an earlier one held.
// join calls it before any of them is opened. Where the commit log could not be read to its end, this process leads
// nothing, and the next one asks.
//
// If the file cannot be written, the node does not join: a copy whose name is only in memory gets records, and the next
// process would know it by them, and take it for whole.
func (cn *clusterNode) listUnnamed(snap *meta.Snapshot) error {
	if cn.e.poisoned.Load() != nil {
		return nil
	}
	s := cn.shortened
	here := map[segment.Identity]bool{}
	for _, pt := range cn.e.partitionList() {
		here[pt.identity()] = true
	}
	s.mu.Lock()
	unnamed := s.ids[unnamedCopies]
	named := 0
	for id, row := range snap.Partitions {
		if unnamed && !here[id] && !s.ids[id] && slices.Contains(row.State.Replicas, cn.self.ID) {
			s.ids[id] = true
			named++
		}
	}
	for id := range s.ids {
		if row := snap.Partitions[id]; !here[id] && (row == nil || !slices.Contains(row.State.Replicas, cn.self.ID)) {
			delete(s.ids, id)
		}
	}
	s.mu.Unlock()
	if named > 0 {
		cn.log.Warn("copies of this node may have had nothing but what a start cut off its commit log: each of them "+
			"compares itself with another replica before it leads", "partitions", named)
	}
	if !unnamed {
		return nil
	}
	return s.write()
}

// noteWhole takes a copy out when its machine has all that is committed. mu is held.
func (r *replica) noteWhole() {
	if !r.shortened || r.leader != nil && r.leader.Shortened() || r.follower != nil && r.follower.Shortened() || r.leader == nil && r.follower == nil {
		return
	}
	r.shortened = false
	r.cn.log.Info("a copy that recovery had shortened has all that is committed", "topic", r.pt.t.name, "partition", r.pt.number)
	s := r.cn.shortened
	s.mu.Lock()
	delete(s.ids, r.pt.identity())
	begin := !s.writing
	s.writing = true
	s.mu.Unlock()
	if begin {
		r.cn.spawn(r.cn.writeShortened)
	}
}

// unlistShortened takes a copy out that is being removed: if its node becomes a replica again, it begins with nothing, as any
// other.
func (r *replica) unlistShortened() error {
	r.mu.Lock()
	r.shortened = false
	r.mu.Unlock()
	s := r.cn.shortened
	s.mu.Lock()
	listed := s.ids[r.pt.identity()]
	delete(s.ids, r.pt.identity())
	s.mu.Unlock()
	if !listed {
		return nil
	}
	return s.write()
}

// writeShortened writes the file until it says what is known. If it cannot be written, copies are compared once more than needed.
func (cn *clusterNode) writeShortened() {
	s := cn.shortened
	for told := 0; ; {
		cn.pause(shortenedWritePause)
		before := s.count() // copies are only taken out
		err := s.write()
		s.mu.Lock()
		if done := err == nil && len(s.ids) == before; done || cn.ctx.Err() != nil {
			s.writing = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if err != nil && told == 0 {
			told++
			cn.log.Warn("it could not be kept that copies are whole again: they are compared once more at the next start", "error", err)
		}
	}
}

// handOverShortened asks the store to make a node the leader whose log has what this one's recovery cut. mu is held.
func (r *replica) handOverShortened(a *replicate.Action) {
	st, to := a.State, a.Node
	if r.yieldedEpoch != st.Epoch {
		r.yieldedEpoch = st.Epoch
		r.cn.yields.Add(1)
		r.cn.log.Warn("another replica has more of a partition than this one, whose log was shortened by recovery: it is made the leader; nothing is cut",
			"topic", r.pt.t.name, "partition", r.pt.number, "epoch", st.Epoch, "to", to, "its_end", a.Position)
	}
	r.cn.spawn(func() {
		ctx, cancel := r.cn.e.host.WithTimeout(r.cn.ctx, storeTimeout)
		defer cancel()
		if err := r.cn.store.HandOver(ctx, r.pt.identity(), &st, to); err != nil && !errors.Is(err, meta.ErrConflict) && r.cn.ctx.Err() == nil {
			r.cn.log.Info("a partition whose log was shortened could not be handed over yet; it is tried again", "topic", r.pt.t.name, "partition", r.pt.number, "to", to, "error", err)
		}
	})
}

// logComparing says once in an epoch that a partition waits for another replica. mu is held.
func (r *replica) logComparing(now int64) {
	const patience = 10 * time.Second
	r.noteBlocked()
	switch {
	case r.blocked != 0:
	case r.leader == nil || !r.leader.Comparing() || r.yieldedEpoch == r.leader.Epoch():
		r.comparing = 0
	case r.comparing == 0:
		r.comparing = now
	case r.comparing > 0 && now-r.comparing > int64(patience):
		r.comparing = -1
		r.cn.comparingWaits.Add(1)
		r.cn.log.Warn("a partition waits: this node leads it, its log was shortened by recovery, and no other member of the ISR can be asked whether it has more. "+
			"Nothing is lost: start another replica of it; if none can come back, force-leader with this node gives up what only they had",
			"topic", r.pt.t.name, "partition", r.pt.number, "epoch", r.leader.Epoch())
	}
}

// noteBlocked says once that the comparison waits for a replica that is damaged. mu is held.
func (r *replica) noteBlocked() {
	by := replicate.NodeID(0)
	if r.leader != nil {
		by = r.leader.Blocked()
	}
	if by == r.blocked {
		return
	}
	if r.blocked != 0 {
		r.cn.blocked.Add(-1)
	}
	if r.blocked = by; by == 0 {
		return
	}
	r.cn.blocked.Add(1)
	r.cn.comparingWaits.Add(1)
	r.cn.log.Error("a partition waits: this node leads it, its log was shortened by recovery, and the replica that may have what is missing is damaged and cannot lead. "+
		"Restart that node, or start another replica of the partition; if nothing helps, force-leader with this node gives up what only the damaged replica had",
		"topic", r.pt.t.name, "partition", r.pt.number, "epoch", r.leader.Epoch(), "damaged", by)
}
