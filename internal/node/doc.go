// Package node is what runs in one process: durable topics in one data directory, alone or as a node of a cluster. The
// server and package engine, the front for programs, are built on it.
//
// Producers put messages into the partitions of a [Topic]; every [Channel] of the topic delivers every message at least
// once. When Publish returns nil the message is on stable storage: a write and a flush of the node's commit log have
// completed, and in a cluster those of every in-sync replica. There is no weaker mode.
//
// The types, in the order in which a program and a message meet them:
//
//   - [Engine] owns a data directory, its commit log and its memory. [Open] opens it, with [ClusterOptions] as a node
//     of a cluster.
//   - [Topic] is a name over one or more partitions. Publish, PublishMessage and PublishBatch append and wait for the
//     answer; PublishAsync passes it to a function.
//   - [Channel] is a cursor over the topic's partitions with NSQ's semantics: in flight, requeue, timeout, deferral,
//     pause.
//   - Channel.Consume calls a handler for each [Message]. Channel.Open returns [Messages], from which a program takes
//     them one by one. Both get the messages of all partitions, on whatever nodes these are led, and go on when nodes
//     fail or leaderships move.
//   - [Reader] replays one partition without a channel, at the node that leads it.
//   - [Put], [Sink] and [Consumer] are the layer below, for servers of protocols, which must not have a goroutine for
//     each request or client.
//
// # Conventions
//
// These hold unless a comment says otherwise. The methods of Engine, Topic, Channel, Messages and Consumer are safe for
// concurrent use. Sizes are in bytes. A method that stores messages borrows the caller's byte slices: the caller must
// not change them until the method returns, or until Put.Done or the callback of PublishAsync is called. Bytes in
// results belong to the caller, except those of a [Delivery], which are valid only during the call that received it,
// and those of a [Message], which are valid until it is passed to Next again or its handler returns.
//
// Errors are tested with errors.Is. Each says in a sentence what happened, what that means for the data, and what to
// do. After a publish, ErrUnknown, ErrDisk and ErrClosed leave open whether the messages were stored; any other error
// says that they were not.
//
// # In the source
//
// Topics and their channels are in internal/node/topic, from which this package takes its types. The path of a message:
// topic/publish.go (the caller's request) → inbox → partition (the committer, then the replica) → clog (the group on
// disk) → partition (committed) → channel (delivered to a consumer).
package node
