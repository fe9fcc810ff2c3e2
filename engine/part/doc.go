// Package part is what one node runs of its partitions: everything that writes to a partition's log, replicates it and
// decides what of it is committed.
//
//   - [Partition] connects the machine of one partition (core.Partition) to its inbox, its log and its subscribers.
//   - [Store] is what all partitions of a data directory share: the commit log, the committer that seals puts into its
//     groups, the flusher, buffers and limits.
//   - [Replica] is this node's replica of a partition: the machine of package replicate, and the work that the
//     machine's actions start (sends, cuts, repairs, hand-overs, the removal of a copy). On a single node it has no
//     machine, and its quorum is the node.
//   - [Node] is this node of a cluster as its replicas see it, and answers for copies that it does not have.
//   - [Recovery] rebuilds the partitions when the node starts.
//
// The way of a put, on the goroutine that the arrow names:
//
//	Partition.Enqueue ─► inbox ─ commit log ─► committer.Gather ─► seal ─► Replica.appended ─► followers
//	                                └─ group on stable storage ─► Durable ─► Replica.commit ─► Put.Done, Subscriber
//
// Package engine makes a Store, opens partitions in it (Recovery, NewSolo, NewPartition), and gives them to its topics.
// What stands above is an interface: the channels are [Subscriber], the rest of the cluster node is [Above]. The
// package knows no topic but what partitions share of it ([Topic]), no consumer and no client.
//
// Locks, in their order: clog.Log.mu, held while the committer works; Replica.mu, which orders the events of a replica,
// and with which alone the committer changes machine, fold and epochs; then Inbox.mu, Flusher.mu, Channel.postMu and
// other leaves. Replica.discardMu comes before Replica.mu. docs/concurrency.md has all of them, and the goroutines.
//
// A crash loses what is in memory. Recovery finds every batch of a durable group in the commit log or in the segments;
// none of the others was answered. What a replica must not forget over a restart, that its copy was shortened or given
// up, is in dir.Shortened before anything follows from it.
package part
