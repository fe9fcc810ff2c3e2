// Package driver decides when the commit log begins a group, and whether a caller that would only wait for its put does
// the log's work. It also keeps the list of the partitions whose inboxes wait for the next group.
//
// Two goroutines drive the commit log: an ordinary one that gathers groups and writes the small ones (clog.Log.Run),
// and the thread that owns the ring, which writes the large ones (package aio). Nobody else writes, except a lone
// caller on an idle single node.
//
// The committer of package partition embeds the one Driver of a node. A crash loses it: recovery finds the groups that
// are durable, and no other put was answered.
package driver
