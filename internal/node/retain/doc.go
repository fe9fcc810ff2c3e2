// Package retain computes how far retention may remove a partition's log. Bound knows which data no channel needs any
// more, whatever may be cut from the log later. Seen and Ages know which data is older than a limit, whatever the
// clocks of leaders said. Boundaries is the rule that combines all of it.
//
// Each partition has its own, in its flush.Part. Recovery and the committer record what is in the log, and the
// flusher asks. Each has its own lock, which is a leaf, except that Ages may read the engine's clock while it holds its
// lock. They start no goroutine, and know nothing of partitions.
//
// A crash loses them. Recovery records their inputs again, and until then they let nothing be removed.
package retain
