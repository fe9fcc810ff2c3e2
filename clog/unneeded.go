package clog

import "slices"

// A file is removed only after a group whose header says that it is not needed (oldest) is durable. A crash in between
// leaves the file. What it holds is in segments, and they are synced. Recovery cannot know that before it has seen the
// last group, so it reads from the oldest file it finds, and then begins again with the file that the last group names.
// It must: replay writes the segments of its batches anew and does not sync them at once, and meanwhile the last group
// on disk would still say that the log's copy is not needed. A crash between the two walks changes nothing on disk.
//
//	file      7                  8                  9
//	        ├──────────────────┼──────────────────┼──────────┬─ ─ ─
//	                                                group 95: oldest 8, the last one
//	                           └► replay begins here
//
// For the same reason damage in files below the oldest of the last group is treated as if those files were gone. There
// the chain does not lead to the last group, so a second chain is looked for behind the damage. Its last group is
// believed only if the chain ends where the log may have ended. A file behind that end that holds neither zeros nor old
// groups of another file may have held a later group with another oldest: then recovery reports the damage.

// firstNeeded is the file with which replay must begin: the one that the last group names. While the checkpoint of a
// file is being written, its groups may already name that file. Then it is an older one, the newest whose checkpoint is
// complete. ok is false if no such file is part of the chain.
func (r *recovery) firstNeeded() (first int, ok bool) {
	for i, f := range slices.Backward(r.files) {
		if r.begun && f.whole && f.number <= r.last.Oldest && f.number >= r.report.OldestFile {
			return i, true
		}
	}
	return 0, false
}

// unneededBelow looks for such a chain behind the damage and returns the index of the first file that it needs.
func (r *recovery) unneededBelow() (first int, ok bool) {
	for from := r.at + 1; from < len(r.files); {
		probe := &recovery{
			disk: r.disk, store: r.store, block: r.block, replayer: nobody{}, report: new(Report),
			win: window{arena: r.win.arena, block: r.block}, files: r.files, used: map[uint64]int64{},
		}
		probe.turnTo(from)
		err := probe.walk() // an error also if the last group needs a file that this walk left out: see checkOldest
		ok := err == nil && probe.begun && probe.endsUnused()
		probe.win.release()
		probe.checkpoint.drop()
		switch {
		case ok:
			return probe.firstNeeded()
		case !probe.damaged:
			return 0, false
		}
		from = probe.at + 1 // that one is damaged, too
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

// restart begins recovery again with a file.
func (r *recovery) restart(file int) {
	r.replayer.Restart()
	r.checkpoint.drop()
	r.checkpoint = chunks{}
	r.begun, r.damaged, r.last, r.later = false, false, groupHeader{}, 0
	r.used = map[uint64]int64{}
	*r.report = Report{Files: r.report.Files, Unneeded: r.report.Unneeded}
	r.turnTo(file)
}

// nobody takes what is read only to be verified.
type nobody struct{}

func (nobody) Restart()                {}
func (nobody) Checkpoint([]byte) error { return nil }
func (nobody) Record(*Record) error    { return nil }
