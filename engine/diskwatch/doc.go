// Package diskwatch watches whether this node's disk answers. core.DiskWatch decides what slow, hung and failed mean; a
// Watch feeds it with what aio.Pulse counts, asks an idle disk with a small write, and says what it found: to the log,
// to whoever asks (State, Hangs, Failure, Stats), and to Config.Judged.
//
// In a cluster that is a Member: it reports the state to the metadata store, and hands over what the node leads while
// the disk hangs.
//
//	aio.Pulse ─► Watch.Step ─► core.DiskWatch ─► Member.Judged ─► MemberConfig.Report    the other nodes know
//	                │                                          └► MemberConfig.Led       others lead instead
//	                └► a probe, if nothing else was written
//
// The engine has one Watch. It steps four times a second on a goroutine that Start starts, or on the engine's own in a
// simulation, and each probe has a goroutine of its own, which may never return. Nothing here waits for the disk, or
// takes a lock whose holder may wait for it. Watch.mu is held while goroutines are started, against End.
//
// A crash leaves the file disk.probe, which says nothing: the next process takes the disk for good until it has seen
// otherwise.
package diskwatch
