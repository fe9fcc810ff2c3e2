// Package checkpoint encodes what the commit log stores about partitions besides their batches: checkpoints, with one
// entry per partition, and records that cut or reset the log of a partition. FORMAT.md documents the bytes.
//
// The committer and the replicas write them, and recovery reads them. The package has no state, no lock and no
// goroutine.
package checkpoint
