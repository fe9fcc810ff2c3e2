// Package failpoint lets a test kill, delay or fail a process at a named place of the write path. The places exist only
// in a program built with the tag `failpoint`; in the product they are inlined to nothing.
//
// Such a program reads TEST_FAILPOINT when it starts:
//
//	NAME=kill@N         SIGKILL to itself at the Nth time at which the place is reached (from 1)
//	NAME=error@N        Hit returns an error from then on; Pass goes on
//	NAME=sleep:500ms@N  it sleeps there, once
//
// The names are in Names. The program ends if the variable has another name, or if it reaches a place with another
// name.
package failpoint

// Variable is the environment variable that says what happens at which place.
const Variable = "TEST_FAILPOINT"

// Names are the places, in the order in which a message meets them.
var Names = []string{
	"clog/before-write",      // a group is sealed, none of it is on the disk
	"clog/after-write",       // the group is on the disk, nobody has been told
	"clog/after-durable",     // the source has been told that the group is durable
	"engine/follower-append", // a follower hands batches to its committer
	// a replica's batch is durable on this node, its machine has not been told, nothing is acknowledged
	"engine/replica-durable",
	"engine/before-commit", // a replica's batches are committed, none of them is answered or visible
	"engine/after-commit",  // they are visible, the answers have not left
	"segment/before-write", // batches go from memory to a segment
	"segment/after-write",
	"segment/before-sync",
	"segment/after-sync",
	"clog/before-checkpoint", // a file of the commit log begins
	"clog/after-checkpoint",
	"clog/before-recycle", // an old file becomes a spare
	"clog/after-recycle",
}
