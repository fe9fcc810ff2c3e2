package route

import "maps"

// Refusals remembers, for each sender, the last run of which a leader refused a put as not stored. The leader must
// refuse the rest of that run too: see Lane. S identifies the sending node and the partition. The owner's lock guards
// it (refusals.mu). The zero value is ready for use. A crash loses it, but also ends the connections on which the runs
// came.
type Refusals[S comparable] struct{ runs map[S]uint32 }

// Note records that a put of a run was refused.
func (r *Refusals[S]) Note(from S, run uint32) {
	if r.runs == nil {
		r.runs = map[S]uint32{}
	}
	r.runs[from] = run
}

// Refuses says whether a put of this run must be refused because an earlier put of the run was refused.
func (r *Refusals[S]) Refuses(from S, run uint32) bool {
	if len(r.runs) == 0 {
		return false
	}
	refused, ok := r.runs[from]
	return ok && refused == run
}

// Forget drops the runs of senders whose connection has ended: no put of these runs can arrive any more.
func (r *Refusals[S]) Forget(ended func(S) bool) {
	maps.DeleteFunc(r.runs, func(s S, _ uint32) bool { return ended(s) })
}
