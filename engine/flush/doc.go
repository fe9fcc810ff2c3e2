// Package flush moves what the commit log holds into the segments of the partitions: the flusher. It gives buffers and
// files of the commit log back, removes what retention no longer keeps, empties the trash, and knows whether the disk
// is full.
//
//	committer ─ MarkDirty, Checkpointed, Cut ─► Flusher ─ Log.Flush, Sync, Trim ─► segments
//	                                               ├─ Release ─► commit log files
//	                                               └─ Owner: what it asks a partition, and tells it
//
// The store of a data directory has one Flusher. Each partition has a Part, the state that the flusher keeps for it,
// and implements Owner. The committer, recovery, the replicas and the engine call the Flusher; it knows nothing of
// inboxes, replicas or topics.
//
// One goroutine (Run) does the work. Flusher.mu is held for access to the tables, never while the disk is used.
//
// A crash loses all of it, and no data: a commit log file is released only when segments have all that it holds, and
// recovery replays the others.
package flush
