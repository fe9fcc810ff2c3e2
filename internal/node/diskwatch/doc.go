// Package diskwatch watches whether this node's disk answers. machine.DiskWatch decides when a disk counts as slow,
// hung or failed. A Watch passes it the counts of aio.Pulse, probes an idle disk with a small write, and publishes the
// result: in the log, through State, Hangs, Failure and Stats, and to Config.Judged.
//
// In a cluster, Judged belongs to a Member: it reports the state to the metadata store, and hands over the node's
// leaderships while the disk hangs.
//
//	aio.Pulse ─► Watch.Step ─► core.DiskWatch ─► Member.Judged ─► MemberConfig.Report    the other nodes know
//	                │                                          └► MemberConfig.Led       others lead instead
//	                └► a probe, if nothing else was written
//
// The engine has one Watch. It steps four times a second, on a goroutine that Start starts or, in a simulation, on the
// engine's own. Each probe has its own goroutine, which may never return. Nothing else here waits for the disk, or
// takes a lock whose holder may wait for the disk. Watch.mu is held while goroutines are started, so that none is
// started after End.
//
// A crash leaves the file disk.probe, whose content has no meaning. The next process takes the disk for good until it
// finds otherwise.
package diskwatch
