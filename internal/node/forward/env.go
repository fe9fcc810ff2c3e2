package forward

import (
	"sync/atomic"
	"time"

	"penstock/internal/node/clock"
	"penstock/internal/node/inbox"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/segment"
)

// Env is what a Forwarder needs of its node.
type Env struct {
	Peers      *platform.Peers
	Clock      *clock.Clock
	Now        func() int64         // the clock of leases, used for LastPut
	Limits     *inbox.Limits        // of the puts of other nodes
	MaxBytes   func() int64         // of all puts that wait or are in flight: Options.MaxNodeInboxBytes of now
	Timeout    func() time.Duration // of puts without a deadline: Options.PublishTimeout of now
	Overloaded *atomic.Uint64       // counts the puts that were refused because of MaxBytes
	First      uint64               // number of the first put; no earlier process may have used it
	// Find returns a partition, or nil if this node does not know it.
	Find func(id segment.Identity) Partition
}

// Partition is a partition whose puts are forwarded. The engine's partitions implement it. The methods may be called
// with Forwarder.mu held, except Announce, which may write and answer puts.
type Partition interface {
	Identity() segment.Identity
	// Box is the partition's inbox, which takes the puts while this node leads.
	Box() *inbox.Inbox
	// Target is the leader as far as this node knows; 0: none.
	Target() replicate.NodeID
	// Announce tells the committer that puts have entered the inbox.
	Announce(alone bool)
}
