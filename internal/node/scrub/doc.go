// Package scrub reads in the background what this node has stored, so that damage is found while it can still be
// repaired: segments, which another replica may have intact (Scrub.ReadSegments); the commit log and the files of the
// catalog, whose contents this process holds in memory (Scrub.ReadFiles); and ranges that the device could not read
// before (Scrub.RetryReads). Compare compares the copies of a partition at its replicas.
//
//	ReadSegments, RetryReads ─► Copy: its segment.Log    damaged ranges are isolated, and repaired by others
//	ReadFiles ─► clog.Checker ─► Node.MarkRotten         the contents of the damaged file go to segments
//	          └► node.json, topic.json, shortened.json   rewritten from memory
//	Compare ─► Comparison.Ask ─► ReadCopy                at each in-sync replica
//
// The engine creates one Scrub when it opens, runs its three methods on separate goroutines, and calls Compare for
// Engine.VerifySome. The package knows nothing of topics, partitions or the cluster's node. It has no lock, and holds
// none when it calls the functions of Node. All goroutines end when Node.Stop is closed.
//
// A crash leaves nothing: the next process starts to count and to read from the beginning.
package scrub
