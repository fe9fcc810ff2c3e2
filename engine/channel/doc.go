// Package channel is what one node runs of a channel: the machine of engine/core, the read positions in the partitions
// that this node serves, deliveries, consumers, confirmations, seeks, lists and dead letters. Package engine makes a
// [Channel] for each channel of its topics, and gives it the partitions that this node leads. It gives its users a
// handle, which asks the leaders of all partitions.
//
// A channel knows nothing of the engine, of replication, or of what writes logs. It sees its node as [Config], its
// topic as [Topic] and partitions as [Partition]; they call it back with Post, Committed, Resume and Wake.
//
// Locks: Channel.configuring, then Channel.mu, then Channel.postMu or Node.mu. Channel.mu is held while cold data is
// read: it may hang on the disk. Nobody but consumers, the channel's own goroutine and operations may wait for it; what
// commits, replicates or retains posts events instead.
//
// Goroutines: Channel.run, one per channel, from Start to Shut; moveDeadLetters, while the outbox has something; the
// answer to a control batch, at once; Node.Run, one per node, and what it starts for channels whose lock is held.
//
// A crash loses what is here. The fold of the control entries in the partitions' logs stays. Recovery, or the next
// leader, begins with it, and delivers again what was not confirmed there.
package channel
