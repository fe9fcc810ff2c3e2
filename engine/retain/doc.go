// Package retain has what says how far retention may go: Bound, which data no channel needs any more, whatever is cut
// from the log later; and Ages, which data is older than a limit, whatever the clocks of leaders said.
//
// A partition has one of each, in its flush.Part. Recovery and the committer tell them what is in the log, and the
// flusher asks. Each has a lock, which is a leaf, except that Ages may read the engine's clock. They start no
// goroutine, and know nothing of partitions.
//
// A crash loses them: recovery tells them anew, and until then they let nothing be removed.
package retain
