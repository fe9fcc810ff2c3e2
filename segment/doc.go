// Package segment stores the bytes of one partition: where its batches lie.
//
// Five nouns describe it:
//
//   - A batch ([penstock/batch]) is the sealed unit that travels unchanged from a producer to every replica, file and
//     consumer.
//   - A [Log] is the batches of one partition, back to back: the newest in memory as [Slice]s of the buffers that
//     carried them through the commit log, everything older in segment files.
//   - A [State] says where a log ends. A checkpoint keeps a State, and [State.Place] decides from it which file a batch
//     goes to, the same on every replica.
//   - A [View] pins bytes for reading: a buffer, or a verified copy of a range of a mapped segment.
//   - A [Writer] is the staging memory with which one background goroutine moves tails to files.
//
// The life of a batch: Place, [batch.Stamp] and [Log.Append] when it is sealed, before its group is on the disk;
// [Log.View] any number of times; in the background [Log.Flush], [Log.Sync], [Log.Evict]; at last [Log.Trim]. The
// package does not know which batches are committed: its callers must not read further than they may.
//
// In this package, only what Sync covered is durable. Durable batches beyond that are in the commit log, which is
// replayed onto the log that [Open] finds. So a crash at any point leaves files that are a prefix of the log, and
// behind it bytes that nobody reads.
//
// Reading the source: codec.go, state.go, log.go, tail.go, view.go, flush.go, retain.go; then index.go,
// seek.go, health.go.
package segment
