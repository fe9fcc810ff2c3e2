// Package channel is one node's part of a channel: the machine of internal/node/delivery, the read positions in the
// partitions that this node serves, deliveries, consumers, confirmations, seeks, lists and dead letters. Package engine
// makes a [Channel] for each channel of its topics, and gives it the partitions that this node leads. Package engine
// also has the handle for users, which asks the leaders of all partitions.
//
// This package knows nothing of the engine, of replication, or of how logs are written. It sees its node as [Config],
// its topic as [Topic] and partitions as [Partition]. They call the channel with Post, Committed, Resume and Wake.
//
// Locks: Channel.configuring, then Channel.mu, then Channel.postMu or Node.mu. Channel.mu is held while cold data is
// read, so its holder may hang on the disk. Only consumers, the channel's own goroutine and operations may wait for it.
// The committer, replicas and the flusher post events instead.
//
// Goroutines: Channel.run, one per channel, from Start to Shut; deadMover.run, while the outbox has dead letters; a
// short one for the answer to each control batch; Node.Run, one per node, and those that it starts for channels whose
// lock is held.
//
// A crash loses all state of this package. The fold of the control entries in the partitions' logs stays. Recovery, or
// the next leader, begins with the fold, and delivers again the messages that are not confirmed there.
package channel
