// Package driver decides which goroutine does the work of the commit log: the log's own, a caller that would only wait
// for its put, or an ordinary goroutine beside the log's while groups are small. It also keeps the list of the
// partitions whose inboxes wait for the next group.
//
// The committer of package partition embeds the one Driver of a node. A crash loses it: recovery finds the groups that
// are durable, and no other put was answered.
package driver
