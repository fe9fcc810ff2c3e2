// Package flush moves the contents of the commit log into the segments of the partitions. Its Flusher returns buffers
// and files of the commit log for reuse, removes segments that retention no longer keeps, empties the trash, and knows
// whether the disk is full.
//
//	committer ─ MarkDirty, Checkpointed, Cut ─► Flusher ─ Log.Flush, Sync, Trim ─► segments
//	                                               ├─ Release ─► commit log files
//	                                               └─ Owner: what it asks a partition, and tells it
//
// The store of a data directory has one Flusher. Each partition contains a Part, the state that the flusher keeps for
// it, and implements Owner. The committer, recovery, the replicas and the engine call the Flusher. The Flusher knows
// nothing of inboxes, replicas or topics.
//
// One goroutine (Run) does the work. Flusher.mu guards the tables, and is never held while the disk is used.
//
// A crash loses the flusher's state but no data: a commit log file is released only when the segments hold everything
// in it, and recovery replays the other files.
package flush
