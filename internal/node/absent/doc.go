// Package absent answers leaders that ask for a copy of a partition which this node does not have, so that they ask
// less often. A leader of a new topic asks before the copy is open; one that goes on asking is a fault, and is logged.
//
// The node's cluster part has one Copies and calls it on the goroutines of connections. A crash forgets who has asked.
package absent
