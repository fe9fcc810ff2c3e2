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

	"penstock/engine/base"
	"penstock/engine/meta"
	"penstock/internal/lock"
	"penstock/replicate"
	"penstock/segment"
	"penstock/segment/aio"
)

const (
	shortenedFile = "shortened.json"
	// shortenedWritePause delays a write of the file, so that the changes of many partitions go into one write.
	shortenedWritePause = time.Second
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

// readShortened reads the list that earlier processes left in the directory. After an error every copy has to be taken
// for shortened.
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

// noteShortened reads the list, adds the copies that this recovery shortened, and writes it before anything is written
// to the commit log. torn says that recovery cut a group that may have been acknowledged. whole says that the commit
// log was read to its end; otherwise it does not say which topics exist, so none is taken for deleted.
func (cn *replicaNode) noteShortened(r *recovery, torn, whole bool) error {
	e := cn.e
	var err error
	if cn.shortened, err = readShortened(e.disk); err != nil {
		e.log.Warn("the list of copies that an earlier recovery shortened cannot be read: all are taken for such",
			"error", err)
		torn = true
	}
	forgotten := false
	for id := range cn.shortened.discarded {
		if r.parts[id] == nil && whole { // its topic was deleted; nobody else uses the list yet
			forgotten = true
			delete(cn.shortened.ids, id)
			delete(cn.shortened.discarded, id)
		}
	}
	var ids []segment.Identity
	for _, rp := range r.order {
		if (torn || rp.committed > rp.st.Next) && !cn.shortened.has(rp.id) {
			ids = append(ids, rp.id)
		}
	}
	if named := len(ids); named > 0 {
		e.log.Warn("the copies of this node may lack the last messages that it answered OK for: each of them "+
			"compares itself with another replica before it leads", "partitions", named)
	}
	if torn && !cn.shortened.has(unnamedCopies) {
		ids = append(ids, unnamedCopies)
	}
	if len(ids) == 0 && forgotten { // a new copy with this identity must not count as given up
		return cn.shortened.write()
	}
	if len(ids) == 0 {
		return nil
	}
	return cn.shortened.add(ids)
}

// listUnnamed replaces unnamedCopies in the list, durably, by the copies that the store says are on this node and that
// recovery does not know. It also removes copies that are not here any more, because their topics were deleted or they
// have moved. join calls it before any copy is opened. snap is not older than the registration of this process, so it
// names every copy that an earlier process held. If the commit log could not be read to its end, this process leads
// nothing, and the next one does this.
//
// If the file cannot be written, the node does not join: copies named only in memory would get records, and the next
// process would find these and take the copies for whole.
func (cn *replicaNode) listUnnamed(snap *meta.Snapshot) error {
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

// noteWhole removes a copy from the list when its machine has all that is committed. mu is held.
func (r *replica) noteWhole() {
	if !r.shortened || r.leader != nil && r.leader.Shortened() || r.follower != nil && r.follower.Shortened() ||
		r.leader == nil && r.follower == nil {
		return
	}
	r.shortened = false
	r.cn.log.Info("a copy that recovery had shortened has all that is committed",
		"topic", r.pt.t.name, "partition", r.pt.number)
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

// unlistShortened removes a copy whose bytes are removed from the list, durably. If this node becomes a replica again,
// the copy begins empty like any other. It takes replica.mu, file and shortenedCopies.mu, one after the other.
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

// writeShortened writes the file until it has the newest list. It runs on a goroutine that noteWhole starts. If the
// file cannot be written, some copies are compared once more than needed.
func (cn *replicaNode) writeShortened() {
	s := cn.shortened
	for told := 0; ; {
		cn.pause(shortenedWritePause)
		before := s.count() // meanwhile copies are only removed: add writes the file itself
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
			cn.log.Warn("it could not be kept that copies are whole again: they are compared once more at the next start",
				"error", err)
		}
	}
}

// handOverShortened asks the store to make the node the leader whose log has what recovery cut off this node's log. mu
// is held.
func (r *replica) handOverShortened(a *replicate.Action) {
	st, to := a.State, a.Node
	if r.yieldedEpoch != st.Epoch {
		r.yieldedEpoch = st.Epoch
		r.cn.yields.Add(1)
		r.cn.log.Warn("another replica has more of a partition than this one, whose log was shortened by recovery: it is "+
			"made the leader; nothing is cut",
			"topic", r.pt.t.name, "partition", r.pt.number, "epoch", st.Epoch, "to", to, "its_end", a.Position)
	}
	r.cn.spawn(func() {
		ctx, cancel := r.cn.e.host.WithTimeout(r.cn.ctx, storeTimeout)
		defer cancel()
		if err := r.cn.store.HandOver(ctx, r.pt.identity(), &st, to); err != nil && !errors.Is(err, meta.ErrConflict) &&
			r.cn.ctx.Err() == nil {
			r.cn.log.Info("a partition whose log was shortened could not be handed over yet; it is tried again",
				"topic", r.pt.t.name, "partition", r.pt.number, "to", to, "error", err)
		}
	})
}

// logComparing logs once per epoch that a partition has been waiting for another replica for long. mu is held.
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
		r.cn.log.Warn("a partition waits: this node leads it, its log was shortened by recovery, and no other member of "+
			"the ISR can be asked whether it has more. Nothing is lost: start another replica of it; if none can come back, "+
			"force-leader with this node gives up what only they had",
			"topic", r.pt.t.name, "partition", r.pt.number, "epoch", r.leader.Epoch())
	}
}

// noteBlocked logs and counts that the comparison waits for a damaged replica, when that changes. mu is held.
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
	r.cn.log.Error("a partition waits: this node leads it, its log was shortened by recovery, and the replica that "+
		"may have what is missing is damaged and cannot lead. Restart that node, or start another replica of the "+
		"partition; if nothing helps, force-leader with this node gives up what only the damaged replica had",
		"topic", r.pt.t.name, "partition", r.pt.number, "epoch", r.leader.Epoch(), "damaged", by)
}
