// Package events tells the subscribers of a partition, which are its channels, what happens to the partition's log. A
// partition knows nothing else of its channels. The package has no lock; a crash leaves nothing of it.
package events
