// Package dueclock finds leaders whose clock was ahead, and corrects the due times of the delayed messages that they
// stored.
//
// The store of all partitions has one Corrector. The committer calls it, with Replica.mu of the partition held, and
// recovery. It has no lock. A crash before the next batch of the partition leaves the stored fold as it was.
package dueclock
