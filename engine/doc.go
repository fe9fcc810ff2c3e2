// Package engine is Penstock embedded: durable topics in one data directory.
//
// Producers put messages into the partitions of a [Topic]; every [Channel] of the topic
// gets every message at least once. When Publish returns nil the message is on stable
// storage: a write and a flush of the node's commit log have completed. There is no
// weaker mode.
//
// Four nouns, in the order in which a message meets them:
//
//   - [Engine] owns a data directory, its commit log and its memory.
//   - [Topic] is a name over N partitions; Publish, PublishBatch and PublishAsync
//     append to one of them.
//   - [Channel] is a cursor over the topic's partitions with NSQ's semantics: in flight,
//     requeue, timeout, deferral, pause.
//   - [Consumer] is one subscriber of a channel. Channel.Consume runs a handler over
//     it; protocol servers attach a [Sink].
//
// A message's way: topic_publish.go (the caller's request) → engine/inbox → engine/part (the committer, then the
// replica) → clog (the group on disk) → engine/part (committed) → engine/channel (who gets it).
package engine
