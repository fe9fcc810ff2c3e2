// Package faultaio is an aio.Disk in memory that fails on purpose, as a seed decides: it loses, tears and reorders what
// was not flushed, forgets names that were not synced, fails or holds chosen operations, fills up, and loses its power
// at any operation.
//
// A test runs the engine on a Disk, then takes the state that a power cut (Crash) or a kill of the process (Kill)
// leaves as a new Disk, and recovers on that one. Clones share unchanged pages, so thousands of crash states per second
// are cheap.
//
//	for op := range total {
//		d := faultaio.New(faultaio.Options{Seed: seed})
//		d.CrashAt(op)
//		acked := workload(d)
//		check(acked, recoverOn(d.Crash(seed)))
//	}
//
// The model is stricter than any single file system: sectors of 512 bytes are lost one by one, a file's size is not
// durable before a flush of the file, a name not before SyncDir of its directory, and RWF_DSYNC makes only its own
// bytes durable. It also detects misuse: memory that changes while its write is in flight, and mapped bytes that are
// read without Populate (they are zeros).
//
// If one goroutine uses the disk, the seed decides everything. Several goroutines may use it safely, and then it is as
// deterministic as they are.
//
// Tests of all packages above aio use it, and the simulator. It imports segment/aio and segment/aio/contract.
package faultaio
