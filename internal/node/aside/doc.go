// Package aside keeps what a cut takes from a copy of a partition.
//
// A copy is cut when its leader has other batches than it, or none where it has some. Mostly these batches were never
// committed, and nobody misses them. But if the leader is the one that forgot, the copy that is cut is the last one
// that has them. So no cut destroys anything at once: the batches are first copied into a directory of their own below
// aside/, where an operator can look at them and publish them again.
//
//	aside/<topic uuid>-<partition>-<unix seconds>/
//	  batches    the sealed batches, back to back, then zeros
//	  cut.json   what they are, see Cut; it is written last
//
// A start whose commit log has forgotten something moves the segments that the log does not know here, too: see
// SetAside. They stay segment files, with a cut.json, until an operator removes them:
//
//	aside/segments-<topic uuid>-<partition>-<unix seconds>/
//
// Package part calls Keep before it writes the record of a cut, the flusher calls Sweep and MakeRoom, and the tools
// read with List and Scan.
//
// A crash leaves one of three states. A directory without cut.json was being written: the log still has everything, and
// Load removes the directory. A directory with cut.json and no record of the cut in the commit log: the log still has
// everything, too. Such a cut is made again, mostly to the same place, and then the new directory takes the place of
// the old one; or the batches are committed after all, and Sweep removes the directory. Behind the record, the
// directory is the only place that has the batches.
package aside
