// Package scrub reads in the background what this node has, so that damage is found while something can still be done
// about it: segments, which another replica may have whole (Scrub.ReadSegments); the commit log and the files of the
// catalog, whose content this process has in memory (Scrub.ReadFiles); and what the device could not read before
// (Scrub.RetryReads). Compare compares the copies that the replicas of a partition have.
//
//	ReadSegments, RetryReads ─► Copy: its segment.Log    what is damaged is isolated there, and repaired by others
//	ReadFiles ─► clog.Checker ─► Node.MarkRotten         what the damaged file holds goes to segments
//	          └► node.json, topic.json, shortened.json   written anew from memory
//	Compare ─► Comparison.Ask ─► ReadCopy                at each replica that is in sync
//
// The engine makes one Scrub when it opens, runs its three methods on goroutines of their own, and calls Compare for
// Engine.VerifySome. The package knows nothing of topics, partitions or the cluster's node. It has no lock; whoever
// calls back the functions of Node holds none either. All goroutines end when Node.Stop is closed.
//
// A crash leaves nothing: the next process begins to count and to read anew.
package scrub
