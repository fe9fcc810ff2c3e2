package core

import "penstock/segment"

// Post is an event about one partition for a channel's machine, and what the channel around the machine needs with it.
// It comes from a caller that must not wait for the channel's lock: the committer, a replica that commits, the flusher,
// or a connection. The channel queues it and steps it later. A crash loses nothing with it: the channel then begins
// with a snapshot of the log, which includes the event.
type Post struct {
	Event // its Part is the number of the partition

	// Epoch is the leader epoch in which this node serves the partition (EvAddPartition), or whose fence ends (EvUnfence).
	// 0 on a single node.
	Epoch segment.Epoch
	// FoundEnd is the end of the log when the channel was found in it (EvAddPartition); 0: this process created the
	// channel.
	FoundEnd segment.Position
	// Gone are deferred messages below Start (EvTrimmed), which were removed with their segments: EvGone for each follows.
	Gone []segment.MsgID
}
