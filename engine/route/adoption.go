package route

import (
	"slices"

	"penstock/segment"
)

// Adoption decides which partitions of a topic the channels of this node have: those that the node serves, each in
// the epoch in which it serves it. A partition that is lost, or served in a newer epoch, is taken out of all channels,
// since what they know of it may be out of date. Then every channel gets all partitions that are served, because one
// that kept nothing was closed, and its next consumer makes it anew.
//
// Its owner (Topic, under Topic.changing) calls Revoke whenever the node serves other partitions or epochs than before,
// takes them out of the channels, and then calls Adopt. A crash leaves nothing of it: the next process adopts anew.
type Adoption struct {
	epochs []segment.Epoch // by partition: the one in which the channels have it; 0: they do not have it
}

// Revoke returns, by partition, which ones the channels may keep. any is false if they keep all that they have. serving
// are the epochs in which the node serves the partitions, 0: it does not. stale says that some channel has a partition
// from another epoch than the one in which it is served, although this Adoption does not know of it.
func (a *Adoption) Revoke(serving []segment.Epoch, stale func(partition int) bool) (stays []bool, any bool) {
	for len(a.epochs) < len(serving) {
		a.epochs = append(a.epochs, 0)
	}
	stays = make([]bool, len(a.epochs))
	for i, epoch := range serving {
		over := a.epochs[i] != 0 && a.epochs[i] != epoch || stale(i)
		stays[i] = epoch != 0 && !over
		any = any || over
	}
	if any {
		clear(a.epochs)
	}
	return stays, any
}

// Adopt returns the partitions that the channels must be given now. serving is what Revoke was told, or newer.
func (a *Adoption) Adopt(serving []segment.Epoch) (fresh []int) {
	for i, epoch := range serving[:min(len(serving), len(a.epochs))] {
		if a.epochs[i] == 0 && epoch != 0 {
			a.epochs[i] = epoch
			fresh = append(fresh, i)
		}
	}
	return fresh
}

// Again lets the next Adopt return a partition that is served, whether the channels have it or not.
func (a *Adoption) Again(partition int) {
	if partition < len(a.epochs) {
		a.epochs[partition] = 0
	}
}

// Epoch is the one in which the channels have a partition, provided that the node still serves it in that epoch;
// else 0.
func (a *Adoption) Epoch(partition int, serving segment.Epoch) segment.Epoch {
	if partition < len(a.epochs) && a.epochs[partition] == serving {
		return serving
	}
	return 0
}

// Epochs returns a copy of all epochs, by partition, to compare with later ones.
func (a *Adoption) Epochs() []segment.Epoch { return slices.Clone(a.epochs) }
