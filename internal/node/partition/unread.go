package partition

import (
	"errors"

	"penstock/internal/node/fold"
	"penstock/internal/node/logread"
	"penstock/internal/node/replay"
)

// A partition is unread if its log has control entries that this version does not know. Its bytes are kept, replicated
// and written to segments as usual. But its fold, which says what its channels have confirmed, is not known. An unread
// partition does not lead or serve and accepts nothing from clients, and retention leaves it alone. A checkpoint of the
// commit log says that its fold is not known. A version that knows the entries reads the fold from the segments, whose
// first batches are checkpoints, so nothing is lost.
//
// A copy whose log begins with a segment without a fold is unread, too (replay.ErrNoFold), until its leader sends a
// batch that contains the fold.

// WhyUnread returns why the fold is not known, or nil if it is known. Any goroutine may call it.
func (pt *Partition) WhyUnread() error {
	if err := pt.unread.Load(); err != nil {
		return *err
	}
	return nil
}

// setUnread records why the fold is not known. With nil, the fold is known (again). Recovery calls it, and the
// committer with Replica.mu held.
func (pt *Partition) setUnread(err error) {
	if err == nil {
		pt.unread.Store(nil)
		return
	}
	pt.unread.Store(&err)
}

// knownFold returns the fold for a checkpoint, or nil if it is not known.
func (pt *Partition) knownFold() *fold.Cursors {
	if pt.WhyUnread() != nil {
		return nil
	}
	return pt.fold
}

// readFold completes the recovery of a partition whose fold the replay does not know. If the only reason is that the
// checkpoint has no fold, readFold reads the fold from the segments. Otherwise it logs the reason and makes the
// partition read-only.
func (r *Recovery) readFold(pt *Partition, rp *replay.Partition) {
	s := r.store
	if rp.Unread == nil {
		return
	}
	err := rp.Unread
	if errors.Is(err, replay.ErrFoldNotStored) || errors.Is(err, replay.ErrNoFold) {
		var past logread.Past
		if past, err = pt.pastAt(rp.State.Next); err == nil && past.Unread == nil {
			pt.fold = past.Fold
			s.log.Info("the state of a partition's channels was read from its segments, because the commit log does not "+
				"have it", "topic", pt.topic.Name, "partition", pt.number)
			return
		}
		err = errors.Join(err, past.Unread)
	}
	if errors.Is(err, replay.ErrNoFold) && !pt.replica.solo() {
		pt.setUnread(replay.ErrNoFold)
		pt.replica.logUnread(replay.ErrNoFold)
		return
	}
	pt.setUnread(err)
	s.log.Error("a partition has entries that a newer version wrote: all its messages are kept, it is not served or "+
		"led by this node and takes nothing new; start the newer version",
		"topic", pt.topic.Name, "partition", pt.number, "error", err)
	r.refuse(pt, fold.ErrNewerControl)
}

// cannotFold makes the partition unread, because the batch that was just appended cannot be folded. The node keeps the
// bytes of the batch, but must not lead. It runs on the committer with mu held.
func (r *Replica) cannotFold(err error) {
	was := r.pt.WhyUnread()
	r.pt.setUnread(err)
	if was != nil && errors.Is(err, was) {
		return
	}
	r.logUnread(err)
	r.reportDamage()
}

// foundFold ends what cannotFold began: the batch that was just appended contains the whole fold. It runs on the
// committer with mu held.
func (r *Replica) foundFold() {
	r.pt.setUnread(nil)
	r.node.store.log.Info("the state of a partition's channels is known again: its leader has sent it",
		"topic", r.pt.topic.Name, "partition", r.pt.number)
	r.reportDamage()
}

// logUnread logs why the fold of a copy is not known.
func (r *Replica) logUnread(err error) {
	what := "a partition has entries that a newer version wrote: this node stores the messages and will not lead the " +
		"partition; start the newer version here"
	if errors.Is(err, replay.ErrNoFold) {
		what = "the leader's log of a partition begins without the state of the channels: this node stores the messages, " +
			"and does not lead the partition before its leader has sent that state"
	}
	r.node.store.log.Error(what, "topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
}
