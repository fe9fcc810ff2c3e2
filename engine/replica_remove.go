package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"penstock/engine/core"
	"penstock/engine/meta"
	"penstock/replicate"
	"penstock/segment"
)

// The bytes of a copy that moved away go when the cluster has decided that this node is no replica any more, and every replica that is left has what is
// committed. Absent metadata decides nothing: without a row nothing goes.
//
//	goroutine                                  committer
//	                                           1 writes a record that begins the log anew, at nothing; from here on
//	                                             the partition's machine, fold and table are empty
//	                                           2 the record is durable
//	3 removes the segments, through the trash
//
// The row that this node knows may be an old one: the partition may have come back to this node, and its copy may be in
// sync again, all before this node heard that it had left. So before 1 the node reads the row in the store itself. By
// then the copy takes no part any more: whatever it has answered, and a leader may have counted, was before, and if a
// leader of a later row counted it, that row is what the store has now.
//
// From 1 until 3 is done no commit log file goes, so after 2 recovery finds the record and removes the files before
// anything else. A crash before 2 leaves the copy as it was, or given up: before 1 the commit log may let go of what
// the segments do not take (spare), or a log that is full of it could not take the record. The partition stays open,
// with an empty log: if the node becomes a replica again it begins there.

// removeIfUnneeded removes this node's bytes of pt if row says that it can. It runs on the worker that applies what the store says.
func (cn *clusterNode) removeIfUnneeded(snap *meta.Snapshot, pt *partition, row *meta.Partition) {
	r := pt.rep
	if !cn.isUnneeded(snap, row) {
		return
	}
	r.mu.Lock()
	has := !r.removing && (r.pt.log != nil && r.closed || r.pt.log == nil && !r.leftoversRemoved)
	if has {
		r.removing = true
	}
	r.mu.Unlock()
	if has {
		cn.spawn(func() { r.remove() })
	}
}

// isUnneeded says that nobody needs what this node has of a partition.
func (cn *clusterNode) isUnneeded(snap *meta.Snapshot, row *meta.Partition) bool {
	return !slices.Contains(row.State.Replicas, cn.self.ID) && fullyInSync(snap, row)
}

// confirmUnneeded asks the store whether the row of now still says so. It waits until the store answers, or this node
// closes. If it does not, the row that does comes with the watch.
func (r *replica) confirmUnneeded() bool {
	cn := r.cn
	for cn.ctx.Err() == nil {
		ctx, cancel := cn.e.host.WithTimeout(cn.ctx, storeTimeout)
		row, err := cn.store.ReadPartition(ctx, r.pt.identity())
		cancel()
		switch {
		case err == nil:
			return cn.isUnneeded(cn.store.Snapshot(), row)
		case errors.Is(err, meta.ErrNotFound):
			return false // the topic is deleted; that removes its files
		}
		cn.pause(retryInterval)
	}
	return false
}

// fullyInSync says that every replica of a partition is in sync, with the disk that it has now, and can read what it holds.
func fullyInSync(snap *meta.Snapshot, row *meta.Partition) bool {
	for _, id := range row.State.Replicas {
		n := snap.Nodes[id]
		if n == nil {
			return false
		}
		if m := (replicate.Member{Node: id, Store: n.Store}); !slices.Contains(row.State.ISR, m) || slices.Contains(row.Damaged, m) {
			return false
		}
	}
	return len(row.State.Replicas) > 0 && len(row.State.ISR) >= row.State.MinISR
}

// isTearingDown says that the bytes of an earlier copy are on their way out, or its log is being cut: a new one cannot begin yet.
func (r *replica) isTearingDown() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removing || r.closed && r.cut != nil
}

// remove ends removing only if everything is gone. Else the log in memory is not what the record speaks of, or the record is not durable: until
// the next start nothing more is removed, and no new copy begins.
func (r *replica) remove() {
	if !r.confirmUnneeded() {
		r.mu.Lock()
		r.removing = false
		r.mu.Unlock()
		return
	}
	err := r.removeBytes()
	switch {
	case err == nil:
		r.mu.Lock()
		r.removing, r.leftoversRemoved = false, true
		r.mu.Unlock()
	case errors.Is(err, ErrClosed), errors.Is(err, segment.ErrClosed):
	case r.cn.e.poisoned.Load() != nil:
	default:
		r.cn.log.Error("what this node has of a partition that moved away could not be removed; it is tried again at the next start",
			"topic", r.pt.t.name, "partition", r.pt.number, "error", err)
	}
}

