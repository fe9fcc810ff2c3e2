package fold

import "penstock/segment"

// WriterClock says by how much the clock of a partition's last writer is ahead of this node's clock. Recovery sets it,
// and then the committer. The log has delays as due times of the writer's clock, so the next writer corrects them by
// AheadNs.
type WriterClock struct {
	AheadNs int64
	epoch   segment.Epoch
}

// Saw notes the times of a batch that another process wrote. nowNs is this node's time, ns since 1970. Created is the
// producer's time if a producer sealed the batch, and may be any time. Appended is the leader's time, or that of the
// previous batch if it was later. The lesser of the two, but no time before 1970, is compared with nowNs.
func (w *WriterClock) Saw(h *segment.Header, nowNs int64) {
	ahead := max(min(h.Created, h.Appended), 0) - nowNs
	if h.Epoch != w.epoch {
		w.epoch, w.AheadNs = h.Epoch, ahead
		return
	}
	w.AheadNs = max(w.AheadNs, ahead) // the batch that travelled for the shortest time gives the best estimate
}
