// Package checkpoint encodes what the commit log stores about partitions, beside their batches: checkpoints, with an
// entry for each partition, and records that cut or reset the log of one. FORMAT.md has the bytes.
//
// The committer and the replicas write them, and recovery reads them. The package has no state, no lock and no
// goroutine.
package checkpoint
