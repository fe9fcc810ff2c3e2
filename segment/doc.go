// Package segment is one partition's bytes: how messages are packed into batches, and where batches lie.
//
// Five nouns carry it:
//
//   - A batch ([Header], [Builder], [RecordIter]) is the sealed unit that travels unchanged from a producer to every
//     replica, file and consumer. FORMAT.md holds its layout.
//   - A [Log] is the batches of one partition, back to back: the newest in memory as [Slice]s of the buffers
//     that carried them through the commit log, everything older in segment files.
//   - A [State] says where a log ends. It is what a checkpoint keeps, and what decides ([State.Place]) which file a
//     batch goes to, the same on every replica.
//   - A [View] pins bytes for reading: a buffer, or a verified range of a mapped segment.
//   - A [Writer] is the staging memory with which one background goroutine moves tails to files.
//
// The life of a batch: Place, [Stamp] and [Log.Append] when it is sealed, before its group is on the disk; [Log.View]
// any number of times; in the background [Log.Flush], [Log.Sync], [Log.Evict]; at last [Log.Trim]. The package does not
// know what is committed: its callers read no further than they may.
//
// What is durable here is only what Sync covered. What else is durable is in the commit log, which is replayed onto the
// log that [Open] finds; so a crash at any point leaves files that are a prefix, and bytes behind it that nobody reads.
//
// Reading the source: batch.go, record.go, state.go, log.go, tail.go, view.go, flush.go, retain.go; then index.go,
// seek.go, health.go.
package segment
