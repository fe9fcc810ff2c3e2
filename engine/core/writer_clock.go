package core

import "penstock/segment"

// WriterClock is by how much the clock of a partition's last writer is ahead of this node's. Recovery writes it, then
// the committer. Delays are stored as due times by the writer's clock, so the next writer corrects them by it.
type WriterClock struct {
	AheadNs int64
	epoch   segment.Epoch
}

// Saw records the times of a batch that another process wrote. nowNs is the time of this node, ns since 1970. In a
// batch that a producer sealed, Created is the producer's time. Appended is the leader's time, or that of the batch
// before if that was later.
func (w *WriterClock) Saw(h *segment.Header, nowNs int64) {
	ahead := min(h.Created, h.Appended) - nowNs
	if h.Epoch != w.epoch {
		w.epoch, w.AheadNs = h.Epoch, ahead
		return
	}
	w.AheadNs = max(w.AheadNs, ahead) // the batch that travelled for the shortest time is the most accurate
}
