package channel

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/clock"
	"penstock/internal/node/delivery"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
)

// Config is the view that a node's channels have of the node. The engine fills it in when it opens.
type Config struct {
	Host    platform.Host
	Log     *slog.Logger
	Clock   *clock.Clock
	Tasks   *sync.WaitGroup // the goroutines of channels; the engine waits for them when it closes
	Stop    <-chan struct{} // closed to end Node.Run
	Cluster bool            // there are other nodes, or may be

	Limits Limits // see Shared.Change

	Lease
	// Latencies makes the recorder of a channel; see the engine's option of that name. nil: nothing is measured.
	Latencies func() message.LatencyRecorder
	// Closing says whether the engine is closing. No goroutine may be started then.
	Closing func() bool
	// Context returns the context for requests to other nodes. It ends when the engine closes; on a single node it
	// never ends.
	Context func() context.Context
}

// Lease says until when no other node delivers what this one delivers. Its methods do not wait.
type Lease interface {
	// Leased says whether consumers may settle messages here now. It is called for every message, with Channel.mu held.
	Leased() bool
	// LeaseLeft returns how long the lease lasts.
	LeaseLeft() time.Duration
	// Now is the time of the lease's clock, in ns. Lapsed says whether this node has no lease now, or had none at some
	// moment after since, a time of Now.
	Now() int64
	Lapsed(since int64) bool
}

// Limits are the engine's Options that channels obey; see the comments there.
type Limits struct {
	MaxConsumers, MaxRanges, MaxDeferred     int
	MsgTimeout, MaxMsgTimeout, MaxReqTimeout time.Duration
	ConfirmInterval, SweepInterval           time.Duration
	ReadAheadBytes, MaxDeliveriesAtOne       int
}

// ofMachine are those that a channel's machine obeys.
func (l *Limits) ofMachine() delivery.ChannelConfig {
	return delivery.ChannelConfig{
		MaxRanges: l.MaxRanges, MaxDeferred: l.MaxDeferred, MaxConsumers: l.MaxConsumers,
		MaxMsgTimeoutMs: l.MaxMsgTimeout.Milliseconds(), MaxReqTimeoutMs: l.MaxReqTimeout.Milliseconds(),
	}
}

// Shared is shared by the channels of a node. It writes their confirmations, deferrals and resets into the log, at most
// ConfirmInterval late: one control batch per partition and channel, however many FINs there were. After a crash,
// messages confirmed in these few milliseconds are delivered again.
//
// mu guards list. A channel adds itself with Channel.mu held. Flush, which Run calls, takes the list.
type Shared struct {
	Config

	aheadBytes    atomic.Int64 // kept by all channels, see ahead; at most MaxAheadBytes
	inflatedBytes atomic.Int64 // kept by all channels, see inflated; at most MaxInflatedBytes

	changed atomic.Pointer[Limits] // see limits

	leavers leavers

	mu   lock.Mutex[lock.Confirmer]
	list []*Channel
	kick chan struct{}
}

// NewShared returns a Node without channels. The engine then calls Run on a goroutine of its own.
func NewShared(c Config) *Shared {
	n := &Shared{Config: c, kick: make(chan struct{}, 1)}
	n.Change(c.Limits)
	return n
}

// Change replaces the limits. A channel finds the new ones at its next event; the caller then wakes those that there
// are. Any goroutine may call it.
func (n *Shared) Change(l Limits) { n.changed.Store(&l) }

// limits returns the limits of now, which do not change.
func (n *Shared) limits() *Limits { return n.changed.Load() }

// now returns the time of the engine's clock, see clock.Clock.
func (n *Shared) now() time.Time { return time.Unix(0, n.Clock.NowNs()) }

// until returns the duration until a time of the engine's clock.
func (n *Shared) until(dueMs int64) time.Duration {
	return time.Duration(dueMs*int64(time.Millisecond) - n.Clock.NowNs())
}
