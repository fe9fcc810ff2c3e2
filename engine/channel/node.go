package channel

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"penstock/engine/base"
	"penstock/engine/host"
	"penstock/internal/lock"
)

// Config is what the channels of a node need of it. The engine fills it in when it opens.
type Config struct {
	Host    host.Host
	Log     *slog.Logger
	Clock   *base.Clock
	Tasks   *sync.WaitGroup // the goroutines of channels; the engine waits for them when it closes
	Stop    <-chan struct{} // Node.Run ends when it is closed
	Cluster bool            // there are other nodes, or may be

	Limits

	// Leased says whether consumers may settle messages here now: no other node delivers them. It is called for every
	// message, with Channel.mu held.
	Leased func() bool
	// Closing says whether the engine closes, so that no goroutine may be started any more.
	Closing func() bool
	// Context returns a context that ends when there is nobody left to wait for.
	Context func() context.Context
}

// Limits are those of the engine's Options that channels obey; the comments are there.
type Limits struct {
	MaxConsumers, MaxRanges, MaxDeferred     int
	MsgTimeout, MaxMsgTimeout, MaxReqTimeout time.Duration
	ConfirmInterval                          time.Duration
	ReadAheadBytes, MaxDeliveriesAtOne       int
	Latencies                                func() base.LatencyRecorder
}

// Node is what the channels of a node share. It writes their confirmations, deferrals and resets into the log, at most
// ConfirmInterval late: one control batch per partition and channel, however many FINs there were. After a crash,
// messages confirmed in these few milliseconds are delivered again.
//
// mu guards list. Channels add themselves with Channel.mu held; Run takes the list.
type Node struct {
	Config

	mu   lock.Mutex[lock.Confirmer]
	list []*Channel
	kick chan struct{}
}

// NewNode returns a Node without channels. The engine then calls Run on a goroutine of its own.
func NewNode(c Config) *Node { return &Node{Config: c, kick: make(chan struct{}, 1)} }

// now is the engine's clock, see base.Clock.
func (n *Node) now() time.Time { return time.Unix(0, n.Clock.NowNs()) }

// until returns the duration until a time of the engine's clock.
func (n *Node) until(dueMs int64) time.Duration {
	return time.Duration(dueMs*int64(time.Millisecond) - n.Clock.NowNs())
}
