// Package budget counts what partitions take of their node, and says what is too much: the state of channels in memory
// and in checkpoints, the part of it and of the disk that one token may have, and the quotas of topics.
//
//   - [Budget] has the limits and the sums of a node, and a [Share] for each token that has made topics.
//   - [Account] is what one partition takes. The committer keeps it. Requests that add to the state ask it first.
//   - [Room] is what a quota in reject mode leaves of a partition.
//
// Package partition embeds all three. The package has no lock and no goroutine: any goroutine may read the atomics. A
// crash loses everything, and recovery counts again.
package budget
