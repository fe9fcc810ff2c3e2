package base

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"

	"penstock/segment"
)

// The functions below visit maps in key order, so that a simulation with the same seed takes the same steps.

// SortedIDs returns the keys of m in order.
func SortedIDs[V any](m map[uuid.UUID]V) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

// SortedPartitions returns the keys of m in order.
func SortedPartitions[V any](m map[segment.Identity]V) []segment.Identity {
	return slices.SortedFunc(maps.Keys(m), func(a, b segment.Identity) int {
		return cmp.Or(bytes.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Partition, b.Partition))
	})
}
