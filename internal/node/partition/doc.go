// Package partition implements the partitions of one node: it writes their logs, replicates them, and decides which
// part of each log is committed.
//
//   - [Partition] connects the machine of one partition (machine.Partition) to its inbox, its log and its subscribers.
//   - [Store] holds what all partitions of a data directory share: the commit log, the committer, which seals puts into
//     the log's groups, the flusher, the buffers and the limits.
//   - [Replica] is this node's replica of a partition: a machine of package replicate, and the work that the machine's
//     actions start (sends, cuts, repairs, hand-overs, the removal of a copy). On a single node a replica has no
//     machine: the node alone is the quorum.
//   - [Env] is this node of a cluster as its replicas see it.
//   - [Recovery] rebuilds the partitions when the node starts.
//
// Parts with a state and rules of their own have packages of their own, which this one imports: driver decides which
// goroutine works on the commit log, seal turns puts into batches and keeps them until the commit, budget counts what
// partitions take, carry keeps deferred messages whose segments go, events tells the channels, dueclock corrects
// delays, logread reads a log at one place, outgoing has batches on their way to another replica.
//
// The way of a put. The words on an arrow name the goroutine or the event that causes the step:
//
//	Partition.Enqueue ─► inbox ─ commit log ─► committer.Gather ─► seal ─► committer.tell ─► followers
//	                                └─ group on stable storage ─► Durable ─► Replica.commit ─► Put.Done, Subscriber
//
// Package node makes a Store, opens partitions in it (Recovery, NewSolo, NewPartition) and gives them to the topics of
// package topic. This package reaches the layers above only through interfaces: the channels are events.Subscriber, the
// rest of the cluster node is [Above]. Of a topic, the package knows only what the topic's partitions share ([Topic]).
// It knows no consumer and no client.
//
// The locks, in the order in which they are taken: clog.Log.mu, held while the committer works. Then Replica.mu, which
// orders the events of a replica; the committer changes the partition's machine, fold and epochs only with Replica.mu
// held. Then Inbox.mu, Flusher.mu, Channel.postMu and other leaves. Replica.discardMu comes before Replica.mu.
// docs/contribute/concurrency.md lists all locks and goroutines.
//
// A crash loses what is in memory. Recovery finds every batch of a durable group in the commit log or in the segments.
// No put of any other batch was answered. Two facts about a copy must survive a restart: that recovery shortened it,
// and that it was given up. They are written to datadir.Shortened before anything is done that relies on them.
package partition
