package replicate

import "errors"

// Reasons for a refused write or a stopped machine; test for them with errors.Is.
var (
	ErrNotLeader = errors.New(
		"replicate: this node does not lead the partition: nothing of the write was stored; send it to the leader")
	ErrNoQuorum = errors.New("replicate: fewer replicas are in sync than min_isr demands: nothing of the write was " +
		"stored; it can be repeated when a replica is back")
	ErrLeaseLost = errors.New("replicate: the node's lease ran out, another may lead by now: nothing of the write was " +
		"stored; look the leader up and repeat it")
	ErrNotYet = errors.New("replicate: the epoch's first batch is not appended yet, or too much is not committed: " +
		"nothing of the write was stored; ask again")
	ErrDisk = errors.New("replicate: the disk failed: the replica acknowledges nothing more until its node is " +
		"restarted; writes not yet answered are unknown")

	// ErrContested says that the leader asked this replica to give up batches that it knows to be committed, or more than
	// a leader may leave uncommitted. Nothing is cut: this copy may be the only one that has them.
	ErrContested = errors.New("replicate: this copy has messages that its leader's log lacks and that were probably " +
		"answered OK: nothing is cut, and the copy does not follow; force-leader with the node that is right ends this, " +
		"and what the others cut is kept aside")

	// ErrDamaged says that the leader sent a different batch for a position that is taken. Nothing is cut: this copy may
	// be the only good one.
	ErrDamaged = errors.New("replicate: the leader's log contradicts what is committed here: the replica keeps its data " +
		"and refuses to follow; compare the replicas, then wipe the wrong one")

	// ErrCorrupt is why a replica with unreadable batches is not electable.
	ErrCorrupt = errors.New("replicate: stored batches do not read back: the replica fetches them again from another " +
		"one, and is not electable until it has them")

	// ErrNoCommon says that two leader-epoch tables share no epoch.
	ErrNoCommon = errors.New("replicate: the two logs share no epoch: the replica must be filled anew")
	// ErrEpochConflict says that two logs place the start of one epoch differently, which one leader cannot have done.
	ErrEpochConflict = errors.New(
		"replicate: one epoch begins at two places: one of the logs is damaged; compare the replicas")
	// ErrInvalid says that bytes are not a leader-epoch table.
	ErrInvalid = errors.New("replicate: not a valid leader-epoch table: it was damaged on the way; nothing of it was used")
)

// fenced is an ErrNotLeader that says why.
type fenced struct{}

func (fenced) Error() string {
	return "replicate: a newer epoch exists: this node no longer leads; writes not yet answered are unknown, look the " +
		"leader up"
}
func (fenced) Unwrap() error { return ErrNotLeader }

// ErrFenced says that another incarnation leads. It is an ErrNotLeader.
var ErrFenced error = fenced{}
