// Package engine is Penstock embedded: durable topics in one data directory.
//
// Producers put messages into the partitions of a [Topic]; every [Channel] of the topic
// delivers every message at least once. When Publish returns nil the message is on stable
// storage: a write and a flush of the node's commit log have completed, and in a cluster
// those of every in-sync replica. There is no weaker mode.
//
// Four types, in the order in which a message meets them:
//
//   - [Engine] owns a data directory, its commit log and its memory.
//   - [Topic] is a name over N partitions; Publish, PublishBatch and PublishAsync
//     append to one of them.
//   - [Channel] is a cursor over the topic's partitions with NSQ's semantics: in flight,
//     requeue, timeout, deferral, pause.
//   - [Consumer] is one subscriber of a channel. Channel.Consume calls a handler for each
//     message; protocol servers attach a [Sink].
//
// # Conventions
//
// These hold unless a comment says otherwise. The methods of Engine, Topic, Channel and Consumer are safe for
// concurrent use. Sizes are in bytes. A method that stores messages borrows the caller's byte slices: the caller must
// not change them until the method returns, or until Put.Done or the callback of PublishAsync is called. Bytes in
// results belong to the caller, except those of a [Delivery] or [Message], which are valid only during the call that
// received it. Errors are tested with errors.Is; errors.go lists those that callers act on.
//
// The path of a message: topic_publish.go (the caller's request) → engine/inbox → engine/part (the committer, then the
// replica) → clog (the group on disk) → engine/part (committed) → engine/channel (delivered to a consumer).
package engine
