// Package inbox has puts, and the inboxes in which they wait until the committer of their partition takes them.
//
// A Put is what producers submit: messages, or what the engine itself stores. Lists of puts are owned by whoever holds
// them: an Inbox, the forwarder of puts for other nodes, or the committer and the replica, once they were taken out of
// an inbox. A goroutine that waits for its answer uses a Waiter; the others hear it through Put.Done.
//
// The partitions call the package, and so does the forwarder; the engine's public API submits through it. It knows
// nothing of logs, replicas or topics, and starts no goroutine. Each inbox has one lock, Inbox.mu, which is a leaf.
//
// A crash loses what is in an inbox. None of it was answered.
package inbox
