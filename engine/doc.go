// Package engine is Penstock embedded: durable topics in one data directory of a program, alone or as a node of a
// cluster.
//
// A program publishes messages into the partitions of a Topic. Every Channel of the topic delivers every message at
// least once. When Publish returns nil, the message is on stable storage: in the commit log of the node and, in a
// cluster, in those of all in-sync replicas. There is no weaker mode.
//
//   - Open opens an Engine on a data directory; Options.Cluster makes it a node of a cluster.
//   - Topic.Publish stores a Message, PublishBatch several at once, and PublishAsync one without waiting.
//   - Channel.Consume calls a handler for each Delivery, of all partitions.
//   - Topic.Read replays one partition without a channel, at its leader.
//
// Methods are safe for concurrent use. Sizes are in bytes. A method that stores messages borrows their byte slices
// until it returns, or until the function of PublishAsync is called. Bytes of a Delivery and of what Read passes are
// valid until the function that got them returns.
//
// Errors are tested with errors.Is. Each says what happened, what that means for the data, and what to do. After
// ErrUnknown, ErrDisk and ErrClosed a message may have been stored; after any other error it was not.
//
// It is a front of internal/node and internal/cluster, and imports nothing else of ours.
package engine
