package netproto

import (
	"fmt"
	"net"
	"time"
)

// Defaults and bounds of Options.
const (
	// DefaultMaxFrameBytes has room for a batch of the largest size (16 MiB) with its placement.
	DefaultMaxFrameBytes = 16<<20 + 64<<10
	// DefaultWindowBytes is used if a Hello's WindowBytes is 0.
	DefaultWindowBytes = 16 << 20
	// DefaultMaxQueueFrameCount and DefaultMaxQueueBytes bound the frames that Send took and that are not written yet.
	DefaultMaxQueueFrameCount = 16384
	DefaultMaxQueueBytes      = 32 << 20
	// DefaultMaxHeldBytes bounds the receive buffers of a connection.
	DefaultMaxHeldBytes = 32 << 20

	DefaultHandshakeTimeout = 2 * time.Second
	DefaultMaxHandshakes    = 256
	DefaultPingEvery        = time.Second
	DefaultSilenceTimeout   = 5 * time.Second
	DefaultFrameTimeout     = 30 * time.Second
	DefaultWriteTimeout     = 10 * time.Second
	DefaultCloseTimeout     = 2 * time.Second
)

// Options are one side's settings. The zero value of a field selects its default; Hello and Handler must be set.
type Options struct {
	// Hello is what this side says about itself. In it, 0 selects DefaultMaxFrameBytes and DefaultWindowBytes.
	Hello   Hello
	Handler Handler
	// HandlerFor, if set, is called after each handshake and returns the Handler of that connection; Handler is not used
	// then. It may look at nc, at the state of TLS for example, but not read or write.
	HandlerFor func(nc net.Conn) Handler
	// Admit, if set, is called with the peer's Hello before anything else from the peer is accepted. An error refuses
	// the peer. A *RefusedError chooses the status that the peer is told; other errors give StatusRejected.
	Admit func(peer *Hello) error
	// Secrets, if set, is called once per handshake. If it returns any, the peer must prove that it has one of them, and
	// this side proves that it has the first one. So secrets can be changed while nodes run, and connections stay.
	Secrets func() []Secret

	// MaxStrangerBytes, if not 0, bounds the bytes of all frames that the peer sends until Conn.Trust is called. The
	// frame that exceeds it ends the connection before there is a buffer for it.
	MaxStrangerBytes int

	MaxQueueFrameCount int // frames that Send took and that are not written yet
	MaxQueueBytes      int // their bytes; a single frame may be longer
	// MaxHeldBytes bounds the receive buffers in use. At the limit the connection reads nothing. It is at least what
	// the largest frame needs.
	MaxHeldBytes int

	HandshakeTimeout time.Duration // for the whole handshake
	// MaxHandshakeCount bounds the connections of one Serve that have not said Hello yet
	MaxHandshakeCount int
	PingEvery         time.Duration // the peer is pinged after it has sent nothing for half of this to all of it
	SilenceTimeout    time.Duration // the connection ends if the peer sends nothing for so long; at least 2 × PingEvery
	// the connection ends if a frame that has begun is not whole after so long, and arrives at less than 1 KiB/s
	FrameTimeout time.Duration
	// the connection ends if a write (at most MaxQueueBytes, or one frame) goes on for so long, or more than half of it,
	// and the peer's side takes none of it meanwhile; elsewhere than on Linux, which does not tell: if it is not complete
	WriteTimeout time.Duration
	CloseTimeout time.Duration // how long Close waits for the queue to be written and for the peer's Goodbye

	// Renew, if set, is called by Serve for each connection that it has accepted, and may change HandshakeTimeout,
	// MaxHandshakeCount, MaxStrangerBytes and Hello.WindowBytes, which must not become 0, from that connection on.
	Renew func(o *Options)

	// SlowStart has the link prove that it is quick before much is given to it at a time: see Conn.Quick.
	SlowStart bool
}

func orDefault[T int | uint32 | time.Duration](v *T, d T) {
	if *v < 0 {
		panic(fmt.Sprintf("BUG: netproto: negative option %v", *v))
	}
	if *v == 0 {
		*v = d
	}
}

// withDefaults returns a copy with every field set. It panics if the options are invalid.
func (o *Options) withDefaults() Options {
	c := *o
	if c.Handler == nil && c.HandlerFor == nil {
		panic("BUG: netproto: Options.Handler is nil")
	}
	c.Hello.Chosen, c.Hello.Text = 0, ""
	orDefault(&c.Hello.MaxFrameBytes, DefaultMaxFrameBytes)
	orDefault(&c.Hello.WindowBytes, DefaultWindowBytes)
	orDefault(&c.MaxQueueFrameCount, DefaultMaxQueueFrameCount)
	orDefault(&c.MaxQueueBytes, DefaultMaxQueueBytes)
	orDefault(&c.MaxHeldBytes, DefaultMaxHeldBytes)
	orDefault(&c.HandshakeTimeout, DefaultHandshakeTimeout)
	orDefault(&c.MaxHandshakeCount, DefaultMaxHandshakes)
	orDefault(&c.PingEvery, DefaultPingEvery)
	orDefault(&c.SilenceTimeout, DefaultSilenceTimeout)
	orDefault(&c.FrameTimeout, DefaultFrameTimeout)
	orDefault(&c.WriteTimeout, DefaultWriteTimeout)
	orDefault(&c.CloseTimeout, DefaultCloseTimeout)
	c.MaxHeldBytes = max(c.MaxHeldBytes, recvSize(int(c.Hello.MaxFrameBytes))+RecvBufBytes)
	c.SilenceTimeout = max(c.SilenceTimeout, 2*c.PingEvery)
	if err := c.Hello.validate(); err != nil {
		panic("BUG: netproto: Options.Hello: " + err.Error())
	}
	return c
}
