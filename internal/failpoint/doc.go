// Package failpoint lets a test end, delay or fail a process at a named place of the write path. The places exist only
// in a program that was built with the tag `failpoint`; in the product they are inlined to nothing.
//
// Such a program reads PENSTOCK_FAILPOINT when it starts:
//
//	NAME=kill@N         SIGKILL to itself at the Nth time at which the place is reached (from 1)
//	NAME=error@N        Hit returns an error from then on; Pass goes on
//	NAME=sleep:500ms@N  it sleeps there, once
//
// The names are in Names; a place that is not among them, and a name in the variable that is not, end the program.
package failpoint

// Variable is the environment variable that chooses what happens.
const Variable = "PENSTOCK_FAILPOINT"

// Names are the places, in the order in which a message meets them.
var Names = []string{
	"clog/before-write",      // a group is sealed, nothing of it is on the disk
	"clog/after-write",       // the disk has it, nobody knows
	"clog/after-durable",     // the group is done with
	"engine/follower-append", // a follower hands batches to its committer
	// a replica's batch is durable on this node, its machine has not heard, nothing is acknowledged
	"engine/replica-durable",
	"engine/before-commit", // a replica's batches are committed, nothing of it was answered or is visible
	"engine/after-commit",  // it is visible, the answers have not left
	"segment/before-write", // batches go from memory to a segment
	"segment/after-write",
	"segment/before-sync",
	"segment/after-sync",
	"clog/before-checkpoint", // a file of the commit log begins
	"clog/after-checkpoint",
	"clog/before-recycle", // an old file becomes a spare one
	"clog/after-recycle",
}
