// Package replay rebuilds the state of each partition from the commit log when a node starts: from the checkpoint at
// the beginning of the oldest live file, and then from the records that follow. It also folds a stored batch into the
// state of a partition's channels. All code that reads batches for this purpose uses it: recovery, a follower, and the
// cut of a log.
//
// Recovery (package partition) passes a [Replay] to clog.Open, which calls its methods with the contents of the log, on
// the goroutine that starts the engine. Replay itself does no I/O, starts no goroutine and has no lock. A crash leaves
// the commit log as it was, and the next start replays it again.
package replay
