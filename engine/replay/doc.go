// Package replay rebuilds what the commit log says of each partition, when a node starts: the checkpoint at the
// beginning of the oldest live file, and then the records that follow. It also folds a stored batch into the state of a
// partition's channels, which everybody does who reads batches: recovery, a follower, and a cut of a log.
//
// Recovery (package part) gives a [Replay] to clog.Open, which calls it back with what it reads, on the goroutine of
// the engine's start. Replay reads and writes nothing itself, starts no goroutine and has no lock. A crash leaves the
// commit log as it was, and the next start replays it again.
package replay
