// Package seal has the batches of a partition between its inbox and their commit.
//
//   - [Run] is puts that follow each other in an inbox and become one batch. It writes the batch into the buffer of a
//     group of the commit log: the only copy of a body.
//   - [Pending] keeps the puts of the batches that are in the log and not committed.
//
// The committer and the replicas of package partition use both with Replica.mu held. The package has no I/O, no clock
// and no lock. A crash loses the puts, none of which was answered.
package seal
