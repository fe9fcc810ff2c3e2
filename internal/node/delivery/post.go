package delivery

import "penstock/segment"

// Post is an event about one partition for a channel's machine, with further facts for the channel around the machine.
// Its sender must not wait for the channel's lock: the committer, a replica that commits, the flusher, or a connection.
// The channel queues the post and steps its event later. A crash loses the queue, but no fact: the next channel begins
// with a snapshot of the log, which includes the event.
type Post struct {
	Event // its Part is the number of the partition

	// Epoch is the leader epoch in which this node serves the partition (EvAddPartition), or whose fence ends
	// (EvUnfence). It is 0 on a single node.
	Epoch segment.Epoch
	// FoundEnd is the end of the log at the time when the channel was found in it (EvAddPartition); 0: this process
	// created the channel.
	FoundEnd segment.Position
	// Gone has deferred messages below Start (EvTrimmed) that were removed with their segments: an EvGone for each
	// follows.
	Gone []segment.MsgID
}
