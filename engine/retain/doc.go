// Package retain computes how far retention may remove a partition's log. Bound knows which data no channel needs any
// more, whatever may be cut from the log later. Ages knows which data is older than a limit, whatever the clocks of
// leaders said.
//
// Each partition has one of each, in its flush.Part. Recovery and the committer record what is in the log, and the
// flusher asks. Each has its own lock, which is a leaf, except that Ages may read the engine's clock while it holds its
// lock. They start no goroutine, and know nothing of partitions.
//
// A crash loses them. Recovery records their inputs again, and until then they let nothing be removed.
package retain
