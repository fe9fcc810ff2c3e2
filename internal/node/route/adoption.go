package route

import (
	"slices"

	"penstock/segment"
)

// Adoption decides which partitions of a topic the channels of this node have. They have the partitions that the node
// serves, each in the epoch in which the node serves it. When a partition is lost, or served in a newer epoch, all
// channels lose it, because their state of it may be out of date. Then every channel gets all served partitions again:
// a channel that kept no partition was closed, and its next consumer creates it anew.
//
// The owner (Topic, under topic.Local.changing) calls Revoke whenever the partitions or epochs that the node serves
// have changed, takes the revoked partitions out of the channels, and then calls Adopt. A crash leaves nothing of an
// Adoption: the next process adopts anew.
type Adoption struct {
	epochs []segment.Epoch // by partition: the epoch in which the channels have it; 0: they do not
}

// Revoke returns, by partition, whether the channels may keep it. any is false if the channels keep every partition
// that they have. serving holds the epochs in which the node serves the partitions; 0: it does not serve the partition.
// stale says that some channel has the partition from an epoch other than the served one, although this Adoption does
// not know of that.
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

// Adopt returns the partitions that the channels must get now. serving is the argument of the last Revoke, or newer.
func (a *Adoption) Adopt(serving []segment.Epoch) (fresh []int) {
	for i, epoch := range serving[:min(len(serving), len(a.epochs))] {
		if a.epochs[i] == 0 && epoch != 0 {
			a.epochs[i] = epoch
			fresh = append(fresh, i)
		}
	}
	return fresh
}

// Again makes the next Adopt return the partition if the node serves it, whether the channels have it or not.
func (a *Adoption) Again(partition int) {
	if partition < len(a.epochs) {
		a.epochs[partition] = 0
	}
}

// Epoch returns the epoch in which the channels have a partition, or 0 if the node does not serve the partition in that
// epoch any more. serving is the epoch in which the node serves it.
func (a *Adoption) Epoch(partition int, serving segment.Epoch) segment.Epoch {
	if partition < len(a.epochs) && a.epochs[partition] == serving {
		return serving
	}
	return 0
}

// Epochs returns a copy of all epochs, by partition, for comparison with later ones.
func (a *Adoption) Epochs() []segment.Epoch { return slices.Clone(a.epochs) }
