package netproto

import (
	"fmt"
	"time"
)

// Defaults and bounds of Options.
const (
	// DefaultMaxFrameBytes takes a batch of the largest size (16 MiB) with its placement.
	DefaultMaxFrameBytes = 16<<20 + 64<<10
	// DefaultWindowBytes is a Hello's WindowBytes if it is 0.
	DefaultWindowBytes = 16 << 20
	// DefaultMaxQueueFrameCount and DefaultMaxQueueBytes bound what was sent and is not yet written.
	DefaultMaxQueueFrameCount = 16384
	DefaultMaxQueueBytes      = 32 << 20
	// DefaultMaxHeldBytes bounds the receive buffers of a connection.
	DefaultMaxHeldBytes = 32 << 20

	DefaultHandshakeTimeout = 2 * time.Second
	DefaultPingEvery        = time.Second
	DefaultSilenceTimeout   = 5 * time.Second
	DefaultFrameTimeout     = 30 * time.Second
	DefaultWriteTimeout     = 10 * time.Second
	DefaultCloseTimeout     = 2 * time.Second
)

// Options are one side's settings. The zero value of a field is its default; Hello and Handler must be given.
type Options struct {
	// Hello is what this side says of itself. MaxFrameBytes 0 is DefaultMaxFrameBytes, WindowBytes 0 DefaultWindowBytes.
	Hello   Hello
	Handler Handler
	// Admit, if set, is called with the peer's Hello before anything else of it is accepted. An error refuses the peer; a
	// *RefusedError chooses the status that it is told, StatusRejected otherwise.
	Admit func(peer *Hello) error

	MaxQueueFrameCount int // frames taken by Send and not yet written
	MaxQueueBytes      int // their bytes; a single frame may be longer
	// MaxHeldBytes bounds the receive buffers in use; while they are, nothing is read. It is at least what the largest
	// frame needs.
	MaxHeldBytes int

	HandshakeTimeout time.Duration // for the whole handshake
	PingEvery        time.Duration // after half of it to all of it without a byte from the peer, it is pinged
	SilenceTimeout   time.Duration // after so long without a byte, the connection ends; at least 2 × PingEvery
	FrameTimeout     time.Duration // a frame that has begun is whole after so long, or the connection ends
	// a write (at most MaxQueueBytes, or one frame) that takes so long, at least half of it, ends the connection
	WriteTimeout time.Duration
	CloseTimeout time.Duration // how long Close waits for the queue to be written and for the peer's Goodbye
}

func orDefault[T int | uint32 | time.Duration](v *T, d T) {
	if *v < 0 {
		panic(fmt.Sprintf("BUG: netproto: negative option %v", *v))
	}
	if *v == 0 {
		*v = d
	}
}

// withDefaults is a copy with every field set, or a panic.
func (o *Options) withDefaults() Options {
	c := *o
	if c.Handler == nil {
		panic("BUG: netproto: Options.Handler is nil")
	}
	c.Hello.Chosen, c.Hello.Text = 0, ""
	orDefault(&c.Hello.MaxFrameBytes, DefaultMaxFrameBytes)
	orDefault(&c.Hello.WindowBytes, DefaultWindowBytes)
	orDefault(&c.MaxQueueFrameCount, DefaultMaxQueueFrameCount)
	orDefault(&c.MaxQueueBytes, DefaultMaxQueueBytes)
	orDefault(&c.MaxHeldBytes, DefaultMaxHeldBytes)
	orDefault(&c.HandshakeTimeout, DefaultHandshakeTimeout)
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
