// Package kvfaults imitates the faults of the network between nodes and their metadata: clients of a kv.Store in memory
// that a test cuts off, or whose answers get lost. Tests of cluster and of node use it. It imports cluster/kv and
// cluster/kv/memory.
package kvfaults
