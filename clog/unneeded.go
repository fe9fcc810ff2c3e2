package clog

import "slices"

// A file is removed only after a group whose header says that the file is not needed (oldest) is durable. A crash in
// between leaves the file in the folder, although its contents are in segments that are synced. Recovery cannot know
// that before it has seen the last group. So it replays from the oldest file it finds, and then begins again with the
// file that the last group names. It must begin again: replay writes the segments of its batches anew and does not sync
// them at once, and meanwhile the last group on disk would still say that the log's copy is not needed. A crash between
// the two walks changes nothing on disk.
//
//	file      7                  8                  9
//	        ├──────────────────┼──────────────────┼──────────┬─ ─ ─
//	                                                group 95: oldest 8, the last one
//	                           └► replay begins here
//
// For the same reason, recovery treats damage in files below the last group's oldest as if those files were gone.
// Because of the damage the chain does not lead to the last group, so recovery looks for a second chain behind the
// damage. It believes the last group of that chain only if the chain ends where the log may have ended. Suppose that a
// file behind that end holds neither zeros nor old groups of another file. Such a file may have held a later group with
// another oldest, so recovery reports the damage.

// firstNeeded returns the index of the file with which replay must begin: the file that the last group names. While the
// checkpoint of a file is being written, its groups may already name that same file. Then replay must begin with an
// older file, the newest one whose checkpoint is complete. ok is false if no such file is part of the chain.
func (r *recovery) firstNeeded() (first int, ok bool) {
	for i, f := range slices.Backward(r.files) {
		if r.begun && f.whole && f.number <= r.last.Oldest && f.number >= r.report.OldestFile {
			return i, true
		}
	}
	return 0, false
}

// unneededBelow looks for a chain behind the damage that does not need the damaged files. It returns the index of the
// first file that this chain needs.
func (r *recovery) unneededBelow() (first int, ok bool) {
	for from := r.at + 1; from < len(r.files); {
		probe := &recovery{
			disk: r.disk, store: r.store, block: r.block, replayer: nobody{}, report: new(Report),
			win: window{arena: r.win.arena, block: r.block}, files: r.files, used: map[uint64]int64{},
		}
		probe.turnTo(from)
		err := probe.walk() // also an error if the last group needs a file before from: see checkOldest
		ok := err == nil && probe.begun && probe.endsUnused()
		probe.win.release()
		probe.checkpoint.drop()
		switch {
		case ok:
			return probe.firstNeeded()
		case !probe.damaged:
			return 0, false
		}
		from = probe.at + 1 // that file is damaged, too
	}
	return 0, false
}

// endsUnused says whether no file behind the chain's end was ever written to under its own number.
func (r *recovery) endsUnused() bool {
	var h groupHeader
	for _, f := range r.files {
		if f.number <= r.last.File || f.sizeBytes < r.block {
			continue
		}
		r.win.open(f, r.block)
		p, err := r.win.at(0, r.block)
		if err != nil {
			return false
		}
		if !allZero(p) && (h.decode(p) != headerValid || h.Store == r.store && h.File == f.number) {
			return false
		}
	}
	return true
}

// restart begins recovery again with the given file and tells the replayer to forget what it received.
func (r *recovery) restart(file int) {
	r.replayer.Restart()
	r.checkpoint.drop()
	r.checkpoint = chunks{}
	r.begun, r.damaged, r.last, r.later = false, false, groupHeader{}, 0
	r.used = map[uint64]int64{}
	*r.report = Report{Files: r.report.Files, Unneeded: r.report.Unneeded}
	r.turnTo(file)
}

// nobody is the Replayer of a walk that only verifies.
type nobody struct{}

func (nobody) Restart()                {}
func (nobody) Checkpoint([]byte) error { return nil }
func (nobody) Record(*Record) error    { return nil }