func (r *replica) removeBytes() error {
	e, pt := r.cn.e, r.pt
	if err := e.poisoned.Load(); err != nil {
		return *err // a start that reads the commit log may find more of the copy there, and needs its files
	}
	if !r.hasLog() { // a process before this one may have made files and ended before its commit log said anything of them
		return e.trashLeftovers(pt)
	}
	for r.cutInProgress() { // an earlier cut ends first
		if !e.host.Pause(time.Millisecond, e.stop) {
			return ErrClosed
		}
	}
	if !r.isEmpty() {
		bytes := pt.log.Bytes()
		release, err := r.resetToEmpty()
		if err != nil {
			return err
		}
		defer release()
		r.cn.log.Info("what this node had of a partition that moved away is removed", "topic", pt.t.name, "partition", pt.number, "bytes", bytes)
	}
	if err := r.clearDiscarded(); err != nil {
		return err
	}
	if err := r.unlistShortened(); err != nil {
		return err
	}
	err := errors.Join(pt.log.Reset(segment.State{}), e.trashLeftovers(pt))
	pt.reopenInbox()
	return err
}

// cutInProgress says whether a cut goes on. One that failed does not keep a copy that moved away from going: the record that
// begins its log anew needs nothing of it.
func (r *replica) cutInProgress() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cut != nil && !r.cut.failed
}

func (r *replica) isEmpty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pt.machine.State() == (segment.State{})
}

// resetToEmpty writes the record and waits until it is durable. Its file stays until release is called.
func (r *replica) resetToEmpty() (release func(), err error) {
	e, pt := r.cn.e, r.pt
	c := &logCut{reset: true, ready: true, pinFiles: true, fold: new(core.Cursors), durable: make(chan error, 1)}
	c.payload = append(c.payload, cutReset, 0, 0, 0, 0, 0, 0, 0)
	c.payload = appendEntry(c.payload, pt.identity(), &entry{fold: c.fold})
	closed := false
	r.run(func() {
		if closed = !r.closed; closed {
			return
		}
		r.generation++
		r.durable = 0
		r.cut, r.out.work = c, true
	})
	if closed {
		panic("BUG: engine: the bytes of a copy that takes part are removed")
	}
	err, ok := e.host.Result(c.durable, e.stop)
	if !ok {
		return nil, ErrClosed
	}
	if err != nil {
		return nil, err
	}
	r.run(func() {
		r.cut, r.damaged = nil, nil
		pt.visible.Store(0)
	})
	return c.release, nil
}

// leftovers makes trash names of one process unique.
var leftovers atomic.Uint64

// trashLeftovers puts away what lies in the partition's directory and is in no segment of its log. Reset removes the segments that the log lists; one
// from before the log's last beginning, which a restart did not list, would stand below the new ones and look like the end of a gap. Nothing is
// appended to the log meanwhile. Without a log no file is of use: no record of the commit log speaks of the partition.
func (e *Engine) trashLeftovers(pt *partition) error {
	dir := partitionDir(pt.t.uuid, pt.number)
	files, err := e.disk.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	listed := map[string]bool{}
	if pt.rep.hasLog() {
		for _, s := range pt.log.Segments() {
			name := path.Base(s.Path)
			listed[name], listed[strings.TrimSuffix(name, ".seg")+".idx"] = true, true
		}
	}
	moved := false
	for i := 0; i < len(files) && err == nil; i++ {
		name := files[i].Name()
		if listed[name] {
			continue
		}
		if err = e.disk.MkdirAll(trashDir); err == nil {
			err = e.disk.Rename(path.Join(dir, name), path.Join(trashDir, fmt.Sprintf("%s-%d-left%d-%s", pt.t.uuid, pt.number, leftovers.Add(1), name)))
		}
		moved = true
	}
	if err == nil && moved {
		err = e.disk.SyncDir(dir)
	}
	return err
}
