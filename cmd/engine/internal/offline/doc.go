// Package offline has the commands that read the data directory of a stopped node and change nothing in it: fsck
// verifies all of it, segdump shows segment files, and clogdump the commit log. Package main adds them to the program's
// commands.
//
// It has its own readers of the segment header, the index and the checkpoint, written from the FORMAT.md files: a
// checker that shared the node's would share its mistakes. Batches are decoded by package segment, entries of control
// batches by node/fold, and the commit log is judged by clog, as at a start. It imports nothing that runs a node.
//
//	command.go                         what the commands share, and their exit codes
//	fsck*.go                           fsck: the commit log, segments and indexes, what cuts took, the report
//	segdump*.go, clogdump.go           the two that show
//	directory.go                       node.json, topic.json and the names of files
//	segfile.go, checkpoint.go          the readers
package offline
