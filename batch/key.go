package batch

import "hash/fnv"

// PartitionOf returns the partition of a key in a topic with this many partitions, 1 or more. Let h be the FNV-1a hash
// (64 bits) of the key; then the partition is
//
//	h ^= h >> 33;  h *= 0xff51afd7ed558ccd;  h ^= h >> 33;  h mod partitions
//
// This is the same in every version, on every node and in every client, and never changes. Without the mixing of h, the
// partition would depend on few bits of each byte, because FNV-1a carries changes only to higher bits. When a topic
// gets more partitions, most keys move to another partition. PartitionOf borrows key until it returns, and allocates
// nothing.
func PartitionOf(key []byte, partitions int) int {
	fnv1a := fnv.New64a()
	_, _ = fnv1a.Write(key)
	h := fnv1a.Sum64()
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return int(h % uint64(partitions))
}
